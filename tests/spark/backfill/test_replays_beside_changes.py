"""Replays beside what else happens: a source that is created again, a refresh and its way back, a reset."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.cimpl import NewTopic
from tests.fixtures.backfills import at_step, ids_by_duckdb, row
from tests.fixtures.continuations import go_on
from tests.fixtures.refreshes import refresh, take_it_back
from tests.fixtures.replays import COLUMNS, REPLAYED, declare, divide, name_in, resolutions, run_of
from tests.fixtures.workshop import Workshop
from tests.spark.backfill.test_backfilled_topics import _admin, declare_topic_stream, recreate, send, send_bytes

from sluice.backfill.replayable_rows import Selection
from sluice.errors import UnpublishableError, UsageError
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.next_generation import open_next_generation
from sluice.ledger.run_values import DesiredState
from sluice.publication.crash_points import CrashPoint

pytestmark = pytest.mark.full

JOINING = """
    from pyspark.sql import functions as fn

    def transform(rows, sizes):
        place = fn.to_json(fn.struct("id")).alias("position")
        rejected = rows.where("id < -10").select(fn.lit("why").alias("reason"), place, fn.col("word").alias("payload"))
        joined = rows.join(sizes, rows.id == sizes.number).select("id", "word")
        return {"main": joined, "quarantine": rejected}
"""


@pytest.fixture
def dividing(workshop: Workshop) -> Workshop:
    """A stream that has rejected rows of ids below 10, and whose code is right now."""
    return divide(workshop)


@pytest.fixture
def topic(workshop: Workshop) -> str:
    """A topic with two partitions that keeps records of the past."""
    name = f"t{workshop.namespace}"
    created = NewTopic(name, num_partitions=2, config={"retention.ms": "-1"})
    admin = _admin(workshop)  # what it answers ends with it
    admin.create_topics([created])[name].result()
    return name


def send_unknown(workshop: Workshop, topic: str, number: int) -> None:
    """Send a record with a field that is not declared, into partition 1."""
    one = row(number, day=number)
    value = {**one, "at": one["at"].isoformat(), "more": number}
    send_bytes(workshop, topic, json.dumps(value).encode(), at=one["at"])


def test_records_of_a_topic_come_from_there_and_else_from_the_quarantine(workshop: Workshop, topic: str) -> None:
    declare_topic_stream(workshop, topic, on_unknown_field="quarantine")
    for number in (1, 2, 3):
        send_unknown(workshop, topic, number)
    send_bytes(workshop, topic, b"{broken", at=row(4, day=4)["at"])
    send(workshop, topic, [row(5, day=5), row(6, day=6)])
    workshop.run_supervised(name_in(workshop))
    assert ids_by_duckdb(workshop) == [5, 6]
    _admin(workshop).delete_records([TopicPartition(topic, 1, 2)])[TopicPartition(topic, 1)].result()
    declare_topic_stream(workshop, topic)

    done = run_of(workshop).work()

    assert (done.open, done.by_source, done.by_stored, done.rejected) == (4, 2, 2, {"not_json": 1})
    assert ids_by_duckdb(workshop) == [1, 2, 3, 5, 6]
    assert sorted(map(str, resolutions(workshop).values())) == ["None", "replayed", "replayed", "replayed"]
    assert run_of(workshop).work().rows == 0
    assert ids_by_duckdb(workshop) == [1, 2, 3, 5, 6]


@pytest.mark.parametrize("on_data_loss", ["fail", "count"])
def test_records_of_a_topic_that_was_created_again_do_not_come_from_the_new_one(
    workshop: Workshop, topic: str, on_data_loss: str
) -> None:
    declared = {"on_data_loss": on_data_loss}
    declare_topic_stream(workshop, topic, on_unknown_field="quarantine", **declared)
    for number in (1, 2, 3):
        send_unknown(workshop, topic, number)
    workshop.run_supervised(name_in(workshop))
    recreate(workshop, topic)
    send(workshop, topic, [row(number, day=5) for number in (10, 11, 12, 13)])
    send_unknown(workshop, topic, 14)  # at the place of record 3
    if on_data_loss == "fail":
        go_on(workshop, name_in(workshop))
    workshop.run_supervised(name_in(workshop))
    assert ids_by_duckdb(workshop) == [10, 11, 12, 13]
    declare_topic_stream(workshop, topic, **declared)

    done = run_of(workshop).work()

    assert ids_by_duckdb(workshop) == [1, 2, 10, 11, 12, 13]
    assert (done.open, done.by_source, done.by_stored, sum(done.left.values())) == (4, 0, 2, 2)
    rows = workshop.rows(f"quarantine.{name_in(workshop)}")
    assert sorted(str(one["resolution"]) for one in rows) == ["None", "None", "replayed", "replayed"]


def test_rows_of_a_table_that_was_created_again_are_not_taken_for_the_rejected_ones(dividing: Workshop) -> None:
    dividing.catalog.drop_table(dividing.table_name("source"))
    dividing.declare_table("source", COLUMNS)
    dividing.append("source", [{"id": number, "word": "again"} for number in (2, 3)])
    go_on(dividing, name_in(dividing))
    dividing.run_supervised(name_in(dividing))
    assert ids_by_duckdb(dividing) == [2, 3, 11, 12, 13]

    done = run_of(dividing).work()

    assert ids_by_duckdb(dividing) == [2, 3, 11, 12, 13]
    assert done.left == {"its table was created again since, and holds other rows": 4}


def test_what_a_replay_published_before_it_died_is_not_published_again_after_a_refresh_was_taken_back(
    dividing: Workshop,
) -> None:
    def die() -> None:
        raise OSError("it dies here")

    with pytest.raises(OSError, match="dies here"):
        run_of(dividing, reached=at_step(CrashPoint.PUBLISHED, die)).work()
    assert set(resolutions(dividing).values()) == {None}
    refresh(dividing, name_in(dividing))
    assert run_of(dividing).work().rows == 0
    take_it_back(dividing, name_in(dividing))
    assert resolutions(dividing) == REPLAYED

    assert run_of(dividing).work().rows == 0

    assert ids_by_duckdb(dividing) == [1, 2, 3, 11, 12, 13]


def test_records_that_a_generation_is_about_to_read_again_are_left_to_it(dividing: Workshop) -> None:
    stream = name_in(dividing)
    set_desired_state(dividing.ledger, stream, DesiredState.STOPPED)
    roots = dividing.settings.checkpoints
    open_next_generation(dividing.ledger, stream, leaving=1, checkpoints_root=roots, opened_by="a test")

    done = run_of(dividing).work()

    assert (done.rows, sum(done.left.values())) == (0, 4)
    assert ids_by_duckdb(dividing) == [11, 12, 13]


def test_what_records_give_today_is_agreed_to_as_well(dividing: Workshop) -> None:
    tried = run_of(dividing, only_tries=True).work()
    declare(dividing, limit=3)

    with pytest.raises(UsageError, match="out of date"):
        run_of(dividing, planned=tried.digest).work()

    assert ids_by_duckdb(dividing) == [11, 12, 13]


def test_records_that_are_joined_are_replayed_one_at_a_time(dividing: Workshop) -> None:
    sizes = dividing.declare_table("sizes", {"number": "long"})
    dividing.append("sizes", [{"number": one} for one in (1, 1, 3)])
    reading = {"table": dividing.table_name("source"), "on_overwrite": "skip"}
    dividing.declare_stream(
        name_in(dividing),
        python=JOINING,
        inputs={"rows": {"stream": {"iceberg": reading}}, "sizes": {"static": {"iceberg": {"table": sizes}}}},
        outputs={"main": {"iceberg": {"table": dividing.table_name("target")}}},
        quarantine=True,
    )

    with pytest.raises(UnpublishableError, match="replayed alone"):
        run_of(dividing).work()
    for number in (1, 3):
        chosen = run_of(dividing, selection=Selection(positions=frozenset({f'{{"id":{number}}}'})))
        if number == 1:
            with pytest.raises(UnpublishableError, match="gives several"):
                chosen.work()
        else:
            assert chosen.work().rows == 1
    assert ids_by_duckdb(dividing) == [3, 11, 12, 13]


def test_times_that_a_position_cannot_tell_apart_name_no_row(workshop: Workshop) -> None:
    for table in ("source", "target"):
        workshop.declare_table(table, {"id": "long", "word": "string", "at": "timestamptz"})
    declare(workshop, limit=10, position='"at"')
    second = datetime(2026, 1, 31, 12, tzinfo=UTC)
    rows = [
        (1, second.replace(microsecond=123456)),
        (2, second.replace(second=1)),
        (11, second.replace(microsecond=123000)),
    ]
    workshop.append("source", [{"id": number, "word": "w", "at": at} for number, at in rows])
    workshop.run_supervised(name_in(workshop))
    assert ids_by_duckdb(workshop) == [11]
    declare(workshop, limit=0, position='"at"')

    done = run_of(workshop).work()

    assert ids_by_duckdb(workshop) == [2, 11]
    assert done.left == {f"{workshop.table_name('source')} holds other rows too at its position": 1}
