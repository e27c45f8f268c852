"""The desired state of a stream: what a person requested, and what suspends the stream."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sluice.ledger.records.run import DesiredState


class SuspensionCause(StrEnum):
    """What keeps a stream from running although it is to run.

    PAUSED: a person paused its DAG in Airflow; over when the DAG is unpaused, or a person starts the stream. MARKED: a
    person marked its task as failed or successful; over when a person clears the task, triggers or unpauses the DAG, or
    starts the stream.
    """

    PAUSED = "paused"
    MARKED = "marked"


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredStateObservation:
    """The newest request for a stream, and its suspension.

    desired_state: what was requested; RUNNING when nothing was.
    requested_at, requested_by: unset and empty when nothing was ever requested.
    suspension: what keeps the stream from running all the same. suspended_at: when it was last suspended or resumed.
    """

    stream: str
    desired_state: DesiredState
    requested_at: datetime | None = None
    requested_by: str = ""
    suspension: SuspensionCause | None = None
    suspended_at: datetime | None = None

    @property
    def effective_state(self) -> DesiredState:
        """The state that the stream is to have now: STOPPED while it is suspended, else what was requested."""
        return DesiredState.STOPPED if self.suspension is not None else self.desired_state

    @property
    def changed_at(self) -> datetime | None:
        """When request or suspension last changed; unset when nothing was ever requested."""
        return max((at for at in (self.requested_at, self.suspended_at) if at is not None), default=None)

    @property
    def why_stopped(self) -> str:
        """Who or what stops the stream, to follow "stopped": ` by ann`, ` while its DAG is paused`; empty: unknown."""
        if self.suspension is SuspensionCause.PAUSED:
            return " while its DAG is paused"
        if self.suspension is SuspensionCause.MARKED:
            return " by whoever marked its task in Airflow"
        return f" by {self.requested_by}" if self.requested_by else ""
