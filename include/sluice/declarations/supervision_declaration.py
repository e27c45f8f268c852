"""The declared supervision of a stream: what to do when a run fails, stalls or falls behind."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.declarations.scalar_types import (
    LARGEST_LONG,
    Declared,
    Duration,
    WholeNumber,
)


class RestartDeclaration(Declared):
    """How often and how fast a failed run is restarted before the stream is given up."""

    attempts: WholeNumber = Field(
        5,
        ge=0,
        le=1000,
        description="restarts in a row before the stream is given up; the failure's class may allow more or fewer",
    )
    first_delay: Duration = Field(
        timedelta(seconds=5),
        description="the wait before the second restart, which doubles; the first restart is immediate, unless memory "
        "or disk ran out",
    )
    longest_delay: Duration = Field(timedelta(minutes=5), description="the longest wait between restarts")
    stable_after: Duration = Field(
        timedelta(minutes=10), description="a run that stays up for this long resets the count of restarts"
    )

    @model_validator(mode="after")
    def _delays_grow(self) -> Self:
        if self.first_delay > self.longest_delay:
            raise ValueError("first_delay is at most longest_delay")
        return self


class BreakerDeclaration(Declared):
    """When a stream that keeps failing is given up, however its restarts are spread."""

    failures: WholeNumber = Field(gt=0, le=100_000, description="the breaker opens at this many failures")
    window: Duration = Field(description="the time in which the failures are counted")


class LagDeclaration(Declared):
    """How far behind its source a stream may be, and what to do when it is further."""

    rows: WholeNumber | None = Field(None, gt=0, le=LARGEST_LONG, description="at most this many rows")
    duration: Duration | None = Field(None, description="at most this long")
    action: Literal["alert", "restart", "defer_maintenance"] = Field("alert", description="what to do beyond the limit")

    @model_validator(mode="after")
    def _by_something(self) -> Self:
        if self.rows is None and self.duration is None:
            raise ValueError("a lag is bounded by rows, by a duration, or by both")
        return self


class RejectionLimit(Declared):
    """How many rows a stream may reject, and what to do when it rejects more."""

    rows: WholeNumber | None = Field(None, gt=0, le=LARGEST_LONG, description="at most this many rows in the window")
    share: float | None = Field(None, gt=0, lt=1, description="at most this share of the rows that were read in it")
    window: Duration = Field(timedelta(hours=1), description="the time in which rows are counted, up to now")
    action: Literal["warn", "hold", "stop"] = Field(
        "warn",
        description="what to do beyond the limit: `warn` alerts; `hold` also lets the batch with which it is exceeded "
        "wait for a person before it is visible; `stop` also stops the stream until a person starts it",
    )

    @model_validator(mode="after")
    def _by_something(self) -> Self:
        if self.rows is None and self.share is None:
            raise ValueError("rejections are bounded by rows, by a share, or by both")
        return self

    def is_exceeded(self, *, rejected: int, read: int) -> bool:
        """Whether so many rejected rows of those that were read are too many."""
        is_above_rows = self.rows is not None and rejected > self.rows
        return is_above_rows or (self.share is not None and rejected > self.share * read)


class SupervisionDeclaration(Declared):
    """What to do when a run fails, stalls or falls behind."""

    restart: RestartDeclaration = Field(RestartDeclaration(), description="restarts after a failure")
    breaker: BreakerDeclaration | None = Field(
        None, description="when to give up a stream that keeps failing; unset: no breaker"
    )
    stall_after: Duration | None = Field(
        None,
        description="the stream is stalled when a batch takes this long, or input waits this long for one; "
        "unset: derived from its trigger and its recent batches",
    )
    on_stall: Literal["alert", "restart"] = Field(
        "alert", description="what to do about a stalled stream; `restart` needs an input other than a socket"
    )
    max_lag: LagDeclaration | None = Field(
        None, description="how far behind its source the stream may be; for kafka and iceberg inputs"
    )
    max_rejected: RejectionLimit | None = Field(
        None, description="how many rows the stream may reject; what a person has seen, by starting it, counts no more"
    )
