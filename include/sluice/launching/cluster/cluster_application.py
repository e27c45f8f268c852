"""A driver as an application of a cluster, of a stream's run or for work items: its tag, and its observed state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from sluice.processes.process_identity import ProcessIdentity


class ApplicationState(StrEnum):
    """The state of an application, in the same words for all clusters. QUEUED: accepted, without resources yet."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"


LIVE_APPLICATIONS = frozenset({ApplicationState.QUEUED, ApplicationState.RUNNING})
"""An application in one of these states has a driver, or will have one."""


class ApplicationTag(Protocol):
    """What an application is found by. It is known before the application exists."""

    @property
    def run_id(self) -> str:
        """A UUID that no other tag has: of the run, or of the application in the ledger."""

    def labels(self) -> Mapping[str, str]:
        """Return the tag in parts that every cluster allows as tags or labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverTag:
    """The tag by which the one application of a run is found. It is known before the application exists.

    token: the fencing token of the run's lease.
    launched_at_ms: when the run was bound to this tag, in milliseconds since the epoch.
    """

    stream: str
    token: int
    run_id: str
    launched_at_ms: int

    @property
    def text(self) -> str:
        """Stream, token and run as the ledger stores them."""
        return f"{self.stream}:{self.token}:{self.run_id}"

    @property
    def described(self) -> str:
        """What is tagged, in a sentence."""
        return f"run {self.run_id}"

    def labels(self) -> dict[str, str]:
        """Return the tag in parts that every cluster allows as tags or labels: small letters, digits, `-` and `_`."""
        return {
            "sluice-stream": self.stream,
            "sluice-token": str(self.token),
            "sluice-run": self.run_id,
            "sluice-launch": str(self.launched_at_ms),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTag:
    """The tag by which an application for work items is found.

    run_id: the application's in the ledger.
    launched_at_ms: as of `DriverTag`.
    """

    run_id: str
    launched_at_ms: int

    @property
    def text(self) -> str:
        """The application, as in the identity of its process."""
        return self.run_id

    @property
    def described(self) -> str:
        """What is tagged, in a sentence."""
        return f"the work application {self.run_id}"

    def labels(self) -> dict[str, str]:
        """Return the tag in parts that every cluster allows as tags or labels."""
        return {"sluice-application": self.run_id, "sluice-launch": str(self.launched_at_ms)}


def tag_in(process: ProcessIdentity) -> DriverTag | WorkTag | None:
    """Return the tag in the identity of an application; none for a process of a host."""
    if process.application is None:
        return None
    launched_at_ms = round(process.started_at_seconds * 1000)
    if ":" not in process.application:
        return WorkTag(run_id=process.application, launched_at_ms=launched_at_ms)
    stream, token, run_id = process.application.split(":")
    return DriverTag(stream=stream, token=int(token), run_id=run_id, launched_at_ms=launched_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationObservation:
    """An application as its cluster reports it.

    application_id: the cluster's name for it.
    explanation: the cluster's diagnostics about its end; often empty.
    exit_code: the driver's exit code, where the cluster reports it.
    """

    application_id: str
    state: ApplicationState
    explanation: str = ""
    exit_code: int | None = None

    @property
    def is_live(self) -> bool:
        """Whether it has a driver, or will have one."""
        return self.state in LIVE_APPLICATIONS
