"""A backfill of rows with text that is not UTF-8 gives what the stream gives of them.

Every test run rejects such rows in a stream, and stops it where it has no quarantine (`test_invalid_text.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.backfills import backfill, search_gaps
from tests.fixtures.workshop import Workshop

from sluice.errors import SluiceError

AT = datetime(2013, 1, 5, 3, tzinfo=UTC)
COLUMNS = {"id": "long", "v": "string", "at": "timestamptz"}


REJECTING = """
    def transform(r):
        rows = r.selectExpr("id", "CAST(value AS STRING) v", "at")
        return {"main": rows.where("id < 9"), "quarantine": rows.where("id = 9").selectExpr(
            "'own' reason", "CAST(NULL AS STRING) position", "v payload")}
"""


def declare(workshop: Workshop, **parts: Any) -> str:
    """A stream that casts bytes to text, and has read a valid row; its name."""
    stream = f"s{workshop.namespace}"
    source = workshop.declare_table("source", {"id": "long", "value": "binary", "at": "timestamptz"})
    workshop.declare_stream(
        stream,
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": workshop.declare_table("target", COLUMNS)}}},
        backfill={"column": "at", "interval": "day", "balance": "rows"},
        **parts,
    )
    rows = [{"id": 1, "value": b"ok", "at": AT}, {"id": 2, "value": b"\xff\xfe", "at": AT}]
    workshop.append("source", rows)
    return stream


@pytest.mark.full  # every run rejects them in a stream (`test_invalid_text.py`)
def test_such_rows_are_rejected_again(workshop: Workshop) -> None:
    stream = declare(workshop, python=REJECTING, quarantine=True)
    workshop.run(stream)
    quarantined = workshop.rows(workshop.stream(stream).declaration.quarantine_table)

    assert not search_gaps(workshop, stream).gaps
    result = backfill(workshop, stream, start="2013-01-05", end="2013-01-06")

    assert result.state == "unchanged"
    assert result.rows["quarantined"] == 1
    assert [row["id"] for row in workshop.rows("target")] == [1]
    assert workshop.rows(workshop.stream(stream).declaration.quarantine_table) == quarantined


@pytest.mark.full  # every run: in a stream (`test_invalid_text.py`)
def test_without_a_quarantine_they_are_refused_with_the_column(workshop: Workshop) -> None:
    stream = declare(workshop, sql="SELECT id, decode(value, 'ISO-8859-1') v, at FROM r")
    workshop.run(stream)
    (workshop.folder / f"{stream}.sql").write_text("SELECT id, CAST(value AS STRING) v, at FROM r")

    with pytest.raises(SluiceError, match="text that is not UTF-8 in v"):
        backfill(workshop, stream, start="2013-01-05", end="2013-01-06")

    assert [row["v"] for row in workshop.rows("target")] == ["ok", "\u00ff\u00fe"]
