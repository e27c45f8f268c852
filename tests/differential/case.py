"""A random case: a stream with its tables, the rows that arrive batch by batch, and what happens in between.

Everything is a frozen value, so that a case can be printed, repeated and made smaller.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.differential.column_kinds import KINDS

from sluice.publication.crash_points import CrashPoint

Row = Mapping[str, Any]

SourceKind = Literal["iceberg", "iceberg_continuous", "json", "csv", "parquet", "kafka"]
Shape = Literal["plain", "cte", "union", "shifted", "cte_union"]
Join = Literal["inner", "left", "semi", "anti"]
StepKind = Literal["none", "dedupe", "group", "window"]
Mode = Literal["append", "merge", "complete", "overwrite_partitions"]
PartitionField = tuple[str, str, int | None]
"""Column, transform, width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """A computed column `x`. kind: a type of Iceberg. sql: an expression over `r`, the same in both engines."""

    kind: str
    sql: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is done with the rows before they are written.

    by: the columns of a de-duplication or a grouping. size_seconds, slide_seconds: of windows.
    """

    kind: StepKind = "none"
    by: tuple[str, ...] = ()
    size_seconds: int = 0
    slide_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One table that is written.

    is_feed: whether the column `op` says what happens to a row. where: which rows it gets; empty for all of them.
    """

    mode: Mode
    keys: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()
    is_feed: bool = False
    partitioning: tuple[PartitionField, ...] = ()
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """The driver dies in a turn. point: where; unset: before the checkpoint has noted the turn's last batch."""

    turn: int
    point: CrashPoint | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evolution:
    """What changes before a turn.

    kind: a column is added to the table that is read, or all outputs get another partitioning.
    """

    turn: int
    kind: Literal["source_column", "partitioning"]
    partitioning: tuple[PartitionField, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One stream and its history.

    key: the kind of the column `k`. turns: the rows that arrive before each run. lookup: the rows of the static table.
    delay_seconds: of the watermark; unset without one. where: a filter of the rows; empty for none.
    malformed: how many records of each batch cannot be decoded.
    lookup_added: the rows that the static table gets after the crash, before the stream goes on.
    """

    seed: int
    source: SourceKind
    key: str
    delay_seconds: int | None
    shape: Shape
    where: str
    join: Join | None
    computed: Computed | None
    step: Step
    outputs: tuple[Output, ...]
    lookup: tuple[Row, ...]
    turns: tuple[tuple[Row, ...], ...]
    crash: Crash | None = None
    evolution: Evolution | None = None
    malformed: int = 0
    lookup_added: tuple[Row, ...] = ()

    @property
    def source_columns(self) -> dict[str, str]:
        """The columns that are read, with their types in Iceberg."""
        return {name: KINDS[kind].iceberg for name, kind in source_kinds(self.key).items()}

    @property
    def output_columns(self) -> dict[str, str]:
        """The columns of every output, with their types in Iceberg."""
        types = self._row_columns
        match self.step.kind:
            case "none":
                return types
            case "dedupe":
                return {name: types[name] for name in self.step.by}
            case "group":
                return {**{name: types[name] for name in self.step.by}, **AGGREGATES}
            case "window":
                windows = {"opened": "timestamptz", "closed": "timestamptz"}
                return {**windows, **{name: types[name] for name in self.step.by}, **AGGREGATES}

    @property
    def _row_columns(self) -> dict[str, str]:
        joined = {"label": "string"} if self.join in ("inner", "left") else {}
        computed = {"x": self.computed.kind} if self.computed is not None else {}
        return {**{name: kind for name, kind in self.source_columns.items() if name != "op"}, **joined, **computed}


AGGREGATES = {"seen": "long", "total": "long", "spent": "decimal(19, 2)", "lowest": "string", "newest": "long"}
"""The columns of an aggregation, with their types in Iceberg."""


def source_kinds(key: str) -> dict[str, str]:
    """The columns of a source: `n` numbers its rows."""
    return {
        "n": "long",
        "k": key,
        "k2": "string",
        "v": "long",
        "d": "decimal",
        "word": "string",
        "moment": "timestamptz",
        "wall": "timestamp",
        "day": "date",
        "op": "string",
    }
