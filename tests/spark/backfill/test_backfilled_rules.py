"""A backfill judges rows by the rules of the stream and of its table, as the stream itself does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.fixtures.backfills import backfill, backfill_run
from tests.fixtures.workshop import Workshop

from sluice.backfill.replayable_rows import Selection
from sluice.errors import VerificationError
from sluice_spark.backfill.joint_run import JointRun
from sluice_spark.backfill.replay_run import ReplayRun

AT = datetime(2013, 1, 5, 3, tzinfo=UTC)
COLUMNS = {"id": "long", "price": "long", "at": "timestamptz"}


def declare_target(workshop: Workshop, on_failure: str) -> str:
    rule = {"name": "price_is_positive", "expression": "price > 0", "on_failure": on_failure}
    return workshop.declare_table("target", COLUMNS, rules=[rule])


@pytest.mark.full
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


def test_days_that_are_computed_together_are_judged_too(workshop: Workshop) -> None:
    stream = f"s{workshop.namespace}"
    source = workshop.declare_table("source", COLUMNS)
    by_day = {"column": "at", "transform": "day"}
    target = workshop.declare_table("target", COLUMNS, partitioning=[by_day])
    workshop.declare_stream(
        stream,
        python="def transform(r):\n    return r",
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": target}}},
        backfill={"column": "at", "interval": "day", "balance": "rows", "at_once": 2},
    )
    rows = [{"id": 1, "price": 5, "at": AT}, {"id": 2, "price": -1, "at": AT + timedelta(days=1)}]
    workshop.append("source", rows)
    workshop.run(stream)
    workshop.table("target").delete("id > 0")
    rule = {"name": "price_is_positive", "expression": "price > 0", "on_failure": "hold"}
    workshop.declare_table("target", COLUMNS, partitioning=[by_day], rules=[rule])
    days = [backfill_run(workshop, stream, start=f"2013-01-0{day}", end=f"2013-01-0{day + 1}") for day in (5, 6)]

    assert JointRun(runs=tuple(days)).work() == {}, "each is computed alone, and says why it fails"

    assert workshop.rows("target") == []


@pytest.mark.full  # every run judges days
def test_a_replay_is_judged_too(workshop: Workshop) -> None:
    stream, columns = f"s{workshop.namespace}", {"id": "long", "price": "long"}
    source = workshop.declare_table("source", columns)
    rules = [{"name": "price_is_positive", "expression": "price > 0", "on_failure": "hold"}]
    target = workshop.declare_table("target", columns, rules=rules)

    def declare(limit: int) -> None:
        workshop.declare_stream(
            stream,
            python=f"""
                from pyspark.sql import functions as fn

                def transform(r):
                    place = fn.to_json(fn.struct("id")).alias("position")
                    what = fn.lit("x").alias("reason"), place, fn.lit("").alias("payload")
                    rejected = r.where("id > {limit}").select(*what)
                    return {{"main": r.where("id <= {limit}"), "quarantine": rejected}}
            """,
            inputs={"r": {"stream": {"iceberg": {"table": source}}}},
            outputs={"main": {"iceberg": {"table": target}}},
            quarantine=True,
        )

    declare(limit=1)
    workshop.append("source", [{"id": 1, "price": 5}, {"id": 2, "price": -1}])
    workshop.run_supervised(stream)
    before = workshop.rows("target")
    declare(limit=9)
    run = ReplayRun(
        settings=workshop.settings,
        ledger=workshop.ledger,
        stream=workshop.stream(stream),
        selection=Selection(),
        asked_by="a test",
        open_session=lambda: workshop.spark,
    )

    with pytest.raises(VerificationError, match="break price_is_positive by 1 of 1 rows of main"):
        run.work()

    assert workshop.rows("target") == before == [{"id": 1, "price": 5}]
