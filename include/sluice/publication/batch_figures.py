"""The nulls and bounds of a batch's columns, by the metrics that its staged files carry in their manifests anyway."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    TimestampType,
    TimestamptzType,
)

from sluice.ledger.hourly_figures import ColumnFigures
from sluice.tables.column_facts import stored_bounds

_NUMBERS = (IntegerType, LongType, FloatType, DoubleType, DecimalType)
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
    lowest, highest = _bounds_of(field, files) if is_shown else (None, None)
    yield field.name, ColumnFigures(rows=rows, nulls=sum(counted), lowest=lowest, highest=highest)


def _bounds_of(field: NestedField, files: Sequence[DataFile]) -> tuple[float | None, float | None]:
    kind = field.field_type
    if not isinstance(kind, (*_NUMBERS, *_SECONDS)) or not isinstance(kind, PrimitiveType):
        return None, None
    unit = _SECONDS.get(type(kind), 1.0)
    lowest, highest = stored_bounds(kind, field.field_id, files)
    return _number(lowest, unit), _number(highest, unit)


def _number(value: Any, unit: float) -> float | None:
    """A stored bound as a number that JSON has; none where it is no number."""
    if value is None or math.isnan(number := float(value) * unit):
        return None
    return max(-_LARGEST, min(number, _LARGEST))
