"""Names partitions of a table for Iceberg's planner: a filter that selects their files and no others. Pure.

A filter on the column of a partition by the transform of that partition is projected to the partition's own value, so
it selects whole partitions exactly. That holds for files of the table's present spec alone: of a file of an earlier
spec the planner knows only whether it may hold such rows.

Source: https://iceberg.apache.org/spec/#scan-planning, org.apache.iceberg.expressions.Projections and
org.apache.iceberg.transforms.ProjectionUtil.projectTransformPredicate.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote_plus

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

Condition = Mapping[str, Any]
"""A filter as Iceberg's `ExpressionParser` reads it."""

_WHOLE_NUMBERS = (HourTransform, MonthTransform, YearTransform, BucketTransform)
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001  # a timestamp without a zone


def _day(days: int) -> str:
    return (date(1970, 1, 1) + timedelta(days=days)).isoformat()


def _timestamp(micros: int) -> str:
    return (_EPOCH + timedelta(microseconds=micros)).isoformat(timespec="microseconds")


_SPELLED: Mapping[type[IcebergType], Callable[[Any], Any]] = {
    BooleanType: bool,
    IntegerType: int,
    LongType: int,
    StringType: str,
    DateType: _day,
    TimestampType: _timestamp,
    TimestamptzType: lambda micros: f"{_timestamp(micros)}+00:00",
    DecimalType: lambda value: format(Decimal(value), "f"),
}
"""How Iceberg's JSON has a value of each type. A float is not among them: NaN equals no value, and 0.0 equals -0.0.
Source: https://iceberg.apache.org/spec/#json-single-value-serialization"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionColumn:
    """A field of a partition spec: its column, its transform as Iceberg writes it, and the type of its values.

    transform: `identity`, `day`, `bucket[8]` and so on. kind: unset where no filter can name a value of it exactly.
    """

    column: str
    transform: str
    kind: type[IcebergType] | None

    def condition(self, value: object) -> Condition | None:
        """The filter for one value; none where it cannot be named."""
        if self.kind is None:
            return None
        term: object = self.column
        if self.transform != "identity":
            term = {"type": "transform", "transform": self.transform, "term": self.column}
        if value is None:
            return {"type": "is-null", "term": term}
        try:
            return {"type": "eq", "term": term, "value": _SPELLED[self.kind](value)}
        except (OverflowError, ValueError):  # a day before the year 1 or after 9999
            return None


def partition_columns(metadata: TableMetadata) -> tuple[PartitionColumn, ...]:
    """The fields of a table's partition spec, in its order; empty for a table without partitions."""
    schema, spec = metadata.schema(), metadata.spec()
    found = []
    for field, kind in zip(spec.fields, spec.partition_type(schema).fields, strict=True):
        known = _kind(field.transform, kind.field_type)
        name = schema.find_column_name(field.source_id) or ""
        found.append(PartitionColumn(column=name, transform=str(field.transform), kind=known if name else None))
    return tuple(found)


def _kind(transform: object, kind: IcebergType) -> type[IcebergType] | None:
    if isinstance(transform, DayTransform):
        return DateType
    if isinstance(transform, _WHOLE_NUMBERS):
        return IntegerType
    is_exact = isinstance(transform, (IdentityTransform, TruncateTransform)) and type(kind) in _SPELLED
    return type(kind) if is_exact else None


def path_of(spec: PartitionSpec, partition: Record, schema: Schema) -> str:
    """The values of a partition as a path. One that pyiceberg cannot spell, such as a day after 9999, is its number."""
    try:
        return spec.partition_to_path(partition, schema)
    except (OverflowError, ValueError):
        pairs = [(field.name, str(partition[place])) for place, field in enumerate(spec.fields)]
        return "/".join(f"{quote_plus(name, safe='')}={quote_plus(value, safe='')}" for name, value in pairs)


def condition_of(columns: Sequence[PartitionColumn], partition: Record) -> Condition | None:
    """The filter that selects one partition of the present spec; none where no filter can.

    Parameters
    ----------
    columns: of the spec.
    partition: the values, as a manifest has them.
    """
    conditions = [
        one.condition(partition[place]) for place, one in enumerate(columns) if one.transform != str(VoidTransform())
    ]
    named = [one for one in conditions if one is not None]
    return _all_of(named) if named and len(named) == len(conditions) else None


def filter_of(columns: Sequence[PartitionColumn], partitions: Collection[Record]) -> str | None:
    """The filter, as JSON, that selects the partitions of one path; empty without partition columns, unset where one of
    them cannot be named. A null and the text `null` have the same path."""
    found = [condition_of(columns, one) for one in partitions]
    named = sorted(json.dumps(one) for one in found if one is not None)
    if all(one.transform == str(VoidTransform()) for one in columns):
        return ""
    return any_of(named) if named and len(named) == len(found) else None


def any_of(filters: Sequence[str]) -> str:
    """The filter that selects what any of some filters does, as JSON: a balanced tree, because a parser of JSON reads
    only so many levels."""
    if len(filters) == 1:
        return filters[0]
    half = len(filters) // 2
    return f'{{"type": "or", "left": {any_of(filters[:half])}, "right": {any_of(filters[half:])}}}'


def _all_of(conditions: Sequence[Condition]) -> Condition:
    first, *others = conditions
    return {"type": "and", "left": first, "right": _all_of(others)} if others else first
