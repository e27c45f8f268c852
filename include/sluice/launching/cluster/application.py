"""What was seen of a driver as an application of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ApplicationState(StrEnum):
    """Where an application stands, in one word for all clusters. QUEUED: taken in, and not given a place yet."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverTag:
    """What the one application of a run is found by. It is known before the application exists.

    token: the fencing token of the run's lease.
    launched_at_ms: when the run was bound to this tag, in milliseconds since the epoch.
    """

    stream: str
    token: int
    run_id: str
    launched_at_ms: int

    @property
    def text(self) -> str:
        """Stream, token and run as the ledger keeps them."""
        return f"{self.stream}:{self.token}:{self.run_id}"

    def words(self) -> dict[str, str]:
        """The tag in parts that every cluster takes as tags or labels: small letters, digits, `-` and `_`."""
        return {
            "sluice-stream": self.stream,
            "sluice-token": str(self.token),
            "sluice-run": self.run_id,
            "sluice-launch": str(self.launched_at_ms),
        }


LIVE_APPLICATIONS = frozenset({ApplicationState.QUEUED, ApplicationState.RUNNING})
"""An application in one of these states has a driver, or will have one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationObservation:
    """An application as the cluster tells of it.

    application_id: the cluster's own name for it.
    explanation: what the cluster says of its end; often empty.
    exit_code: the driver's, where the cluster tells it.
    """

    application_id: str
    state: ApplicationState
    explanation: str = ""
    exit_code: int | None = None

    @property
    def is_live(self) -> bool:
        """Whether it has a driver, or will have one."""
        return self.state in LIVE_APPLICATIONS
