"""The ports of launching: protocols with several adapters, each with a fake in `tests/fakes`, and what a cluster says
of an application."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from sluice.ledger.run_values import DriverExit
from sluice.processes.process_identity import ProcessIdentity, ProcessState


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """The request to start a driver that the ledger has admitted: of a stream's run, or an application for work items.

    run_id: of the run, or of the application.
    stream: the stream, or the application's pool.
    is_application: whether its process and its end are recorded as an application's.
    command: the argv; every user of the machine can read it, so it contains no secret. For a cluster the application's
        file and its arguments.
    connection: the Spark connection of a cluster; unset for a driver of this host.
    conf: for a cluster the settings of the application, which are passed in a private file.
    environment: variables on top of those of the launching process; secrets are passed here.
    log_file: the file that takes the driver's output.
    """

    run_id: str
    stream: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    log_file: Path
    connection: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    is_application: bool = False

    @property
    def described(self) -> str:
        """What is started, for the beginning of a sentence."""
        if self.is_application:
            return f"Application {self.run_id} of the pool {self.stream}"
        return f"Run {self.run_id} of stream {self.stream}"


class Launcher(Protocol):
    """Starts drivers that outlive the launching process, observes whether they live, and ends them.

    `tests/contracts/test_launcher.py` is the contract of every adapter.
    """

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Bind a run to its process in the ledger, then start its driver.

        A run has one process: of two requests for one run the ledger refuses one.

        Raises
        ------
        LaunchError: when the driver cannot be started, or the run has a process already, or has ended.
        """

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """Observe whether a driver lives. UNKNOWN when that is impossible, for example from another host."""

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """Return how a driver that is gone has ended; none when the launcher does not know."""

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """End a driver that did not obey the request to stop: ask it, wait `grace_seconds`, then kill it.

        Returns
        -------
        GONE when no process of the driver is left; UNKNOWN when this launcher cannot reach it.

        Raises
        ------
        LaunchError: when the driver survives the kill.
        """


class Cluster(Protocol):
    """The API of a cluster, which knows the states of applications. `tests/contracts/test_clusters.py` is its contract.

    An adapter keeps no state: every process, on every host, finds the same application by its tag.
    """

    def find(self, tag: ApplicationTag) -> ApplicationObservation | None:
        """Return the application with this tag; none when the cluster does not know one, or no longer does.

        Raises
        ------
        ClusterError: when the cluster does not answer; the state of the application is unknown then.
        """

    def kill(self, application_id: str) -> None:
        """Ask the cluster to end an application; an ended one is left as it is.

        Raises
        ------
        ClusterError: when the cluster does not answer, or refuses.
        """


def tag_in(process: ProcessIdentity) -> DriverTag | WorkTag | None:
    """Return the tag in the identity of an application; none for a process of a host."""
    if process.application is None:
        return None
    launched_at_ms = round(process.started_at_seconds * 1000)
    if ":" not in process.application:
        return WorkTag(run_id=process.application, launched_at_ms=launched_at_ms)
    stream, token, run_id = process.application.split(":")
    return DriverTag(stream=stream, token=int(token), run_id=run_id, launched_at_ms=launched_at_ms)
