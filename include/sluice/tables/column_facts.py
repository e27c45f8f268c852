"""What the manifests of a table say about its columns, and one sample of its values; without a JVM.

The figures of a batch come from the metrics that its staged files carry in their manifests anyway.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)
from pyiceberg.utils.datetime import days_to_date, micros_to_timestamp, micros_to_timestamptz

from sluice.errors import LakehouseError
from sluice.ledger.hourly_figures import ColumnFigures
from sluice.tables.catalog import catalog_refusals

_NUMBERS = (IntegerType, LongType, FloatType, DoubleType)
_TIMES: Mapping[type, Callable[[int], date]] = {
    DateType: days_to_date,
    TimestampType: micros_to_timestamp,
    TimestamptzType: micros_to_timestamptz,
}
_IN_SETS = (StringType, IntegerType, LongType)
_CLASSES = (("[A-Z]", "A", "Z"), ("[a-z]", "a", "z"), ("[0-9]", "0", "9"))

_MOST_RUNS = 16
"""A text of more runs of one kind of character is prose, not a code."""

MOST_VALUES = 12
"""A column with more distinct values in the sample is no set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """What is known of a column.

    rows: of the table. nulls: of all rows; none when a file does not count them.
    lowest, highest: of numbers, dates and times, from the bounds of all files; none when a file has none.
    sampled: how many values the sample has. values: the distinct ones of texts and whole numbers; empty when they are
    many.
    shortest, longest: of sampled texts, in characters. pattern: a regular expression that all of them meet; empty
    without one.
    """

    name: str
    rows: int
    nulls: int | None
    lowest: int | float | date | None = None
    highest: int | float | date | None = None
    sampled: int = 0
    values: tuple[str, ...] | tuple[int, ...] = ()
    shortest: int | None = None
    longest: int | None = None
    pattern: str = ""


def read_column_facts(table: Table, *, sample_rows: int) -> tuple[ColumnFacts, ...]:
    """Read the bounds and null counts of all files, and a sample of rows from a few of them.

    Parameters
    ----------
    table: freshly loaded. sample_rows: at most so many rows are read.

    Raises
    ------
    LakehouseError: when the table has delete files, which no manifest applies, or cannot be read.
    """
    name = ".".join(table.name())
    with catalog_refusals(f"read the manifests of {name}"):
        tasks = list(table.scan().plan_files())
        if any(task.delete_files for task in tasks):
            raise LakehouseError(
                f"{name} has delete files, so its bounds are those of rows that are deleted too.",
                next_step=f"Compact it first: `sluice table maintain {name}`.",
            )
        files = [task.file for task in tasks]
        sample = table.scan(limit=sample_rows).to_arrow() if files else None
    return tuple(_facts_of(field, files, sample) for field in table.schema().fields if field.field_type.is_primitive)


def _facts_of(field: NestedField, files: Sequence[DataFile], sample: pa.Table | None) -> ColumnFacts:
    nulls = [(file.null_value_counts or {}).get(field.field_id) for file in files]
    lowest, highest = _bounds_of(field, files)
    column = sample[field.name].drop_null() if sample is not None else pa.chunked_array([], pa.string())
    return ColumnFacts(
        name=field.name,
        rows=sum(file.record_count for file in files),
        nulls=None if None in nulls else sum(one for one in nulls if one is not None),
        lowest=lowest,
        highest=highest,
        sampled=len(column),
        **_sampled(field, column),
    )


def _sampled(field: NestedField, column: pa.ChunkedArray[Any]) -> dict[str, Any]:
    """What the values of the sample have in common. column: without nulls."""
    if not isinstance(field.field_type, _IN_SETS) or not len(column):
        return {}
    distinct: list[Any] = pc.unique(column).to_pylist()
    values = tuple(sorted(distinct)) if len(distinct) <= MOST_VALUES else ()
    if not isinstance(field.field_type, StringType):
        return {"values": values}
    lengths = [len(text) for text in distinct]
    return {
        "values": values,
        "shortest": min(lengths),
        "longest": max(lengths),
        "pattern": pattern_of(distinct),
    }


def _bounds_of(field: NestedField, files: Sequence[DataFile]) -> tuple[Any, Any]:
    """The bounds of a number or time over all files; none where one is not known."""
    kind = field.field_type
    if not isinstance(kind, (*_NUMBERS, *_TIMES)) or not isinstance(kind, PrimitiveType):
        return None, None
    lowest, highest = stored_bounds(kind, field.field_id, files)
    as_time = _TIMES.get(type(kind))
    return (lowest, highest) if as_time is None or lowest is None else (as_time(lowest), as_time(highest))


def stored_bounds(kind: PrimitiveType, field_id: int, files: Sequence[DataFile]) -> tuple[Any, Any]:
    """The lowest and highest value of a column over all files, as Iceberg stores them: a date in days, a time in
    microseconds. None where a file has no bounds; one in which all values are null needs none.
    """
    filled = [file for file in files if (file.null_value_counts or {}).get(field_id) != file.record_count]
    low = [(file.lower_bounds or {}).get(field_id) for file in filled]
    high = [(file.upper_bounds or {}).get(field_id) for file in filled]
    if not filled or None in low or None in high:
        return None, None
    lowest = min(from_bytes(kind, one) for one in low if one is not None)
    return lowest, max(from_bytes(kind, one) for one in high if one is not None)


def pattern_of(texts: Iterable[str]) -> str:
    """The pattern of texts that have the same runs of capital letters, small letters, digits and other characters in
    the same order, such as `^[A-Z]{2}-[0-9]{1,4}$`; empty where they have not, and where nothing but one text is meant.

    Letters and digits are those of ASCII; of the other characters, each is that very character.
    """
    kinds: list[str] | None = None
    shortest: list[int] = []
    longest: list[int] = []
    for text in texts:
        runs = [(kind, sum(1 for _ in run)) for kind, run in groupby(map(_class_of, text))]
        lengths = [length for _, length in runs]
        if kinds is None:
            kinds, shortest, longest = [kind for kind, _ in runs], lengths, list(lengths)
        if [kind for kind, _ in runs] != kinds or len(runs) > _MOST_RUNS:
            return ""
        shortest = list(map(min, shortest, lengths))
        longest = list(map(max, longest, lengths))
    if not kinds or not any(kind == name for kind in kinds for name, _, _ in _CLASSES):
        return ""
    runs_of_all = zip(kinds, shortest, longest, strict=True)
    return "^" + "".join(kind + _times(low, high) for kind, low, high in runs_of_all) + "$"


def _class_of(character: str) -> str:
    return next((name for name, first, last in _CLASSES if first <= character <= last), re.escape(character))


def _times(low: int, high: int) -> str:
    if low == high:
        return "" if low == 1 else f"{{{low}}}"
    return f"{{{low},{high}}}"


_BOUNDED = (IntegerType, LongType, FloatType, DoubleType, DecimalType)
_SECONDS: Mapping[type, float] = {DateType: 86_400.0, TimestampType: 1e-6, TimestamptzType: 1e-6}
"""How many seconds one of the stored numbers of a date or time is."""

_LARGEST = 1e300
"""Stands for what is infinite, which JSON cannot say."""


def figures_of(
    files: Sequence[DataFile], schema: Schema, *, masked: Collection[str] | None
) -> Mapping[str, ColumnFigures]:
    """The figures of the columns, by name. A column that a file does not count has none.

    Parameters
    ----------
    files: of one batch. schema: of their table.
    masked: the columns in lower case whose values are not shown, so that they have no bounds; unset where that is not
        known: then no column has.
    """
    if not files:
        return {}
    found = (_figures_of(field, files, masked) for field in schema.fields if field.field_type.is_primitive)
    return {name: figures for each in found for name, figures in each}


def _figures_of(
    field: NestedField, files: Sequence[DataFile], masked: Collection[str] | None
) -> Iterator[tuple[str, ColumnFigures]]:
    nulls = [(file.null_value_counts or {}).get(field.field_id) for file in files]
    counted = [one for one in nulls if one is not None]
    if len(counted) < len(files):
        return
    rows = sum(file.record_count for file in files)
    is_shown = masked is not None and field.name.lower() not in masked
    lowest, highest = _figure_bounds(field, files) if is_shown else (None, None)
    yield field.name, ColumnFigures(rows=rows, nulls=sum(counted), lowest=lowest, highest=highest)


def _figure_bounds(field: NestedField, files: Sequence[DataFile]) -> tuple[float | None, float | None]:
    kind = field.field_type
    if not isinstance(kind, (*_BOUNDED, *_SECONDS)) or not isinstance(kind, PrimitiveType):
        return None, None
    unit = _SECONDS.get(type(kind), 1.0)
    lowest, highest = stored_bounds(kind, field.field_id, files)
    return _number(lowest, unit), _number(highest, unit)


def _number(value: Any, unit: float) -> float | None:
    """A stored bound as a number that JSON has; none where it is no number."""
    if value is None or math.isnan(number := float(value) * unit):
        return None
    return max(-_LARGEST, min(number, _LARGEST))
