"""Which days the form of a backfill offers: from the oldest partition of a real table to the last closed one."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.pages.job_plans import days_of, first_partition
from sluice.pages.page_templates import render

NOON = datetime(2026, 11, 22, 12, 30, tzinfo=UTC)
FIELDS: list[pa.Field[Any]] = [pa.field("at", pa.timestamp("us", tz="UTC")), pa.field("on", pa.date32())]
SCHEMA = pa.schema(FIELDS)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """pyiceberg's own catalog in a file."""
    opened = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    opened.create_namespace("silver")
    yield opened
    opened.close()


def backfilled(folder: Path, *, interval: str = "day", margin: str = "") -> LoadedStream:
    """A stream that declares a backfill."""
    write_table(folder, "bronze.flights")
    write_table(folder, "silver.flights")
    reads = f", reads: {{rows: at}}, margin: {margin}" if margin else ""
    more = f"backfill: {{column: at, interval: {interval}{reads}}}\n"
    write_continuous_stream(folder, "flights", writes="silver.flights", more=more)
    declarations = load_declarations(folder)
    assert declarations.broken == {}
    return declarations.stream("flights")


@pytest.mark.parametrize(
    ("column", "transform", "begins"),
    [
        ("at", "day", datetime(1969, 12, 30, tzinfo=UTC)),
        ("at", "hour", datetime(1969, 12, 30, 22, tzinfo=UTC)),
        ("at", "month", datetime(1969, 12, 1, tzinfo=UTC)),
        ("at", "year", datetime(1969, 1, 1, tzinfo=UTC)),
        ("at", "identity", datetime(1969, 12, 30, 22, 5, tzinfo=UTC)),
        ("on", "identity", datetime(2013, 1, 5, tzinfo=UTC)),
        ("on", "month", datetime(2013, 1, 1, tzinfo=UTC)),
        ("on", "bucket[4]", None),
    ],
)
def test_the_oldest_partition_is_found_without_a_look_at_files(
    catalog: Catalog, column: str, transform: str, begins: datetime | None
) -> None:
    table = catalog.create_table("silver.flights", SCHEMA)
    with table.update_spec() as update:
        update.add_field(column, transform, "part")
    assert first_partition(table, column) is None, "no row yet"
    times = [datetime(2013, 5, 1, 3, tzinfo=UTC), datetime(1969, 12, 30, 22, 5, tzinfo=UTC)]
    for time, day in zip(times, [date(2013, 5, 1), date(2013, 1, 5)], strict=True):
        table.append(pa.Table.from_pylist([{"at": time, "on": day}], schema=SCHEMA))

    assert first_partition(table, column) == begins
    assert first_partition(None, column) is None
    assert first_partition(table, "on" if column == "at" else "at") is None


@pytest.mark.parametrize(
    ("interval", "margin", "watermark", "last", "end"),
    [
        ("day", "", NOON, "2026-11-21", "2026-11-22"),
        ("day", "1 day", NOON, "2026-11-20", "2026-11-21"),
        ("day", "", None, "2026-11-21", "2026-11-22"),
        ("hour", "", NOON, "2026-11-22T11:00", "2026-11-22T12:00"),
        ("month", "", NOON, "2026-10-01", "2026-11-01"),
    ],
)
def test_the_last_day_is_the_one_that_the_watermark_has_closed(
    tmp_path: Path, interval: str, margin: str, watermark: datetime | None, last: str, end: str
) -> None:
    stream = backfilled(tmp_path, interval=interval, margin=margin)

    days = days_of(stream, first_row_at=datetime(2013, 1, 5, 6, tzinfo=UTC), watermark=watermark, now=NOON)

    assert (days.last, days.end, days.by_watermark) == (last, end, watermark is not None)
    assert days.first == {"day": "2013-01-05", "hour": "2013-01-05T06:00", "month": "2013-01-01"}[interval]
    page = form_of(stream, days)
    assert f'name="start" value="{last}"' in page
    assert f'name="end" value="{end}"' in page
    assert f"{days.first}, the oldest partition" in page


def form_of(stream: LoadedStream, days: Any) -> str:
    """The form as HTML."""
    values = {"base": "/sluice", "stream": stream.name, "backfill": stream.declaration.backfill, "days": days}
    return render("backfill", values)


def test_where_the_first_day_is_unknown_the_form_says_so(tmp_path: Path) -> None:
    stream = backfilled(tmp_path)

    page = form_of(stream, days_of(stream, first_row_at=None, watermark=None, now=NOON))

    assert "not known from the partitions of the table" in page
    assert "2026-11-21: the newest that is over" in page
