"""The ledger is replaced by an older copy of itself while a real driver delivers: what is fenced, what repeats rows.

    python -m tests.faults.ledger_failover [--seconds 60] [--only append kafka] [--faults forgotten suspended] [--json]

The copy is made so many seconds before it replaces the ledger. `known`: the driver is older than the copy. `forgotten`:
it is younger, so that the copy does not know it; another driver is admitted at once. `suspended`: it is forgotten,
stands still with SIGSTOP meanwhile, and goes on beside the other one.

Records with rising numbers go into a topic all the time. DuckDB reads the tables and a consumer of Kafka the topic;
neither of them wrote. Ends with 1 when a row was lost, when a table got one twice or an older one back, or when a
forgotten driver did not end with its reason. What a topic gets twice is counted and shown.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pydantic import SecretStr
from rich.console import Console
from rich.table import Table as ReportTable
from tests.fixtures.faulty_drivers import PATIENCE_SECONDS, FaultyDriver, faulty_driver
from tests.fixtures.ledger import running_postgres
from tests.fixtures.ledger_copies import ReplaceableLedger, replaceable_ledger
from tests.fixtures.spark_jobs import wait_until
from tests.fixtures.stack import SERVICES, Stack, stack_in
from tests.fixtures.workshop import Workshop

from sluice.demo.lakehouse_copy import SEEN, copy_lakehouse
from sluice.ledger.batches import newest_batch, totals
from sluice.ledger.connection import open_ledger
from sluice.publication.crash_points import CrashPoint
from sluice.settings import KafkaConnection, Settings
from sluice.sources.kafka_clients import ClientSettings, client_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORDS_A_SECOND = 40
KEYS = 200
"""How many rows a merged table has: each record replaces the row of an earlier one."""

STANDS_STILL_SECONDS = 30.0
"""How long a suspended driver stands still: the other one is up and delivers by then."""

RIGHT_ENDS = ("LeaseLostError", "StaleTokenError")
QUIET = {"log_level": 0}
"""The broker ends before its clients do, which they would report ten times a second."""

NEVER = 1_000_000_000
"""A driver that gets its signal at this passing of a place gets none."""


class Output(StrEnum):
    """Where the records go, and how."""

    APPEND = "append"
    MERGE = "merge"
    DIRECT = "direct"
    KAFKA = "kafka"


class Fault(StrEnum):
    """What the driver is to the copy, and what befalls it."""

    KNOWN = "known"
    FORGOTTEN = "forgotten"
    SUSPENDED = "suspended"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailoverReport:
    """What came of one failover.

    records: how many were sent. lost: how many no output has. doubled: rows that the output has more than once; in a
    merged table rows that an older record has overwritten. unrecorded: records that the ledger does not count.
    ended_with: how the driver ended; empty when it went on. seconds: from the failover, or from the moment at which it
    went on, to its end.
    """

    output: Output
    fault: Fault
    records: int
    lost: int
    doubled: int
    unrecorded: int
    ended_with: str
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether nothing was lost, tables have each row once, and a forgotten driver gave up by name."""
        ends_well = not self.ended_with if self.fault is Fault.KNOWN else self.ended_with.startswith(RIGHT_ENDS)
        repeats = self.doubled and self.output in (Output.APPEND, Output.MERGE)
        return not self.lost and not repeats and ends_well


@dataclass(slots=True, kw_only=True)
class Feed:
    """Sends records with rising numbers into a topic until it is stopped."""

    producer: Producer
    topic: str
    sent: int = 0
    _over: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def flowing(self) -> Iterator[None]:
        """Send while the block runs."""
        thread = threading.Thread(target=self._send, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.stop()
            thread.join()

    def stop(self) -> None:
        """Send no more."""
        self._over.set()

    def _send(self) -> None:
        while not self._over.wait(1 / RECORDS_A_SECOND):
            self.producer.produce(self.topic, value=str(self.sent).encode())
            self.sent += 1
        assert self.producer.flush(30) == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stream with its output, its ledger and its feed."""

    output: Output
    stack: Stack
    settings: Settings
    workshop: Workshop
    ledger: ReplaceableLedger
    stream: str
    feed: Feed
    topic: str

    @contextmanager
    def driver(self, point: CrashPoint) -> Iterator[FaultyDriver]:
        """A real driver of the stream in a process of its own. point: names its log; nothing befalls it there."""
        environment = {**self.stack.environment(), "SLUICE_LEDGER_URL": self.ledger.url}
        with faulty_driver(self.workshop, environment, self.stream, point=point, occurrence=NEVER) as driver:
            yield driver

    def newest_batch(self) -> int:
        """The newest batch of the ledger; -1 before the first."""
        with open_ledger(self.ledger.url) as ledger:
            batch = newest_batch(ledger, self.stream)
        return -1 if batch is None else batch.key.batch

    def await_batches(self, driver: FaultyDriver, count: int) -> None:
        """Wait until a driver has delivered so many more batches."""
        wanted = self.newest_batch() + count

        def are_there() -> bool:
            assert driver.process.poll() is None, driver.log.read_text()[-4000:]
            return self.newest_batch() >= wanted

        wait_until(are_there, within_seconds=PATIENCE_SECONDS)

    def numbers(self) -> list[int]:
        """The numbers of the records in the output, in order, repeated ones repeated."""
        if self.output is Output.KAFKA:
            return sorted(_numbers_of(self.settings, self.topic))
        with copy_lakehouse(self.settings, tables=[self.workshop.table_name("target")]) as database:
            relation = f"{SEEN}.{self.workshop.table_name('target')}"
            found = database.execute(f"select id from {relation} order by id").fetchall()  # noqa: S608  # our own names
        return [int(row[0]) for row in found]

    def expected(self) -> list[int]:
        """The numbers that the output has when each record came once."""
        first = max(0, self.feed.sent - KEYS) if self.output is Output.MERGE else 0
        return list(range(first, self.feed.sent))

    def counted(self) -> int:
        """The rows of the output, as the ledger counts them."""
        with open_ledger(self.ledger.url) as ledger:
            return sum(totals(ledger, self.stream).published_rows.values())


def fail_over(stage: Stage, fault: Fault, *, seconds: float) -> FailoverReport:
    """Let a driver work, replace its ledger by a copy of so many seconds ago, and count."""
    with stage.feed.flowing():
        if fault is not Fault.KNOWN:
            with stage.driver(CrashPoint.BATCH_BEGUN) as earlier:
                stage.await_batches(earlier, 2)
                _end(earlier)
            copy = stage.ledger.copy()
        with stage.driver(CrashPoint.STAGED) as driver:
            stage.await_batches(driver, 2)
            if fault is Fault.KNOWN:
                copy = stage.ledger.copy()
            time.sleep(seconds)  # how old the copy is when it replaces the ledger
            if fault is Fault.SUSPENDED:
                _signal_all(driver, signal.SIGSTOP)
            stage.ledger.fail_over(copy)
            began = time.monotonic()
            if fault is Fault.KNOWN:
                stage.await_batches(driver, 3)
                ended, took = "", 0.0
                _finish(stage, driver)
            else:
                ended, took = _replaced(stage, driver, began=began, is_suspended=fault is Fault.SUSPENDED)
    seen, wanted = Counter(stage.numbers()), Counter(stage.expected())
    return FailoverReport(
        output=stage.output,
        fault=fault,
        records=stage.feed.sent,
        lost=(wanted - seen).total(),
        doubled=(seen - wanted).total(),
        unrecorded=stage.feed.sent - stage.counted(),
        ended_with=ended,
        seconds=took,
    )


def _replaced(stage: Stage, driver: FaultyDriver, *, began: float, is_suspended: bool) -> tuple[str, float]:
    """Start another driver beside a forgotten one. Returns how that ended, and after how many seconds."""
    with stage.driver(CrashPoint.PUBLISHED) as successor:
        if is_suspended:
            stage.await_batches(successor, 3)
            time.sleep(max(0.0, STANDS_STILL_SECONDS - (time.monotonic() - began)))
            began = time.monotonic()
            _signal_all(driver, signal.SIGCONT)
        words = driver.last_words()
        took = time.monotonic() - began
        stage.await_batches(successor, 3)
        _finish(stage, successor)
    return words.partition("sluice: failed: ")[2] or words, took


def _finish(stage: Stage, driver: FaultyDriver) -> None:
    """Wait until the output has every record, then end the driver."""
    stage.feed.stop()
    wait_until(lambda: set(stage.numbers()) >= set(stage.expected()), within_seconds=PATIENCE_SECONDS)
    _end(driver)


def _end(driver: FaultyDriver) -> None:
    os.kill(driver.process.pid, signal.SIGTERM)
    status = driver.process.wait(PATIENCE_SECONDS)
    assert status == 0, driver.log.read_text()[-4000:]


def _signal_all(driver: FaultyDriver, number: signal.Signals) -> None:
    os.killpg(driver.process.pid, number)


def _numbers_of(settings: Settings, topic: str) -> list[int]:
    consumer = Consumer({**_kafka(settings), "group.id": uuid4().hex})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        found: list[int] = []
        while len(found) < end:
            messages = consumer.consume(min(500, end - len(found)), timeout=30)
            found += [int(json.loads(one.value() or b"")["id"]) for one in messages]
        return found
    finally:
        consumer.close()


def _kafka(settings: Settings) -> ClientSettings:
    return client_settings(settings.connection("flights_kafka", KafkaConnection))


@contextmanager
def stage_of(stack: Stack, server_url: str, folder: Path, output: Output) -> Iterator[Stage]:
    """A declared stream with an empty output, and a ledger of its own in a server that admits new databases."""
    settings, namespace = stack.settings(), f"n{uuid4().hex[:12]}"
    pipelines = folder / namespace / "pipelines"
    pipelines.mkdir(parents=True)
    records, sent = f"{namespace}_records", f"{namespace}_sent"
    admin = AdminClient({**_kafka(settings), **QUIET})
    for created in admin.create_topics([NewTopic(name, 1, 1) for name in (records, sent)]).values():
        created.result()
    with replaceable_ledger(server_url) as replaceable, open_ledger(replaceable.url) as ledger:
        changes = {
            "pipelines": pipelines,
            "checkpoints": (folder / namespace / "checkpoints").as_uri(),
            "ledger_url": SecretStr(replaceable.url),
        }
        settings = settings.model_copy(update=changes)
        no_session = cast("SparkSession", None)  # every driver is a process of its own
        workshop = Workshop(spark=no_session, settings=settings, ledger=ledger, namespace=namespace)
        _declare(workshop, output, records=records, sent=sent)
        yield Stage(
            output=output,
            stack=stack,
            settings=settings,
            workshop=workshop,
            ledger=replaceable,
            stream=f"s{namespace}",
            feed=Feed(producer=Producer({**_kafka(settings), **QUIET}), topic=records),
            topic=sent,
        )


def _declare(workshop: Workshop, output: Output, *, records: str, sent: str) -> None:
    target = workshop.declare_table("target", {"slot": "long", "id": "long"})
    writing: Mapping[Output, Any] = {
        Output.APPEND: {"iceberg": {"table": target}},
        Output.MERGE: {"iceberg": {"table": target, "mode": "merge", "keys": ["slot"], "ordering_column": "id"}},
        Output.DIRECT: {"iceberg": {"table": target, "delivery": "direct"}},
        Output.KAFKA: {"kafka": {"connection": "flights_kafka", "topic": sent}},
    }
    number = "CAST(CAST(value AS STRING) AS BIGINT)"
    workshop.declare_stream(
        f"s{workshop.namespace}",
        sql=f"SELECT {number} % {KEYS} AS slot, {number} AS id FROM records",  # noqa: S608  # our own numbers
        inputs={"records": {"stream": {"kafka": {"connection": "flights_kafka", "topics": [records]}}}},
        outputs={"out": writing[output]},
        mode="continuous",
        trigger={"processing_time": "500 milliseconds"},
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Let every ledger fail over, one after the other, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how old the copy is when it replaces the ledger")
    parser.add_argument("--only", nargs="*", type=Output, default=list(Output), help="append, merge, direct, kafka")
    parser.add_argument("--faults", nargs="*", type=Fault, default=list(Fault), help="known, forgotten, suspended")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    reports = []
    with (
        tempfile.TemporaryDirectory(prefix="sluice-drill-") as name,
        stack_in((folder := Path(name)) / "data") as stack,
        running_postgres(_made(folder / "postgres")) as server,
    ):
        stack.up(SERVICES)
        for output in options.only:
            for fault in options.faults:
                with stage_of(stack, server.url.render_as_string(hide_password=False), folder, output) as stage:
                    reports.append(fail_over(stage, fault, seconds=options.seconds))
                console.print(asdict(reports[-1]))
    if options.json:
        print(json.dumps([asdict(report) for report in reports], indent=1))  # noqa: T201  # the answer of the program
    else:
        _print(reports)
    return 0 if all(report.is_right for report in reports) else 1


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _print(reports: Sequence[FailoverReport]) -> None:
    table = ReportTable(box=None, padding=(0, 2, 0, 0))
    for heading in ("output", "driver", "records", "lost", "doubled", "unrecorded", "ended after", "with"):
        table.add_column(heading)
    for one in reports:
        ended = f"{one.seconds:.1f} s" if one.ended_with else "went on"
        figures = (one.records, one.lost, one.doubled, one.unrecorded)
        table.add_row(one.output, one.fault, *map(str, figures), ended, one.ended_with[:60])
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
