"""What the manifests of a table say about its columns, and one sample of its values; without a JVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
)

from sluice.errors import LakehouseError
from sluice.tables.catalog import catalog_refusals

_NUMBERS = (IntegerType, LongType, FloatType, DoubleType)
MOST_VALUES = 12
"""A column with more distinct values in the sample is no set."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnFacts:
    """What is known of a column.

    rows: of the table. nulls: of all rows; none when a file does not count them.
    lowest, highest: of numbers, from the bounds of all files; none when a file has none.
    sampled: how many values the sample has. values: the distinct ones of a text column; empty when they are many.
    """

    name: str
    rows: int
    nulls: int | None
    lowest: int | float | None = None
    highest: int | float | None = None
    sampled: int = 0
    values: tuple[str, ...] = ()


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
    values: tuple[str, ...] = ()
    column = sample[field.name].drop_null() if sample is not None else pa.chunked_array([], pa.string())
    if isinstance(field.field_type, StringType) and len(column):
        distinct = pc.unique(column)
        values = tuple(sorted(map(str, distinct.to_pylist()))) if len(distinct) <= MOST_VALUES else ()
    return ColumnFacts(
        name=field.name,
        rows=sum(file.record_count for file in files),
        nulls=None if None in nulls else sum(one for one in nulls if one is not None),
        lowest=lowest,
        highest=highest,
        sampled=len(column),
        values=values,
    )


def _bounds_of(field: NestedField, files: Sequence[DataFile]) -> tuple[Any, Any]:
    """The bounds of a number over all files; a file in which all values are null has none, and needs none."""
    kind = field.field_type
    if not isinstance(kind, _NUMBERS) or not isinstance(kind, PrimitiveType):
        return None, None
    filled = [file for file in files if (file.null_value_counts or {}).get(field.field_id) != file.record_count]
    low = [(file.lower_bounds or {}).get(field.field_id) for file in filled]
    high = [(file.upper_bounds or {}).get(field.field_id) for file in filled]
    if not filled or None in low or None in high:
        return None, None
    return (
        min(from_bytes(kind, one) for one in low if one is not None),
        max(from_bytes(kind, one) for one in high if one is not None),
    )
