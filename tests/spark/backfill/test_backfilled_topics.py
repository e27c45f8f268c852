"""Backfills of a stream that reads a topic: as far as the stream had read it, decoded as the stream decodes it.

Every test run has what is read of a topic without Spark (`test_topic_bounds.py`), a refresh that reads one
(`test_refreshed_topics.py`), and backfills of tables (`test_backfills.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, and left out of its types
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic
from tests.fixtures.backfills import (
    COLUMNS,
    FIRST_DAY,
    TRANSFORM,
    ask_for_day,
    backfill,
    delete_days,
    expected,
    ids_by_duckdb,
    marks,
    row,
    rows_of_days,
    search_gaps,
)
from tests.fixtures.continuations import go_on
from tests.fixtures.drill import sampled
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.work import serve, states_of
from tests.fixtures.workshop import Workshop

from sluice.backfill.interval_gaps import GapKind
from sluice.declarations.loaded_declarations import quarantine_declaration
from sluice.declarations.source_declarations import KafkaSource
from sluice.errors import UnpublishableError
from sluice.ledger.backfill_attempts import BackfillState
from sluice.ledger.work_values import WorkState
from sluice.processes.deadline import wait_until
from sluice.publication.batch_rejection import reject
from sluice.publication.crash_points import CrashPoint
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings
from sluice.sources.kafka_topics import KafkaTopics
from sluice.sources.topic_starts import missing_from_beginning
from sluice.tables.declared_tables import create_or_evolve_table

VALUE = {"format": "json", "columns": [{"name": name, "type": kind} for name, kind in COLUMNS.items()]}
SENT_AFTER = timedelta(hours=2)
"""How long after its event a record is sent."""


@pytest.fixture
def topic(workshop: Workshop) -> str:
    """A topic with two partitions, of the test's own, that keeps records of the past."""
    return make_topic(workshop)


def make_topic(workshop: Workshop) -> str:
    """Create a topic for `topic`; its name."""
    name = f"t{workshop.namespace}"
    created = NewTopic(name, num_partitions=2, config={"retention.ms": "-1"})
    admin = _admin(workshop)
    admin.create_topics([created])[name].result()
    return name


def declare_read_topic(workshop: Workshop, topic: str) -> str:
    """A stream that has read a topic in two runs, and rejected two records; it has not read one that came since."""
    stream = declare_topic_stream(workshop, topic, reads={"records": "at"})
    rows = rows_of_days()
    send(workshop, topic, [*rows[:12], row(900, day=6, word="bad")])
    send_bytes(workshop, topic, b"{broken", at=rows[0]["at"])
    workshop.run(stream)
    send(workshop, topic, rows[12:])
    workshop.run(stream)
    assert len(workshop.rows(f"quarantine.{stream}")) == 2
    send(workshop, topic, [row(999, day=6)])
    return stream


@pytest.mark.full  # every run: a refresh that reads one (`test_refreshed_topics.py`)
def test_an_interval_is_read_from_the_topic_as_far_as_the_stream_had_read(workshop: Workshop, topic: str) -> None:
    stream = declare_read_topic(workshop, topic)
    quarantined = workshop.rows(f"quarantine.{stream}")
    delete_days(workshop, "target")
    before = marks(workshop, "target")

    result = backfill(workshop, stream)

    assert ids_by_duckdb(workshop) == [one["id"] for one in expected()]
    assert (result.rows["read"], result.rows["published"], result.rows["quarantined"]) == (11, 9, 2)
    assert workshop.rows(f"quarantine.{stream}") == quarantined
    assert marks(workshop, "target") == before


@pytest.mark.full  # every run has gaps in `test_backfill_sources.py`
def test_gaps_in_what_was_read_of_a_topic_are_found_and_the_stream_reads_on(workshop: Workshop, topic: str) -> None:
    stream = declare_read_topic(workshop, topic)
    delete_days(workshop, "target")
    workshop.append("target", [row(7, day=2, word="forged")])
    assert [(gap.interval.start.day, gap.kind) for gap in search_gaps(workshop, stream).gaps] == [
        (2, GapKind.DIFFERENT),
        *((day, GapKind.MISSING) for day in (5, 6, 7)),
    ]

    backfill(workshop, stream)

    assert ids_by_duckdb(workshop) == sorted([7, *(one["id"] for one in expected())])
    assert backfill(workshop, stream).state is BackfillState.UNCHANGED
    workshop.run(stream)
    assert 999 in ids_by_duckdb(workshop)


@pytest.mark.full
def test_a_rejected_record_is_known_by_its_place_and_kept_with_why_it_was_rejected(
    workshop: Workshop, topic: str
) -> None:
    stream = declare_topic_stream(workshop, topic, reads={"records": "at"})
    rows = rows_of_days()
    send(workshop, topic, rows)
    send_bytes(workshop, topic, b"{broken", at=rows[0]["at"])
    workshop.run(stream)
    (rejected,) = workshop.rows(f"quarantine.{stream}")
    assert (rejected["kind"], rejected["quotes_data"]) == ("not_json", False)

    say_it_as_an_older_version(workshop, stream)
    delete_days(workshop, "target")
    assert backfill(workshop, stream).rows["quarantined"] == 1
    assert [one["reason"] for one in workshop.rows(f"quarantine.{stream}")] == ["it is broken"]

    workshop.table(f"quarantine.{stream}").delete()
    delete_days(workshop, "target")
    backfill(workshop, stream)
    (again,) = workshop.rows(f"quarantine.{stream}")
    origin = ("generation", "batch", "refused_at")
    assert {name: again[name] for name in again if name not in origin} == {
        name: rejected[name] for name in rejected if name not in origin
    }


@pytest.mark.full
def test_records_that_a_person_rejected_stay_out_of_gaps_and_backfills(workshop: Workshop, topic: str) -> None:
    stream = declare_topic_stream(workshop, topic, reads={"records": "at"})
    send(workshop, topic, rows_of_days())
    workshop.run(stream)
    send(workshop, topic, [row(901, day=6)])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, reached=dying_at(CrashPoint.STAGED))
    declaration = workshop.stream(stream).declaration
    reject(workshop.catalog, workshop.ledger, declaration, number=1, requested_by="a test")
    send(workshop, topic, [row(902, day=6)])
    workshop.run(stream)

    assert search_gaps(workshop, stream).gaps == ()
    delete_days(workshop, "target")
    backfill(workshop, stream)

    assert ids_by_duckdb(workshop) == sorted([902, *(one["id"] for one in expected())])


@pytest.mark.full
@pytest.mark.parametrize("on_data_loss", sampled(["fail", "count"], ["fail"], full=["count"]))
def test_what_was_rejected_of_an_earlier_topic_keeps_nothing_of_the_new_one_out(
    workshop: Workshop, topic: str, on_data_loss: str
) -> None:
    stream = declare_topic_stream(workshop, topic, on_data_loss=on_data_loss, reads={"records": "at"})
    send(workshop, topic, [row(900, day=6), row(901, day=6)])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, reached=dying_at(CrashPoint.STAGED))
    reject(workshop.catalog, workshop.ledger, workshop.stream(stream).declaration, number=0, requested_by="a test")
    workshop.run(stream)
    recreate(workshop, topic)
    send(workshop, topic, rows_of_days())
    if on_data_loss == "fail":
        go_on(workshop, stream)
    workshop.run(stream)
    assert ids_by_duckdb(workshop) == [one["id"] for one in expected()]
    delete_days(workshop, "target", "2013-01-01", "2013-01-09")

    backfill(workshop, stream, start="2013-01-01", end="2013-01-09")

    assert ids_by_duckdb(workshop) == [one["id"] for one in expected()]


def recreate(workshop: Workshop, topic: str) -> None:
    """Delete a topic and create it again under its name; a broker removes a deleted one in the background."""
    admin = _admin(workshop)
    admin.delete_topics([topic])[topic].result()
    created = NewTopic(topic, num_partitions=2, config={"retention.ms": "-1"})

    def is_created() -> bool:
        try:
            admin.create_topics([created])[topic].result()
        except KafkaException as error:
            if "exists" not in str(error) and "deletion" not in str(error):
                raise
            return False
        return True

    wait_until(is_created, bool, seconds=60, poll_seconds=0.2)


def say_it_as_an_older_version(workshop: Workshop, stream: str) -> None:
    """Let the quarantine hold its rows in other words, in a snapshot from before the columns that say why."""
    name, newer = f"quarantine.{stream}", ("kind", "path", "quotes_data")
    table = workshop.table(name)
    with table.update_schema(allow_incompatible_changes=True) as change:
        for column in newer:
            change.delete_column(column)
    rows = table.scan().to_arrow()
    field = rows.schema.field("reason")
    words = pa.array(["it is broken"] * len(rows), field.type)
    table.overwrite(rows.set_column(rows.schema.get_field_index(field.name), field, words))
    create_or_evolve_table(workshop.catalog, quarantine_declaration(workshop.stream(stream).declaration))


@pytest.mark.full
def test_by_the_time_of_its_records_a_topic_is_read_from_the_oldest_that_is_left(
    workshop: Workshop, topic: str
) -> None:
    stream = declare_topic_stream(workshop, topic, reads={"records": "timestamp"}, margin="3 hours", at_once=6)
    send(workshop, topic, rows_of_days())
    workshop.run(stream)
    remove_days(workshop, topic, before=4)
    delete_days(workshop, "target")

    with pytest.raises(
        UnpublishableError,
        match=rf"the oldest record of {topic}/0 that is left has offset 5 and is of 2013-01-04 19:00:00 UTC",
    ) as refused:
        backfill(workshop, stream, start="2013-01-04", end="2013-01-05")
    assert refused.value.next_step == "Choose an interval that begins, with its margin, after 2013-01-04 19:00:00 UTC."
    report = search_gaps(workshop, stream)
    assert report.searched.start.day == 5, "the first interval whose records are all left"
    assert [(gap.interval.start.day, gap.expected_rows) for gap in report.gaps] == [(5, 3), (6, 3), (7, 3)]

    items = [ask_for_day(workshop, stream, day) for day in (5, 6, 7)]
    serve(workshop, items)

    assert states_of(workshop, items) == [WorkState.DONE] * 3
    assert workshop.rows("target") == expected()


@pytest.mark.full  # every run: `test_topic_bounds.py`
def test_a_topic_that_is_read_whole_must_have_every_record(workshop: Workshop, topic: str) -> None:
    stream = declare_topic_stream(workshop, topic)
    send(workshop, topic, rows_of_days())
    workshop.run(stream)
    remove_days(workshop, topic, before=2)

    with pytest.raises(UnpublishableError, match=r"has offset 2 and is of 2013-01-02 23:00:00 UTC; those") as refused:
        backfill(workshop, stream)

    assert (
        refused.value.next_step
        == "To read by the time of records, declare `reads: {records: timestamp}` with a `margin`."
    )


@pytest.mark.full  # every run: `test_topic_bounds.py`
@pytest.mark.parametrize("policy", ["compact", "compact,delete"])
def test_a_compacted_topic_is_refused(workshop: Workshop, topic: str, policy: str) -> None:
    """Kafka removes records in its middle; the first offset stays 0."""
    stream = declare_topic_stream(workshop, topic)
    send(workshop, topic, rows_of_days())
    workshop.run(stream)
    compact(workshop, topic, policy)

    with pytest.raises(UnpublishableError, match=rf"{topic} is compacted \(`cleanup\.policy`\)") as refused:
        backfill(workshop, stream)

    assert (refused.value.next_step or "").startswith("Keep every record in a table: ")
    assert workshop.rows("target") == expected()
    topics = KafkaTopics(workshop.settings.connection("flights_kafka", KafkaConnection))
    source = KafkaSource.model_validate({"connection": "flights_kafka", "topics": [topic]})
    assert missing_from_beginning(topics, source).missing[0].startswith(f"{topic} is compacted")


def compact(workshop: Workshop, topic: str, policy: str = "compact") -> None:
    """Let Kafka compact a topic from now on."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    changed = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource.add_incremental_config(changed)
    admin = _admin(workshop)
    admin.incremental_alter_configs([resource])[resource].result()


def declare_topic_stream(
    workshop: Workshop, topic: str, *, on_data_loss: str = "fail", on_unknown_field: str = "ignore", **how: Any
) -> str:
    """A stream from a topic to `target`. how: of its backfill."""
    name = f"s{workshop.namespace}"
    target = workshop.declare_table("target", COLUMNS, partitioning=[{"column": "at", "transform": "day"}])
    value = {**VALUE, "on_unknown_field": on_unknown_field}
    source = {"connection": "flights_kafka", "topics": [topic], "value": value, "on_data_loss": on_data_loss}
    workshop.declare_stream(
        name,
        python=TRANSFORM.replace("records.where(\"word <> 'bad'\")", "records.where(\"word <> 'bad'\").drop('record')"),
        inputs={"records": {"stream": {"kafka": source}}},
        outputs={"copies": {"iceberg": {"table": target}}},
        quarantine=True,
        backfill={"column": "at", "balance": "rows", **how},
    )
    return name


def send(workshop: Workshop, topic: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Send rows, each a while after its time, to two partitions in turn. Compacted topics take none without a key."""
    producer, refused = Producer(dict(_clients(workshop))), list[object]()
    for number, one in enumerate(rows):
        producer.produce(
            topic,
            key=str(one["id"]),
            value=json.dumps({**one, "at": one["at"] and one["at"].isoformat()}),
            partition=number % 2,
            timestamp=_milliseconds((one["at"] or FIRST_DAY) + SENT_AFTER),
            on_delivery=lambda error, _: refused.append(error) if error is not None else None,
        )
    producer.flush()
    assert not refused, refused


def send_bytes(workshop: Workshop, topic: str, value: bytes, *, at: datetime) -> None:
    """Send a record as it is."""
    producer = Producer(dict(_clients(workshop)))
    producer.produce(topic, value=value, partition=1, timestamp=_milliseconds(at))
    producer.flush()


def remove_days(workshop: Workshop, topic: str, *, before: int) -> None:
    """Remove the records of the first days of January, as Kafka's retention does."""
    removed = 3 * (before - 1)
    places = [TopicPartition(topic, part, (removed + 1 - part) // 2) for part in (0, 1)]
    admin = _admin(workshop)
    for done in admin.delete_records(places).values():
        done.result()


def remove_first(workshop: Workshop, topic: str) -> None:
    """Remove the first record of each partition, as Kafka's retention does."""
    admin = _admin(workshop)
    for done in admin.delete_records([TopicPartition(topic, part, 1) for part in (0, 1)]).values():
        done.result()


def _admin(workshop: Workshop) -> AdminClient:
    return AdminClient(dict(_clients(workshop)))


def _clients(workshop: Workshop) -> Mapping[str, Any]:
    return client_settings(workshop.settings.connection("flights_kafka", KafkaConnection))


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)
