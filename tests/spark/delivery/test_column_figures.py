"""A published batch leaves the nulls and bounds of its columns in the ledger, as they are in its rows."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from sqlalchemy import text
from tests.fixtures.refreshes import refresh
from tests.fixtures.streams_of_tables import dying_at, reading, writing
from tests.fixtures.workshop import Workshop

from sluice.ledger.hourly_figures import ColumnFigures, read_column_hours
from sluice.publication.crash_points import CrashPoint

COLUMNS = {
    "id": "long",
    "word": "string",
    "price": "decimal(9, 2)",
    "ratio": "double",
    "sent_at": "timestamptz",
    "day": "date",
    "secret": "long",
}
AT = datetime(2026, 11, 28, 6, 30, tzinfo=UTC)
ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "word": None if number % 3 == 0 else "w",
        "price": None if number % 4 == 0 else Decimal(number * number - 30),
        "ratio": number / 7,
        "sent_at": AT - timedelta(days=number**4),
        "day": date(1970, 1, 1) if number == 5 else None,
        "secret": 4711,
    }
    for number in range(1, 15)
]


@pytest.fixture
def stream_name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


def declare(workshop: Workshop, name: str, **output: Any) -> None:
    """A stream whose table has a column of each kind, behind another stream that masks one of them."""
    origin, source, target = (workshop.declare_table(one, COLUMNS) for one in ("origin", "source", "target"))
    copies = "def transform(records):\n    return records"
    masking: dict[str, Any] = {"quarantine": True, "masked_columns": ["secret"]}
    workshop.declare_stream(f"{name}_first", python=copies, inputs=reading(origin), outputs=writing(source), **masking)
    workshop.declare_stream(name, python=copies, inputs=reading(source), outputs=writing(target, **output))


def recorded_figures(workshop: Workshop, name: str) -> Mapping[str, ColumnFigures]:
    """What the ledger has of the stream's output, as if the hour were over; nothing without a row."""
    with workshop.ledger.transaction() as connection:
        back = text("UPDATE sluice.hourly_columns SET hour = hour - interval '1 hour' WHERE stream = :stream")
        connection.execute(back, {"stream": name})
    hours = read_column_hours(workshop.ledger, [name])
    assert {one.output for one in hours} <= {"copies"}
    return {column: figures for one in hours for column, figures in one.figures.items()}


def figures_in(rows: pa.Table) -> Mapping[str, ColumnFigures]:
    """What PyArrow finds in rows."""
    return {
        name: ColumnFigures(
            rows=len(rows),
            nulls=rows[name].null_count,
            lowest=_bound(rows[name], "min"),
            highest=_bound(rows[name], "max"),
        )
        for name in rows.column_names
    }


def _bound(values: Any, side: str) -> float | None:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return None
    bounds: Any = pc.min_max(values).as_py()
    found = bounds[side]
    if isinstance(found, datetime):
        return found.timestamp()
    return float((found - date(1970, 1, 1)).days * 86_400) if isinstance(found, date) else float(found)


def test_the_figures_of_batches_are_those_of_their_rows_without_bounds_of_masked_columns(
    workshop: Workshop, stream_name: str
) -> None:
    declare(workshop, stream_name)
    for rows in (ROWS[:9], ROWS[9:]):
        workshop.append("source", rows)
        workshop.run(stream_name, is_recorded=True)

    found = dict(recorded_figures(workshop, stream_name))

    secret = found.pop("secret")
    assert secret == ColumnFigures(rows=14, nulls=0)
    expected = figures_in(workshop.table("target").scan().to_arrow().drop_columns(["secret"]))
    assert {name: (one.rows, one.nulls) for name, one in found.items()} == {
        name: (one.rows, one.nulls) for name, one in expected.items()
    }
    for name, one in expected.items():
        assert (found[name].lowest, found[name].highest) == pytest.approx((one.lowest, one.highest), abs=1e-5), name
    with workshop.ledger.transaction() as connection:
        stored = connection.execute(text("SELECT figures::text FROM sluice.hourly_columns")).scalars().all()
    assert "4711" not in str(stored)


@pytest.mark.full  # every run counts two batches once
def test_a_batch_that_an_earlier_driver_staged_counts_once(workshop: Workshop, stream_name: str) -> None:
    declare(workshop, stream_name)
    workshop.append("source", ROWS[:9])
    with pytest.raises(Exception, match="the driver dies here"):
        workshop.run(stream_name, is_recorded=True, reached=dying_at(CrashPoint.STAGED))
    workshop.append("source", ROWS[9:])

    workshop.run(stream_name, is_recorded=True)

    assert recorded_figures(workshop, stream_name)["price"].rows == 14


@pytest.mark.full  # it costs figures of a page, and no row
def test_a_merge_has_no_figures(workshop: Workshop, stream_name: str) -> None:
    declare(workshop, stream_name, mode="merge", keys=["id"])
    workshop.append("source", ROWS)

    workshop.run(stream_name, is_recorded=True)

    assert len(workshop.rows("target")) == 14
    assert recorded_figures(workshop, stream_name) == {}


@pytest.mark.full  # every run: none of a masked column, above
def test_the_shadow_of_a_refresh_keeps_no_figures(workshop: Workshop, stream_name: str) -> None:
    """It writes a table that no stream declares, of which nothing says what is masked."""
    declare(workshop, stream_name)
    workshop.append("source", [{**row, "secret": 918273} for row in ROWS])
    workshop.run_supervised(stream_name)

    refresh(workshop, stream_name)

    with workshop.ledger.transaction() as connection:
        found = connection.execute(text("SELECT stream, figures::text FROM sluice.hourly_columns")).all()
    own = {one.stream: one.figures for one in found if stream_name in one.stream}
    assert list(own) == [stream_name]
    assert "918273" not in own[stream_name]
