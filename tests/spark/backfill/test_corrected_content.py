"""A correction that moves a value into another column, or only makes it null or empty, is a change like any other."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.backfills import COLUMNS, DAYS, backfill, delete_days, row, rows_of_days, search_gaps
from tests.fixtures.workshop import Workshop

from sluice.errors import VerificationError
from sluice.ledger.backfill_attempts import BackfillState

FORMS = {"first": "string", "second": "string", "words": "list<string>", "notes": "map<string, string>"}

FALSE = {"first": "word", "second": "cast(null AS string)", "words": "array(word, null)", "notes": "map('a', word)"}


def transformation(values: dict[str, str]) -> str:
    """The SQL of the stream."""
    return f"SELECT id, at, {', '.join(f'{value} AS {name}' for name, value in values.items())} FROM records"  # noqa: S608  # of this module


@pytest.mark.parametrize(
    "corrected",
    [
        pytest.param({"first": "cast(null AS string)", "second": "word"}, id="other column", marks=pytest.mark.full),
        pytest.param({"words": "array(word)"}, id="a null less"),
        pytest.param({"notes": "map('b', word)"}, id="an entry of a map", marks=pytest.mark.full),
    ],
)
def test_a_correction_is_found_and_published(workshop: Workshop, corrected: dict[str, str]) -> None:
    stream = f"s{workshop.namespace}"
    parts: dict[str, Any] = {
        "inputs": {"records": {"stream": {"iceberg": {"table": workshop.declare_table("source", COLUMNS)}}}},
        "outputs": {"copies": {"iceberg": {"table": workshop.declare_table("target", COLUMNS | FORMS)}}},
        "backfill": {"column": "at", "balance": "rows"},
    }
    false, true = FALSE | {"word": "word"}, FALSE | {"word": "word"} | corrected
    workshop.declare_stream(stream, sql=transformation(false), **parts)
    workshop.append("source", [*rows_of_days(), row(99, day=DAYS)])
    workshop.run(stream)
    assert search_gaps(workshop, stream).gaps == ()
    workshop.declare_stream(stream, sql=transformation(true), **parts)

    gaps = [(gap.interval.start.day, gap.expected_rows, gap.held_rows) for gap in search_gaps(workshop, stream).gaps]
    result = backfill(workshop, stream)

    assert gaps[:3] == [(1, 3, 3), (2, 3, 3), (3, 3, 3)]
    assert (result.state, result.rows["replaced"]) == (BackfillState.PUBLISHED, 9)
    assert backfill(workshop, stream).state is BackfillState.UNCHANGED


@pytest.mark.full
def test_rows_that_lose_their_time_are_not_lost(workshop: Workshop) -> None:
    """No interval takes a row without a time. One that the stream has published without a time does not matter."""
    stream = f"s{workshop.namespace}"
    parts: dict[str, Any] = {
        "inputs": {"records": {"stream": {"iceberg": {"table": workshop.declare_table("source", COLUMNS)}}}},
        "outputs": {"copies": {"iceberg": {"table": workshop.declare_table("target", COLUMNS)}}},
        "backfill": {"column": "at", "balance": "rows"},
    }
    sql = "SELECT id, upper(word) AS word, {} AS at FROM records"
    workshop.declare_stream(stream, sql=sql.format("if(id = 10, null, at)"), **parts)
    workshop.append("source", [*rows_of_days(), row(99, day=DAYS)])
    workshop.run(stream)
    delete_days(workshop, "target")
    assert backfill(workshop, stream).rows["without_time"] == 1
    held = workshop.rows("target")
    workshop.declare_stream(stream, sql=sql.format("if(id IN (10, 51), null, at)"), **parts)

    with pytest.raises(
        VerificationError, match=r"^1 rows of the result have no at and are not in .* be lost\. Nothing"
    ):
        backfill(workshop, stream)

    assert workshop.rows("target") == held
