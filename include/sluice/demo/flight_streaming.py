"""Sends the flights and watches the streams until they have read everything.

A plan is sent to Kafka at the pace of a clock that runs many times faster than the real one.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Event
from typing import Any

from confluent_kafka import KafkaError, Message, Producer
from rich.markup import escape

from sluice.demo.flights_topic import PLAN_HEADER, FlightsTopic
from sluice.demo.local_platform import LocalPlatform
from sluice.demo.replay_plan import PlannedRecord
from sluice.demo.report import (
    STREAMS,
    LiveTable,
    StepLog,
    StreamWatch,
    are_under_way,
    has_passed,
    have_read_everything,
)
from sluice.errors import DemonstrationError
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import recent_runs
from sluice.sources.kafka_clients import client_settings
from sluice.supervision.stream_status import StreamRow

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


_FAILURES_ALLOWED = 1
"""The platform restarts a failed stream; a second failure in the same demo is reported to the person who runs it."""

_ENDED_BADLY = frozenset({RunState.FAILED, RunState.LOST})


@dataclass(slots=True, kw_only=True)
class FlightStreaming:
    """The streaming part of one demo.

    began_at: the ledger's time when the demo began; earlier failures do not count.
    planned: how many records of the plan `plan_name` this demo sends.
    pool: runs the sending while the streams are watched.
    """

    platform: LocalPlatform
    watch: StreamWatch
    live: LiveTable
    log: StepLog
    began_at: datetime
    planned: int
    plan_name: str
    pool: Executor
    _progress: ReplayProgress | None = None
    _sent_in_earlier_phases: int = 0
    _reported: set[str] = field(default_factory=set)

    def send(self, records: tuple[PlannedRecord, ...], *, hours_per_second: float | None) -> Future[int]:
        """Send records in the background. All records that were sent before must have been acknowledged."""
        self._sent_in_earlier_phases = self._sent
        self._progress = None
        return self.pool.submit(
            replay,
            records,
            plan_name=self.plan_name,
            topic=self.platform.topic,
            hours_per_second=hours_per_second,
            report=self._note_progress,
            is_stopped=self.platform.stopped.is_set,
        )

    def await_under_way(self, sending: Future[int], *, headline: str) -> None:
        """Watch until everything is sent, every driver runs and the first flights are in bronze.

        Raises
        ------
        DemonstrationError: when a stream fails repeatedly, or when nothing progresses.
        """
        self._await(are_under_way, sending=sending, headline=headline)

    def await_drained(self, sending: Future[int], *, headline: str) -> None:
        """Watch until everything is sent and every stream has read it.

        Raises
        ------
        DemonstrationError: as `await_under_way`.
        """
        self._await(have_read_everything, sending=sending, headline=headline)

    def await_passed(self, event_time: datetime, *, headline: str) -> None:
        """Watch until the watermark of `silver_flights` has passed an event time.

        Raises
        ------
        DemonstrationError: as `await_under_way`.
        """
        self._await(lambda rows: has_passed(rows, event_time), sending=None, headline=headline)

    def await_either(self, reached: Event, job: Future[Any], *, headline: str) -> None:
        """Watch until a job beside the streams has reached a point, or ended before.

        Raises
        ------
        DemonstrationError: as `await_under_way`.
        SluiceError: what the job has raised.
        """
        self._await(lambda _: reached.is_set() or job.done(), sending=None, headline=headline)
        if job.done():
            job.result()

    def await_job(self, job: Future[Any], *, headline: str) -> None:
        """Watch until a job beside the streams has ended.

        Raises
        ------
        DemonstrationError: as `await_under_way`.
        SluiceError: what the job has raised.
        """
        self._await(lambda _: job.done(), sending=None, headline=headline)
        job.result()

    def _note_progress(self, progress: ReplayProgress) -> None:
        self._progress = progress
        self.platform.standstill.note_move()

    def _await(
        self, is_reached: Callable[[Sequence[StreamRow]], bool], *, sending: Future[int] | None, headline: str
    ) -> None:
        def look() -> bool | None:
            # Read before the streams are observed, so that the observation includes everything that was sent.
            is_sent = sending is None or sending.done()
            rows = self.watch.observe()
            self._show(headline, rows)
            if is_sent and sending is not None:
                sending.result()
            if is_sent and is_reached(rows):
                return True
            self._check_failures()
            return None

        self.platform.standstill.await_answer(
            look,
            what=f"{headline}: {self._sent:,} of {self.planned:,} records are sent and not all is done",
            next_step="Look at the streams' DAGs in Airflow and at `sluice stream status`.",
        )

    def _show(self, headline: str, rows: Sequence[StreamRow]) -> None:
        clock = f", {self._progress.clock:%d %B %H:%M} UTC" if self._progress is not None else ""
        self.live.show(f"{headline}: {self._sent:,} of {self.planned:,} records sent{clock}", rows)

    @property
    def _sent(self) -> int:
        return self._sent_in_earlier_phases + (self._progress.sent if self._progress is not None else 0)

    def _check_failures(self) -> None:
        for stream in STREAMS:
            own = [run for run in recent_runs(self.platform.ledger, stream, 10) if run.launched_at >= self.began_at]
            failed = [run for run in own if run.state in _ENDED_BADLY]
            for run in failed:
                if run.run_id not in self._reported:
                    self._reported.add(run.run_id)
                    self.log.print(f"[red]{stream} {run.state.value}[/red]: {escape(f'{run.reason} ({run.log_file})')}")
            if len(failed) > _FAILURES_ALLOWED:
                raise DemonstrationError(
                    f"The stream {stream} failed {len(failed)} times. The last reason: {failed[0].reason}.",
                    next_step=f"Its log is {failed[0].log_file}.",
                )


def watermark_to_pass(records: tuple[PlannedRecord, ...]) -> datetime:
    """The event time that a watermark must have passed for all of these records to be late."""
    return max(record.flight.departure for record in records) + timedelta(microseconds=1)
