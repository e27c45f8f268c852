"""Sends a plan to Kafka, at the pace of a clock that runs many times faster than the real one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from confluent_kafka import KafkaError, Message, Producer

from sluice.demo.flights_topic import PLAN_HEADER, FlightsTopic
from sluice.demo.replay_plan import PlannedRecord
from sluice.errors import DemonstrationError
from sluice.sources.kafka_clients import client_settings

_log = logging.getLogger(__name__)
_log.addHandler(logging.NullHandler())  # the client library's messages; shown where logging is configured

_DELIVERY_DEADLINE_SECONDS = 60.0
_LONGEST_POLL_SECONDS = 0.2
"""The longest delay after which a replay that waits for its next record notices that it is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayProgress:
    """The progress of a replay. sent: acknowledged records. clock: the event time of the newest hour that was sent."""

    sent: int
    planned: int
    clock: datetime


@dataclass(slots=True)
class _Deliveries:
    """The answers of the broker, collected by the producer's callback."""

    acknowledged: int = 0
    errors: list[str] = field(default_factory=list)

    def record(self, error: KafkaError | None, _: Message) -> None:
        """Count one answer."""
        if error is None:
            self.acknowledged += 1
        else:
            self.errors.append(error.str())


def replay(
    records: Sequence[PlannedRecord],
    *,
    plan_name: str,
    topic: FlightsTopic,
    hours_per_second: float | None,
    report: Callable[[ReplayProgress], None],
    is_stopped: Callable[[], bool],
) -> int:
    """Send records in order, and return when the broker has acknowledged all of them.

    All records of an hour of event time are acknowledged before the next hour is sent. The partitions are therefore
    never apart by more than an hour, and disorder stays within the watermark.

    Parameters
    ----------
    records: the missing records of the plan, in the order of the plan.
    plan_name: the plan's name, sent in a header of every record.
    topic: an existing topic.
    hours_per_second: hours of event time per second of real time; None is as fast as possible.
    report: called after every hour of event time.
    is_stopped: called before every record; true ends the replay early, after all sent records are acknowledged.

    Returns
    -------
    How many records were sent.

    Raises
    ------
    DemonstrationError: when the broker rejects a record or does not answer in time.
    """
    producer = _producer(topic)
    deliveries = _Deliveries()
    started = time.monotonic()
    sent = 0
    for hour in _by_hour(records):
        for record in hour:
            if hours_per_second is not None:
                hours = (record.clock - records[0].clock).total_seconds() / 3600
                _wait_until(started + hours / hours_per_second, producer, is_stopped)
            if is_stopped():
                break
            _produce(record, plan_name=plan_name, topic=topic, producer=producer, deliveries=deliveries)
            sent += 1
        _await_acknowledgements(producer, deliveries, topic=topic)
        report(ReplayProgress(sent=sent, planned=len(records), clock=hour[-1].clock))
        if is_stopped():
            break
    return deliveries.acknowledged


def _producer(topic: FlightsTopic) -> Producer:
    return Producer(
        {
            **client_settings(topic.connection),
            "enable.idempotence": True,  # implies acks=all; a retried request is written once
            "delivery.timeout.ms": int(_DELIVERY_DEADLINE_SECONDS * 1000),
            "linger.ms": 5,
            "logger": _log,
        }
    )


def _by_hour(records: Sequence[PlannedRecord]) -> list[list[PlannedRecord]]:
    """The records in groups of the same hour of the clock."""
    hours: list[list[PlannedRecord]] = []
    for record in records:
        if hours and _hour(hours[-1][0]) == _hour(record):
            hours[-1].append(record)
        else:
            hours.append([record])
    return hours


def _hour(record: PlannedRecord) -> datetime:
    return record.clock.replace(minute=0, second=0, microsecond=0)


def _wait_until(due: float, producer: Producer, is_stopped: Callable[[], bool]) -> None:
    """Wait until `due` on the monotonic clock or until the replay is stopped, and serve the producer's callbacks."""
    while (remaining := due - time.monotonic()) > 0 and not is_stopped():
        producer.poll(min(remaining, _LONGEST_POLL_SECONDS))


def _produce(
    record: PlannedRecord, *, plan_name: str, topic: FlightsTopic, producer: Producer, deliveries: _Deliveries
) -> None:
    while True:
        try:
            producer.produce(
                topic.name,
                key=record.key.encode(),
                value=record.value.encode(),
                headers=[(PLAN_HEADER, f"{plan_name}#{record.sequence}".encode())],
                on_delivery=deliveries.record,
            )
        except BufferError:  # the local queue is full: wait until some records are sent
            producer.poll(1.0)
        else:
            return


def _await_acknowledgements(producer: Producer, deliveries: _Deliveries, *, topic: FlightsTopic) -> None:
    unanswered = producer.flush(_DELIVERY_DEADLINE_SECONDS)
    if unanswered or deliveries.errors:
        reasons = ", ".join(sorted(set(deliveries.errors))) or f"no answer within {_DELIVERY_DEADLINE_SECONDS:.0f} s"
        raise DemonstrationError(
            f"Kafka at {topic.bootstrap_servers} did not acknowledge {unanswered + len(deliveries.errors)} records "
            f"of topic {topic.name}: {reasons}.",
            next_step="Look at `sluice stack logs kafka`; the same command sends the missing records, and none twice.",
        )
