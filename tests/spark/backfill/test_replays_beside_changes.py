"""Replays beside what else happens: a source that is created again, a refresh and its way back, a reset."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from textwrap import dedent

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.cimpl import NewTopic
from tests.fixtures.backfills import (
    DAY_5,
    TRANSFORM,
    at_step,
    backfill,
    declare_read_stream,
    ids_by_duckdb,
    row,
)
from tests.fixtures.continuations import go_on
from tests.fixtures.refreshes import refresh, take_it_back
from tests.fixtures.replays import (
    COLUMNS,
    DIVIDING,
    REPLAYED,
    declare,
    deploy,
    discard,
    divide,
    name_in,
    resolutions,
    run_of,
    typed,
)
from tests.fixtures.stack import Stack
from tests.fixtures.workshop import Workshop
from tests.spark.backfill.test_backfilled_topics import _admin, declare_topic_stream, recreate, send, send_bytes

from sluice.backfill.replayable_rows import OpenRow, Selection
from sluice.demo.lakehouse_copy import SEEN, copy_lakehouse
from sluice.errors import UnpublishableError, UsageError, VerificationError
from sluice.ledger.backfill_attempts import BackfillState
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.next_generation import open_next_generation
from sluice.ledger.run_values import DesiredState
from sluice.publication.crash_points import CrashPoint
from sluice_spark.backfill.replayed_records import RecordsAgain, RejectedReading

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
    admin, upto = _admin(workshop), TopicPartition(topic, 1, 2)  # what it answers ends with it
    admin.delete_records([upto])[upto].result()
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


def test_a_topic_that_is_created_again_while_its_records_are_read_gives_none(
    workshop: Workshop, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_topic_stream(workshop, topic, on_unknown_field="quarantine")
    for number in (1, 2, 3):
        send_unknown(workshop, topic, number)
    workshop.run_supervised(name_in(workshop))
    declare_topic_stream(workshop, topic)
    read = RejectedReading.read

    def read_late(self: RejectedReading, rows: Mapping[str, Sequence[OpenRow]]) -> RecordsAgain:
        monkeypatch.setattr(RejectedReading, "read", read)
        recreate(workshop, topic)
        send(workshop, topic, [row(number, day=5) for number in (11, 12, 13)])
        return read(self, rows)

    monkeypatch.setattr(RejectedReading, "read", read_late)

    done = run_of(workshop).work()

    assert ids_by_duckdb(workshop) == [1, 2, 3]
    assert (done.by_source, done.by_stored) == (0, 3)


def test_a_backfill_leaves_what_was_rejected_of_an_earlier_topic_and_a_discard_asks_which(
    workshop: Workshop, topic: str, services: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declare_topic_stream(workshop, topic, on_data_loss="count")
    stream, noon = name_in(workshop), row(1, day=5)["at"]
    for text in ("{old 0", "{old 1", "{old 2"):
        send_bytes(workshop, topic, text.encode(), at=noon)
    workshop.run_supervised(stream)
    recreate(workshop, topic)
    for number in (10, 11):  # the second is rejected by what is declared later
        one = row(number, day=5)
        value = {**one, "at": one["at"].isoformat()} | ({"more": 1} if number == 11 else {})
        send_bytes(workshop, topic, json.dumps(value).encode(), at=noon)
    send_bytes(workshop, topic, b"{new 2", at=noon)
    workshop.run_supervised(stream)
    assert ids_by_duckdb(workshop) == [10, 11]
    declare_topic_stream(workshop, topic, on_data_loss="count", on_unknown_field="quarantine")
    workshop.append("target", [row(7, day=5, word="forged"), row(8, day=5, word="forged")])

    backfill(workshop, stream, start=DAY_5, end="2013-01-06", allows_fewer=True)

    assert ids_by_duckdb(workshop) == [10]
    assert quarantined(workshop) == [(0, "{old 0"), (1, '{"id": 11'), (1, "{old 1"), (2, "{new 2"), (2, "{old 2")]

    deploy(workshop, services, monkeypatch)
    place = ("--position", f'{{"topic":"{topic}","partition":1,"offset":2}}')
    code, refused = typed(capsys, "discard", stream, *place, "--yes")
    assert (code, "--batch" in json.dumps(refused)) == (2, True)
    (batch,) = (one["batch"] for one in workshop.rows(f"quarantine.{stream}") if one["payload"] == "{old 2")
    assert typed(capsys, "discard", stream, *place, "--batch", f"1:{batch}", "--yes")[0] == 0
    assert quarantined(workshop) == [(0, "{old 0"), (1, '{"id": 11'), (1, "{old 1"), (2, "{new 2")]


def quarantined(workshop: Workshop) -> list[tuple[int, str]]:
    """The open rows of partition 1, read by an engine that wrote none of them: offset and beginning of the payload."""
    name = f"quarantine.{name_in(workshop)}"
    with copy_lakehouse(workshop.settings, tables=[name]) as database:
        query = f"""
            SELECT CAST((position ->> 'offset') AS int), payload[:9] FROM {SEEN}.{name}
            WHERE resolved_at IS NULL AND (position ->> 'partition') = '1' ORDER BY ALL
        """  # noqa: S608  # our own name
        return database.execute(query).fetchall()


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


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS | {"at": "timestamptz", "day": "date"}], ids=["plain", "times"])
def test_what_code_has_published_and_rejected_both_at_once_is_not_published_again(
    workshop: Workshop, columns: dict[str, str]
) -> None:
    for table in ("source", "target"):
        workshop.declare_table(table, columns)
    both, noon = DIVIDING.replace('"id >= {limit}"', '"id <> 3"'), datetime(2026, 1, 31, 12, tzinfo=UTC)
    declare(workshop, limit=10, python=both)
    rows = [{"id": 1, "word": "w", "at": None, "day": noon.date()}, {"id": 2, "word": "w", "at": noon, "day": None}]
    late = {"id": 3, "word": "w", "at": noon, "day": noon.date()}
    workshop.append("source", [{name: one[name] for name in columns} for one in (*rows, late)])
    workshop.run_supervised(name_in(workshop))
    assert (ids_by_duckdb(workshop), len(resolutions(workshop))) == ([1, 2], 3)
    declare(workshop, limit=0)

    with pytest.raises(UnpublishableError, match=r"2 of the 3 rows that the records of .* are in its table already"):
        run_of(workshop).work()
    tried = run_of(workshop, only_tries=True, allows_repeated=True).work()
    assert (tried.rows, tried.visible) == (3, 2)
    only = Selection(positions=frozenset({'{"id":3}'}))
    assert run_of(workshop, selection=only).work().rows == 1
    discard(workshop, '{"id":1}', '{"id":2}')

    assert ids_by_duckdb(workshop) == [1, 2, 3]
    assert resolutions(workshop) == {'{"id":1}': "discarded", '{"id":2}': "discarded", '{"id":3}': "replayed"}
    assert run_of(workshop).work().open == 0


def test_a_person_says_that_other_records_gave_the_rows_that_are_there(workshop: Workshop) -> None:
    for table in ("source", "target"):
        workshop.declare_table(table, COLUMNS)
    declare(workshop, limit=10, more='.selectExpr("0L AS id", "word")')
    workshop.append(
        "source", [{"id": number, "word": word} for number, word in ((1, "same"), (2, "own"), (11, "same"))]
    )
    workshop.run_supervised(name_in(workshop))
    declare(workshop, limit=0, more='.selectExpr("0L AS id", "word")')
    with pytest.raises(UnpublishableError, match="1 of the 2 rows") as refused:
        run_of(workshop).work()
    assert "`--allow-repeated`" in (refused.value.next_step or "")
    tried = run_of(workshop, only_tries=True, allows_repeated=True).work()
    workshop.append("target", [{"id": 0, "word": "own"}])
    with pytest.raises(UsageError, match="out of date"):
        run_of(workshop, allows_repeated=True, planned=tried.digest).work()
    workshop.table("target").delete("word = 'own'")

    done = run_of(workshop, allows_repeated=True, planned=tried.digest).work()

    assert (done.visible, done.marked) == (1, 2)
    assert sorted(one["word"] for one in workshop.rows("target")) == ["own", "same", "same"]
    assert set(resolutions(workshop).values()) == {"replayed"}


def test_a_backfill_settles_what_code_has_published_and_rejected_both_at_once(workshop: Workshop) -> None:
    stream = declare_read_stream(workshop)
    path = workshop.folder / f"{stream}.py"
    path.write_text(dedent(TRANSFORM.replace("records.where(\"word <> 'bad'\")", "records.where('id <> 0')")))
    with pytest.raises(VerificationError):  # it gives two rows for a record, which the balance counts
        backfill(workshop, stream, start="2013-01-02", end="2013-01-03")
    workshop.append("target", [row(901, day=2, word="BAD"), row(900, day=6, word="BAD")])  # as if it had
    path.write_text(dedent(TRANSFORM.replace("'bad'", "'worse'")))

    done = backfill(workshop, stream, start="2013-01-02", end="2013-01-03")

    assert (done.state, done.rows["resolved"]) == (BackfillState.UNCHANGED, 2)
    assert [ids_by_duckdb(workshop).count(number) for number in (900, 901)] == [1, 1]
    assert set(resolutions(workshop).values()) == {"corrected"}
