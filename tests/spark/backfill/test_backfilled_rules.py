"""A backfill judges rows by the rules of the stream and of its table, as the stream itself does."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.fixtures.backfills import backfill
from tests.fixtures.workshop import Workshop

from sluice.errors import VerificationError

AT = datetime(2013, 1, 5, 3, tzinfo=UTC)
COLUMNS = {"id": "long", "price": "long", "at": "timestamptz"}


def declare_target(workshop: Workshop, on_failure: str) -> str:
    rule = {"name": "price_is_positive", "expression": "price > 0", "on_failure": on_failure}
    return workshop.declare_table("target", COLUMNS, rules=[rule])


def test_the_same_rows_are_rejected_and_a_batch_that_fails_replaces_nothing(workshop: Workshop) -> None:
    stream = f"s{workshop.namespace}"
    source, target = workshop.declare_table("source", COLUMNS), declare_target(workshop, "quarantine")
    workshop.declare_stream(
        stream,
        python="def transform(r):\n    return r",
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": target}}},
        backfill={"column": "at", "interval": "day", "balance": "rows"},
        quarantine=True,
    )
    workshop.append("source", [{"id": 1, "price": 5, "at": AT}, {"id": 2, "price": -1, "at": AT}])
    workshop.run(stream)
    before = workshop.rows("target"), workshop.rows(f"quarantine.{stream}")
    assert [len(rows) for rows in before] == [1, 1]

    result = backfill(workshop, stream, start="2013-01-05", end="2013-01-06")

    assert (result.state, result.rows["quarantined"]) == ("unchanged", 1)
    declare_target(workshop, "fail")
    (workshop.folder / f"{stream}.py").write_text(
        "def transform(r):\n    return {'main': r, 'quarantine': r.where('id > 9').selectExpr("
        '"\'x\' reason", "CAST(NULL AS STRING) position", "\'\' payload")}'
    )
    with pytest.raises(VerificationError, match="break price_is_positive by 1 of 2 rows of main"):
        backfill(workshop, stream, start="2013-01-05", end="2013-01-06")
    assert before == (workshop.rows("target"), workshop.rows(f"quarantine.{stream}"))
