"""When a stream runs: the trigger of its batches and the schedule of its runs."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.declarations.scalar_types import (
    Cron,
    Declared,
    Duration,
    TableName,
    one_of,
)

RECORD_TRIGGERS = frozenset({"continuous_processing", "real_time"})
"""The triggers with which Spark hands records on one by one. Spark's own Kafka sink writes them. There is no batch, so
everything that needs one is rejected: tables, functions, a quarantine."""


INCREMENTAL_TRIGGERS = frozenset({"available_now", "once"})
"""The triggers that end by themselves; all others run until they are stopped."""


class TriggerDeclaration(Declared):
    """When a batch is planned."""

    processing_time: Duration | None = Field(None, description="continuous: a batch so often")
    available_now: Literal[True] | None = Field(
        None, description="incremental: all that is there, in as many batches as the inputs' limits ask for"
    )
    once: Literal[True] | None = Field(None, description="incremental: the same as `available_now`")
    continuous_processing: Duration | None = Field(
        None, description="continuous: Spark's record-at-a-time processing, with a checkpoint so often"
    )
    real_time: Duration | None = Field(None, description="continuous: Spark's real-time mode, with batches this long")

    @model_validator(mode="after")
    def _one_trigger(self) -> Self:
        one_of(self, "processing_time", "available_now", "once", "continuous_processing", "real_time")
        return self

    @property
    def kind(self) -> str:
        """The trigger: the key it was written under."""
        return one_of(self, "processing_time", "available_now", "once", "continuous_processing", "real_time")


class ScheduleDeclaration(Declared):
    """When an incremental stream runs: by the clock, by new data in tables, or by whichever comes first."""

    cron: Cron | None = Field(None, description="five fields or a preset such as `@hourly`, in UTC")
    tables: tuple[TableName, ...] = Field((), description="run when all of these tables have new rows")

    @model_validator(mode="after")
    def _by_something(self) -> Self:
        if self.cron is None and not self.tables:
            raise ValueError("a schedule names a cron, tables, or both")
        return self
