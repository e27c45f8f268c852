"""A refresh of a continuous stream that reads a topic, while its driver goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.fixtures.refreshes import at_step, refresh, rows_by_duckdb
from tests.fixtures.workshop import Workshop

from sluice.errors import UnpublishableError
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import ask_to_end, newest_run, recent_runs
from sluice.processes.deadline import wait_until
from sluice.publication.crash_points import CrashPoint
from sluice.settings import KafkaConnection, Settings
from sluice.sources.kafka_clients import ClientSettings, client_settings

QUERY = """
    SELECT CAST(CAST(value AS STRING) AS BIGINT) AS id, concat('{word}', CAST(value AS STRING)) AS word FROM records
"""
PATIENCE_SECONDS = 60.0


@pytest.fixture
def topic(workshop: Workshop) -> str:
    """A topic with two partitions, of the test's own."""
    name = f"t{workshop.namespace}"
    admin = AdminClient(dict(_clients(workshop.settings)))
    admin.create_topics([NewTopic(name, num_partitions=2)])[name].result()
    return name


def test_a_driver_that_runs_gives_way_to_the_swap_and_its_successor_reads_on(workshop: Workshop, topic: str) -> None:
    name = f"s{workshop.namespace}"
    target = workshop.declare_table("target", {"id": "long", "word": "string"})
    workshop.declare_stream(
        name,
        sql=QUERY.format(word="?"),
        mode="continuous",
        trigger={"processing_time": "500 milliseconds"},
        inputs={"records": {"stream": {"kafka": {"connection": "flights_kafka", "topics": [topic]}}}},
        outputs={"main": {"iceberg": {"table": target}}},
    )
    _send(workshop, topic, range(10))

    with _driver(workshop, name) as first:
        _await_rows(workshop, 10)
        (workshop.folder / f"{name}.sql").write_text(QUERY.format(word="w"))

        def go_on() -> None:
            _send(workshop, topic, range(10, 15))
            _await_rows(workshop, 15)

        refreshed = refresh(workshop, name, reached=at_step(CrashPoint.BUILT, go_on))
        first.join(PATIENCE_SECONDS)

    expected = [{"id": number, "word": f"w{number}"} for number in range(15)]
    assert rows_by_duckdb(workshop) == expected
    ended = recent_runs(workshop.ledger, name, limit=2)[1]
    assert (ended.state, ended.end_asked_because) == (
        RunState.FINISHED,
        f"refresh {refreshed.number} takes its place",
    )
    with _driver(workshop, name):
        _send(workshop, topic, range(15, 18))
        _await_rows(workshop, 18)
    assert rows_by_duckdb(workshop) == [{"id": number, "word": f"w{number}"} for number in range(18)]

    admin = AdminClient(dict(_clients(workshop.settings)))
    for done in admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        done.result()
    with pytest.raises(UnpublishableError, match=rf"the oldest record of {topic}/0 has offset 3; those before it"):
        refresh(workshop, name)


def _clients(settings: Settings) -> ClientSettings:
    return client_settings(settings.connection("flights_kafka", KafkaConnection))


def _send(workshop: Workshop, topic: str, numbers: range) -> None:
    producer = Producer(dict(_clients(workshop.settings)))
    for number in numbers:
        producer.produce(topic, value=str(number), partition=number % 2)
    producer.flush()


@contextmanager
def _driver(workshop: Workshop, name: str) -> Iterator[threading.Thread]:
    """A driver of the stream, in this process."""
    driver = threading.Thread(target=partial(workshop.run_supervised, name))
    driver.start()
    try:
        yield driver
    finally:
        live = newest_run(workshop.ledger, name)
        if live is not None and live.is_live:
            ask_to_end(workshop.ledger, live.run_id, because="the test is over")
        driver.join(PATIENCE_SECONDS)


def _await_rows(workshop: Workshop, count: int) -> None:
    seen = wait_until(lambda: workshop.rows("target"), lambda rows: len(rows) >= count, seconds=PATIENCE_SECONDS)
    assert len(seen) == count
