"""Which files hold rows of an interval, from the bounds of their values."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import DateType, NestedField, PrimitiveType, TimestampType, TimestamptzType

from sluice.publication.interval_files import IntervalOfTable, is_whole, may_hold, value_bounds

INTERVAL = IntervalOfTable(column="at", start=datetime(2013, 1, 5, tzinfo=UTC), end=datetime(2013, 1, 8, tzinfo=UTC))
DAY_5 = 15710
MICROS_A_DAY = 86_400_000_000


def table_of(kind: PrimitiveType) -> Table:
    """A table with one column."""
    schema = Schema(NestedField(1, "at", kind, required=False))
    metadata = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://b/t", {})
    return Table(("n", "t"), metadata, "s3://b/m.json", PyArrowFileIO(), NoopCatalog("none"))


def file_of(kind: PrimitiveType, low: int | None, high: int | None, *, nulls: int | None = 0) -> DataFile:
    """A file whose values lie between two of Iceberg's numbers."""
    bounds: dict[str, Any] = {
        "lower_bounds": {} if low is None else {1: to_bytes(kind, low)},
        "upper_bounds": {} if high is None else {1: to_bytes(kind, high)},
        "null_value_counts": {} if nulls is None else {1: nulls},
    }
    return DataFile.from_args(_table_format_version=2, file_path="s3://b/f", record_count=1, **bounds)


@pytest.mark.parametrize("kind", [DateType(), TimestampType(), TimestamptzType()], ids=str)
@pytest.mark.parametrize(
    ("first", "last", "nulls", "whole", "some"),
    [
        (0, 2, 0, True, True),
        (0, 0, 0, True, True),
        (-1, 2, 0, False, True),
        (0, 3, 0, False, True),
        (0, 2, 1, False, True),
        (0, 2, None, False, True),
        (3, 9, 0, False, False),
        (-9, -1, 0, False, False),
        (None, None, 0, False, True),
    ],
)
def test_bounds_decide(
    kind: PrimitiveType, first: int | None, last: int | None, nulls: int | None, whole: bool, some: bool
) -> None:
    unit = 1 if isinstance(kind, DateType) else MICROS_A_DAY
    low, high = (None if day is None else (DAY_5 + day) * unit for day in (first, last))
    table, file = table_of(kind), file_of(kind, low, high, nulls=nulls)

    assert (is_whole(table, INTERVAL, file), may_hold(table, INTERVAL, file)) == (whole, some)
    assert value_bounds(table, "at", [file]) == (None if low is None or high is None else (low, high))
