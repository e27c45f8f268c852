"""What is done about a stream's run that fails, stalls or falls behind, as it was asked for."""

from __future__ import annotations

from datetime import timedelta
from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.declarations.scalar_types import Declared, Duration


class RestartDeclaration(Declared):
    """How often and how fast a failed run is started again before a person is asked."""

    attempts: int = Field(
        5, ge=0, description="restarts in a row; then a person is asked. More or fewer by the failure's class"
    )
    first_delay: Duration = Field(
        timedelta(seconds=5),
        description="the first wait, which doubles; the first restart comes at once, unless memory or disk ran out",
    )
    longest_delay: Duration = Field(timedelta(minutes=5), description="the longest wait between restarts")
    stable_after: Duration = Field(
        timedelta(minutes=10), description="a run that stays up for so long sets the count of restarts back"
    )

    @model_validator(mode="after")
    def _delays_grow(self) -> Self:
        if self.first_delay > self.longest_delay:
            raise ValueError("first_delay is at most longest_delay")
        return self


class BreakerDeclaration(Declared):
    """When a stream that keeps failing is left alone, however its restarts are spread."""

    failures: int = Field(gt=0, description="the breaker opens at so many failures")
    window: Duration = Field(description="within so long")


class LagDeclaration(Declared):
    """How far behind its source a stream may be, and what to do when it is further."""

    rows: int | None = Field(None, gt=0, description="so many rows")
    duration: Duration | None = Field(None, description="so long")
    action: Literal["alert", "restart", "defer_maintenance"] = Field("alert", description="what to do beyond it")

    @model_validator(mode="after")
    def _by_something(self) -> Self:
        if self.rows is None and self.duration is None:
            raise ValueError("a lag is bounded by rows, by a duration, or by both")
        return self


class SupervisionDeclaration(Declared):
    """What is done about a run that fails, stalls or falls behind."""

    restart: RestartDeclaration = Field(RestartDeclaration(), description="when a run failed")
    breaker: BreakerDeclaration | None = Field(None, description="when runs keep failing")
    stall_after: Duration | None = Field(
        None,
        description="a batch that takes so long, or input that waits so long for one, means that the stream is "
        "stalled; unset: by its trigger and its recent batches",
    )
    on_stall: Literal["alert", "restart"] = Field("alert", description="what to do about a stalled stream")
    max_lag: LagDeclaration | None = Field(None, description="how far behind its source the stream may be")
