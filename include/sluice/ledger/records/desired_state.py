"""What the ledger knows of a wish: what a person or the platform last asked of a stream."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sluice.ledger.records.run import DesiredState


class HoldCause(StrEnum):
    """What keeps a stream from running although it is wished.

    PAUSED: its DAG is paused in Airflow; over when the DAG is unpaused. MARKED: a person marked its task as failed or
    successful; over when a person clears the task, triggers or unpauses the DAG, or starts the stream.
    """

    PAUSED = "paused"
    MARKED = "marked"


@dataclass(frozen=True, slots=True, kw_only=True)
class WishObservation:
    """What was last asked of a stream. Without a `wished_at` nobody ever asked, and the stream is wanted.

    hold: what keeps it from running all the same. held_at: when the newest hold began or ended.
    """

    stream: str
    desired_state: DesiredState
    wished_at: datetime | None = None
    wished_by: str = ""
    hold: HoldCause | None = None
    held_at: datetime | None = None

    @property
    def wanted(self) -> DesiredState:
        """What the stream is to be now, wish and hold together."""
        return DesiredState.STOPPED if self.hold is not None else self.desired_state

    @property
    def changed_at(self) -> datetime | None:
        """When wish or hold last changed; unset when nothing was ever asked."""
        return max((at for at in (self.wished_at, self.held_at) if at is not None), default=None)

    @property
    def why_stopped(self) -> str:
        """Who or what stops the stream, to follow "stopped": ` by ann`, ` while its DAG is paused`; empty: nobody."""
        if self.hold is HoldCause.PAUSED:
            return " while its DAG is paused"
        if self.hold is HoldCause.MARKED:
            return " by whoever marked its task in Airflow"
        return f" by {self.wished_by}" if self.wished_by else ""
