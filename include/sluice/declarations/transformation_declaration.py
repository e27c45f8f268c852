"""The declared work of a stream: its transformation, and how the past is processed again."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.declarations.scalar_types import (
    ColumnName,
    Declared,
    Duration,
    FunctionReference,
    Name,
    SqlFile,
    WholeNumber,
    one_of,
)


class TransformationDeclaration(Declared):
    """The function or query that computes the outputs from the inputs.

    A Python function takes the inputs by name and returns a DataFrame, or a mapping of output name to DataFrame.
    """

    python: FunctionReference | None = Field(None, description="`<file>.py:<function>` beside the declaration")
    sql: SqlFile | None = Field(None, description="a file with one query, beside the declaration")

    @model_validator(mode="after")
    def _one_language(self) -> Self:
        one_of(self, "python", "sql")
        return self

    @property
    def file_name(self) -> str:
        """The file of the transformation, below the declaration's folder."""
        return (self.python or self.sql or "").partition(":")[0]

    @property
    def function(self) -> str | None:
        """The Python function; SQL has none."""
        return None if self.python is None else self.python.partition(":")[2]


class BackfillDeclaration(Declared):
    """How an interval of the past is processed again: as one batch that replaces the rows of the interval."""

    column: ColumnName = Field(
        description="the target's column whose values an interval covers: a date, timestamp or timestamptz"
    )
    interval: Literal["hour", "day", "month"] = Field("day", description="the length of one run's interval, in UTC")
    reads: dict[Name, ColumnName] = Field(
        {},
        description="by input: the column of its rows by which only an interval is read; an input that is not named "
        "here is read whole. Of a Kafka input, `timestamp` is the time of the records, unless the value has a column "
        "of that name",
    )
    margin: Duration | None = Field(
        None,
        description="how far before and after its interval a run reads with `reads`, and how long after its end the "
        "watermark closes it. What windows, joins of streams and shifts of time need is derived from the plan: a "
        "margin that is too short is refused, and one is required where nothing can be derived",
    )
    follows: tuple[Name, ...] = Field(
        (),
        description="the inputs, named in `reads`, whose backfills this stream follows: when the stream that writes "
        "the table replaces an interval, the same run computes that interval of this stream again too",
    )
    at_once: WholeNumber = Field(
        1,
        ge=1,
        le=16,
        description="how many intervals are processed at the same time when the target is partitioned by `column`, at "
        "most as long as an interval; from 3 on, up to half of them that touch are computed as one batch. Otherwise "
        "one after the other, since they share files",
    )
    balance: Literal["rows"] | None = Field(
        None,
        description="`rows`: the transformation keeps, rejects or recognises as a duplicate every row that it reads, "
        "and a run whose numbers do not add up fails; unset for aggregations and filters",
    )
