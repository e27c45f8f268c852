"""Which rows of a quarantine are of the records that a backfill rejects at their places."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession

from sluice.backfill.replayable_rows import PresentSource
from sluice_spark.backfill.rejected_rows import _known, _not_again, _not_held, held_of_sources, open_rows
from sluice_spark.session.columns import REJECTED_ROW

SEEN = {"topic t of k": "T2", "topic u of k": "U1", "input table raw.r": "R1"}
KNOWN = {1: SEEN | {"topic t of k": "T1"}, 2: SEEN | {"topic t of k since batch": "5"}}
OF_T, OF_U = '{"topic":"t","partition":0,"offset":7}', '{"offset":7,"topic":"u","partition":0}'
DAY = datetime(2026, 1, 31, tzinfo=UTC)
OWN, ELSEWHERE = '{"id":7}', '{"id":8}'


def looked(times: list[int]) -> PresentSource:
    """A look at a topic that was created again before generation 2, and once in it. Other inputs were not."""
    times.append(1)
    return PresentSource(ledger=cast(Any, None), stream="s", seen=SEEN, known=cast(dict[int, Any], KNOWN))


def test_rows_of_another_source_are_not_held_at_the_place_of_a_rejected_one(spark: SparkSession) -> None:
    rejected = [(place, "as now") for place in (OF_T, OF_U, OWN)] + [(None, OF_T)]
    held = [
        (OF_T, "as now", 1, 9, False),
        (OF_T, "as now", 2, 4, False),
        (OF_T, "of then", 2, 5, True),
        (OF_U, "of then", 1, 9, True),
        (OWN, "of then", 1, 9, False),
        (OWN, "as now", 1, 9, True),
        (OWN, "of then", 2, 4, False),
        (OWN, "of then", 2, 5, True),
        (None, OF_T, 2, 4, True),
        (None, "of nothing that is rejected", 2, 5, False),
        (ELSEWHERE, "of nothing that is rejected", 2, 5, False),
    ]
    columns, times = "position string, payload string", list[int]()
    new = spark.createDataFrame(rejected, columns)
    table = spark.createDataFrame([row[:4] for row in held], f"{columns}, generation int, batch long")

    kept = held_of_sources(table, new, observe_sources=lambda: looked(times))

    assert sorted(map(tuple, kept.collect()), key=str) == sorted((row[:4] for row in held if row[4]), key=str)
    assert kept.columns == table.columns
    assert len(times) == 1


def test_sources_are_not_looked_at_without_a_row_at_a_place_of_a_rejected_one(spark: SparkSession) -> None:
    times = list[int]()
    held = spark.createDataFrame([(OF_T, "x", 1, 9)], "position string, payload string, generation int, batch long")
    rejected = spark.createDataFrame([(ELSEWHERE, "x")], "position string, payload string")

    assert held_of_sources(held, rejected, observe_sources=lambda: looked(times)).collect() == []
    assert times == []


def test_rows_are_open_that_are_not_resolved_and_all_of_a_snapshot_from_before_resolutions(spark: SparkSession) -> None:
    rows = spark.createDataFrame([("open", None), ("resolved", DAY)], "position string, resolved_at timestamp")

    assert [one.position for one in open_rows(rows).collect()] == ["open"]
    assert open_rows(rows.drop("resolved_at")).count() == 2


def test_another_record_at_a_place_that_is_held_is_added(spark: SparkSession) -> None:
    """The place of a record of a table is the rest of its row, and of a line of a file its file: of neither is it the
    place of one record alone. Held is the one, rejected now the other. A place in a topic is of one record, whose
    payload another Sluice may have written in another form."""
    kinds = {field.name: field.dataType.simpleString() for field in REJECTED_ROW}
    schema = ", ".join(f"{name} {kind}" for name, kind in kinds.items())

    def rows(payload: str, *, position: str = '{"at":"2026-01-31"}') -> DataFrame:
        row = dict.fromkeys(kinds) | {"position": position, "payload": payload, "reason": "r"}
        return spark.createDataFrame([tuple(row[name] for name in kinds)], schema)

    added = _not_held(rows('{"id":2,"n":5}'), rows('{"id":1,"n":"x"}'))

    assert [row.payload for row in added.collect()] == ['{"id":2,"n":5}']
    of_topic = _not_held(rows("of now", position=OF_T), rows("of then", position=OF_T))
    assert of_topic.count() == 0
    assert _not_held(rows("one").unionByName(rows("one")), rows("one")).count() == 1


def test_a_row_is_corrected_although_another_record_is_rejected_at_its_place(spark: SparkSession) -> None:
    """A place in a topic is of one record, in whatever form its payload is repeated."""
    columns = "position string, payload string, generation int, batch long"
    held = [(OWN, "1"), (OWN, "2"), (OWN, None), (OF_T, "as then"), (None, "3"), (None, "4"), (None, None)]
    rows = spark.createDataFrame([(*row, 1, 9) for row in held], columns)
    rejected = [(OWN, "2"), (OWN, "5"), (OF_T, "as now"), (None, "3")]
    again = spark.createDataFrame(rejected, "position string, payload string")

    found = {(at.place, at.payload) for at in _known(_not_again(rows, again))}

    assert found == {(OWN, "1"), (OWN, None), ("payload 4", None)}
