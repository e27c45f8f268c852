"""The Kafka topic of the flights, and the position of the replay in it: which records were sent, and which come next.

The topic itself records what was sent: every record carries the name of its plan and its position in it. A replay that
was killed at any point can therefore determine what it has sent, and no second record can be inconsistent with it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import cache

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sluice.demo.flights_data import DAYS_OF_DATA, FIRST_DAY, Span, flights_of
from sluice.demo.replay_plan import PlannedRecord, ReplayPlan, parse_plan_name, plan_replay
from sluice.errors import DemonstrationError
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings

_log = logging.getLogger(__name__)

SHORTEST_SPAN_DAYS = 2
"""A shorter span cannot contain flights that are more than a day late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextReplay:
    """A plan and those of its records that the topic does not hold yet.

    is_continued: whether an earlier replay of this plan was interrupted.
    """

    plan: ReplayPlan
    missing: tuple[PlannedRecord, ...]
    is_continued: bool

    @property
    def on_time(self) -> tuple[PlannedRecord, ...]:
        """The missing records that are sent on time."""
        late = {record.sequence for record in self.plan.late_set}
        return tuple(record for record in self.missing if record.sequence not in late)

    @property
    def late_set(self) -> tuple[PlannedRecord, ...]:
        """The missing records that are sent after the watermark has passed them."""
        late = {record.sequence for record in self.plan.late_set}
        return tuple(record for record in self.missing if record.sequence in late)


_log.addHandler(logging.NullHandler())  # the client library's messages; shown where logging is configured


PLAN_HEADER = "sluice-demo"
"""The header of a record: `<plan name>#<sequence>`."""

_PARTITIONS = 3
"""More than one, so that gaps and repetitions are checked per partition; few, because each is a task of every batch."""

_DEADLINE_SECONDS = 60.0
_ERRORS_ONLY = 3
"""The client library writes to stderr itself; syslog level 3 keeps all but errors out of the progress display."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightsTopic:
    """A topic of a cluster. connection: the connection to the cluster."""

    connection: KafkaConnection
    name: str = "flights"

    @property
    def bootstrap_servers(self) -> str:
        """The brokers, for messages."""
        return self.connection.bootstrap_servers

    def create(self) -> None:
        """Create the topic unless it exists. Its records never expire: the verification compares the tables with them.

        Raises
        ------
        DemonstrationError: when the broker rejects the request.
        """
        topic = NewTopic(self.name, num_partitions=_PARTITIONS, replication_factor=1, config={"retention.ms": "-1"})
        admin = AdminClient({**client_settings(self.connection), "log_level": _ERRORS_ONLY})
        try:
            admin.create_topics([topic], request_timeout=_DEADLINE_SECONDS)[self.name].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise DemonstrationError(
                    f"Kafka at {self.bootstrap_servers} did not create topic {self.name}: {error.args[0].str()}.",
                    next_step="Look at `sluice stack logs kafka`.",
                ) from error

    def read(self) -> pa.Table:
        """Read all records of the topic; none when the topic does not exist.

        Returns
        -------
        A row for each record: topic, partition, offset, key, value, plan, sequence. The last two are null for a record
        that no replay sent.
        """

        columns: list[tuple[str, pa.DataType]] = [
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("offset", pa.int64()),
            ("key", pa.string()),
            ("value", pa.string()),
            ("plan", pa.string()),
            ("sequence", pa.int64()),
        ]
        consumer = self._consumer()
        try:
            rows = [_row(message) for message in self._messages(consumer)]
        finally:
            consumer.close()
        return pa.Table.from_pylist(rows, schema=pa.schema(columns))

    def _consumer(self) -> Consumer:
        return Consumer(
            {
                **client_settings(self.connection),
                "group.id": "sluice-demo",  # required by the client; offsets are assigned, never committed
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "logger": _log,
            }
        )

    def _bounds(self, consumer: Consumer) -> list[tuple[int, int, int]]:
        """For each partition: its number, its first offset, the offset after its last."""
        found = consumer.list_topics(self.name, timeout=_DEADLINE_SECONDS).topics[self.name]
        bounds = []
        for partition in sorted(found.partitions or {}):
            first, end = consumer.get_watermark_offsets(
                TopicPartition(self.name, partition), timeout=_DEADLINE_SECONDS, cached=False
            )
            bounds.append((partition, first, end))
        return bounds

    def _messages(self, consumer: Consumer) -> Iterator[Message]:
        bounds = [(partition, first, end) for partition, first, end in self._bounds(consumer) if end > first]
        remaining = sum(end - first for _, first, end in bounds)
        ends = {partition: end for partition, _, end in bounds}
        consumer.assign([TopicPartition(self.name, partition, first) for partition, first, _ in bounds])
        while remaining > 0:
            messages = consumer.consume(num_messages=min(remaining, 10_000), timeout=_DEADLINE_SECONDS)
            if not messages:
                raise DemonstrationError(
                    f"Kafka at {self.bootstrap_servers} returned no record of {self.name} for "
                    f"{_DEADLINE_SECONDS:.0f} s; {remaining} are still to be read.",
                    next_step="Look at `sluice stack logs kafka`.",
                )
            for message in messages:
                if (error := message.error()) is not None:
                    raise DemonstrationError(f"Topic {self.name} cannot be read: {error.str()}.")
                partition, offset = message.partition(), message.offset()
                if partition is not None and offset is not None and offset < ends[partition]:
                    remaining -= 1
                    yield message


def _row(message: Message) -> dict[str, object]:
    plan, sequence = _place_in_plan(message)
    key, value = message.key(), message.value()
    return {
        "topic": message.topic(),
        "partition": message.partition(),
        "offset": message.offset(),
        "key": None if key is None else bytes(key).decode(),
        "value": None if value is None else bytes(value).decode(),
        "plan": plan,
        "sequence": sequence,
    }


def _place_in_plan(message: Message) -> tuple[str | None, int | None]:
    headers: dict[str, bytes] = dict(message.headers() or ())  # type: ignore[arg-type]  # a read record has pairs of bytes
    if (place := headers.get(PLAN_HEADER)) is None:
        return None, None
    plan, _, sequence = place.decode().partition("#")
    return plan, int(sequence)


def make_plan(name: str) -> ReplayPlan:
    """Recompute the plan of this name.

    Raises
    ------
    ValueError: when the text is not the name of a plan.
    """
    seed, span = parse_plan_name(name)
    return _plan(seed, span)


@cache
def _plan(seed: int, span: Span) -> ReplayPlan:
    """A plan is sent and, at every check, compared with the tables; it takes half a second of a processor."""
    return plan_replay(flights_of(span), span=span, seed=seed)


def plans_in(sent: pa.Table) -> tuple[str, ...]:
    """The names of the plans that the topic holds records of, in the order of their days.

    Parameters
    ----------
    sent: the content of the topic, as `FlightsTopic.read` gives it.
    """
    names = {str(name) for name in sent["plan"].to_pylist() if name is not None}
    return tuple(sorted(names, key=lambda name: parse_plan_name(name)[1].first_day))


def next_replay(sent: pa.Table, *, days: int, seed: int) -> NextReplay | None:
    """The records to send now: the rest of an interrupted plan, otherwise the next days of the year.

    Only the newest plan can be incomplete: a plan starts after all records of the previous one were sent.

    Parameters
    ----------
    sent: the content of the topic, as `FlightsTopic.read` gives it.
    days: how many days a new plan spans; fewer when the year ends.
    seed: the seed of a new plan.

    Returns
    -------
    None when the whole year has been sent.
    """
    names = plans_in(sent)
    first_day = FIRST_DAY
    if names:
        newest = make_plan(names[-1])
        there = _sequences(sent, names[-1])
        if missing := tuple(record for record in newest.records if record.sequence not in there):
            return NextReplay(plan=newest, missing=missing, is_continued=True)
        first_day = newest.span.next_day
    span = next_span(first_day_offset=(first_day - FIRST_DAY).days, days=days)
    if span is None:
        return None
    plan = _plan(seed, span)
    return NextReplay(plan=plan, missing=plan.records, is_continued=False)


def next_span(*, first_day_offset: int, days: int) -> Span | None:
    """The days from an offset on; up to the end of the year when the remaining days would be too few for a span.

    Returns
    -------
    None when no day is left.
    """
    left = DAYS_OF_DATA - first_day_offset
    if left <= 0:
        return None
    length = left if left - days < SHORTEST_SPAN_DAYS else days
    return Span(first_day=FIRST_DAY + timedelta(days=first_day_offset), days=length)


def _sequences(sent: pa.Table, plan_name: str) -> frozenset[object]:
    places = zip(sent["plan"].to_pylist(), sent["sequence"].to_pylist(), strict=True)
    return frozenset(sequence for plan, sequence in places if plan == plan_name)
