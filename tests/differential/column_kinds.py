"""The types of columns that random streams use: names in Iceberg and DuckDB, and values that have caused trouble."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnKind:
    """A type. values: those that random rows have; few, so that keys meet again."""

    iceberg: str
    duckdb: str
    values: tuple[Any, ...]


def _utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[arg-type,misc]  # year to microsecond


KINDS: Mapping[str, ColumnKind] = {
    "long": ColumnKind(iceberg="long", duckdb="BIGINT", values=(-3, 0, 1, 7, 2**40)),
    "int": ColumnKind(iceberg="int", duckdb="INTEGER", values=(-1, 0, 5, 2**31 - 1)),
    "string": ColumnKind(iceberg="string", duckdb="VARCHAR", values=("", "a", "A", "ä", "a'b\"c\\", " pad ", "null")),
    "boolean": ColumnKind(iceberg="boolean", duckdb="BOOLEAN", values=(True, False)),
    "date": ColumnKind(
        iceberg="date",
        duckdb="DATE",
        values=(date(2026, 10, 25), date(2026, 11, 1), date(1970, 1, 1), date(1969, 12, 31), date(2024, 2, 29)),
    ),
    # Hours that are missing or come twice in Berlin and in St. John's, in local time and in UTC.
    "timestamp": ColumnKind(
        iceberg="timestamp",
        duckdb="TIMESTAMP",
        values=(
            datetime(2026, 3, 29, 2, 30),  # noqa: DTZ001  # a local time, as the column holds it
            datetime(2026, 10, 25, 2, 30),  # noqa: DTZ001
            datetime(2026, 3, 8, 2, 15, 0, 123456),  # noqa: DTZ001
            datetime(2026, 11, 1, 1, 30),  # noqa: DTZ001
            datetime(1969, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001
        ),
    ),
    "timestamptz": ColumnKind(
        iceberg="timestamptz",
        duckdb="TIMESTAMPTZ",
        values=(
            _utc(2026, 10, 25, 0, 30),
            _utc(2026, 10, 25, 1, 30),
            _utc(2026, 11, 1, 3, 45),
            _utc(2026, 11, 1, 4, 45),
            _utc(2026, 3, 29, 1, 0, 0, 1),
            _utc(1969, 12, 31, 23, 59, 59, 999999),
        ),
    ),
    "decimal": ColumnKind(
        iceberg="decimal(9, 2)",
        duckdb="DECIMAL(9, 2)",
        values=(Decimal("-1.50"), Decimal("0.00"), Decimal("1.00"), Decimal("9999999.99")),
    ),
    "binary": ColumnKind(iceberg="binary", duckdb="BLOB", values=(b"", b"a", b"\x00\xff")),
    "uuid": ColumnKind(
        iceberg="uuid",
        duckdb="VARCHAR",
        values=("00000000-0000-0000-0000-000000000001", "ffffffff-0000-4000-8000-00000000000a"),
    ),
}
"""By the names that cases use."""


def plain(value: Any) -> Any:
    """A value as it is compared, whichever engine returned it."""
    match value:
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC).isoformat()
        case UUID():
            return str(value)
        case bytearray() | memoryview():
            return bytes(value)
        case Decimal():
            return value.normalize() + 0
    return value


def json_value(value: Any) -> Any:
    """A value as a record or a file of JSON holds it, and as a counterexample is printed."""
    match value:
        case datetime() | date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode()
    return value
