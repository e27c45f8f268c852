"""Maintains tables flat out beside the streams that write and read them, and compares their pace with that alone.

    .venv/bin/python -m tests.faults.upkeep_beside_streams [--minutes 15] [--alone 4] [--kill-every 180]

Two topics get records at half of what the streams take when nothing else works, which is measured first. A stream
with a trigger of one second appends its records to a table, another merges its changes into a second one; a third reads
the first table, and an increment does the same twice a minute. Then a process of its own maintains all four tables,
one after the other, over and over: compaction of whatever has two small files (sorted in one table), manifests, expiry
of all that no reader needs, and the removal of what dead writers left, by a clock that runs ahead of all graces. It is
killed every few minutes, and begins again.

Prints how the streams do alone and beside it, and what the maintenance did. In the end every table is compared with
what was sent, by DuckDB. Ends with 1 when a stream failed, a row is missing, wrong or twice, a step of the maintenance
failed, nothing was done, or a limit of the pace is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich.console import Console
from rich.table import Table
from tests.faults.evolving_producer import Running, opened
from tests.fixtures.stack import stack_in
from tests.fixtures.upkeep_process import Upkeep
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import recent_batches
from sluice.ledger.connection import Ledger
from sluice.ledger.maintenance_runs import StepOutcome, recent_maintenance
from sluice.processes.deadline import wait_until
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings

LEAST_RATE, MOST_P95 = 0.95, 2.0
"""Beside maintenance: the rows of a second as a part of those alone, the 95th percentile of batches as a multiple."""

_FIRST, _BACKLOG = 2_000, 200_000
_KEYS = 20_000
_AHEAD = timedelta(days=12)
"""Further than a grace of three days, a write of one day, and seven days in the trash."""

_INCREMENT_SECONDS, _END_SECONDS, _WARM_SECONDS = 30.0, 900.0, 30.0
_CONSOLE = Console(width=140)
_COLUMNS = {"id": "long", "key": "long", "part": "long", "word": "string"}
_TOPICS, _STREAMS = ("events", "changes"), ("appends", "merges", "copies")
BESIDE = "beside maintenance"
_TABLES = ("appended", "merged", "copied", "increments")
_MAINTENANCE: Mapping[str, Any] = {
    "compaction": {"min_input_files": 2},
    "manifest_rewrite": {"min_manifests": 4},
    "expiry": {"older_than": "1 second", "retain_last": 1},
}


def declare(workshop: Workshop) -> None:
    """The streams and their tables."""
    sorted_by: dict[str, Any] = {"sort_order": [{"column": "id"}]}
    sorts = {**_MAINTENANCE, "compaction": {**_MAINTENANCE["compaction"], "strategy": "sort"}}
    by_part: dict[str, Any] = {"partitioning": [{"column": "part"}]}
    for name in _TABLES:
        parts: dict[str, Any] = (
            {"maintenance": sorts, **sorted_by} if name == "copied" else {"maintenance": _MAINTENANCE}
        )
        workshop.declare_table(name, _COLUMNS, **parts, **(by_part if name != "copied" else {}))
    value = {"format": "json", "columns": [{"name": name, "type": kind} for name, kind in _COLUMNS.items()]}
    every_second: dict[str, Any] = {"mode": "continuous", "trigger": {"processing_time": "1 second"}}
    merge: dict[str, Any] = {"mode": "merge", "keys": ["part", "key"], "ordering_column": "id"}
    appending: dict[str, Any] = {}
    for stream, topic, output in (("appends", "events", appending), ("merges", "changes", merge)):
        kafka = {"connection": "flights_kafka", "topics": [topic], "value": value, "max_offsets_per_batch": 20_000}
        table = workshop.table_name("merged" if stream == "merges" else "appended")
        workshop.declare_stream(
            stream,
            sql="SELECT id, key, part, word FROM records",
            inputs={"records": {"stream": {"kafka": kafka}}},
            outputs={"main": {"iceberg": {"table": table, **output}}},
            quarantine=True,
            **every_second,
        )
    appended: dict[str, Any] = {
        "inputs": {"records": {"stream": {"iceberg": {"table": workshop.table_name("appended")}}}}
    }
    for stream, name, how in (("copies", "copied", every_second), ("increments", "increments", appending)):
        written: dict[str, Any] = {"main": {"iceberg": {"table": workshop.table_name(name)}}}
        workshop.declare_stream(stream, sql="SELECT * FROM records", outputs=written, **appended, **how)


def record(number: int) -> bytes:
    """The record of a number: of a change of one of a few keys, each key in one partition."""
    key = number * 7919 % _KEYS
    return json.dumps({"id": number, "key": key, "part": key % 4, "word": f"word {number}"}).encode()


@dataclass(slots=True)
class Sender:
    """Sends records to a topic, so many a second, on a thread. sent: how many there are."""

    topic: str
    producer: Producer
    sent: int = 0
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def send(self, records: int) -> None:
        """Send some at once."""
        for number in range(self.sent, self.sent + records):
            self.producer.produce(self.topic, record(number))
            self.producer.poll(0)
        self.sent += records
        self.producer.flush()

    def begin(self, *, a_second: float) -> None:
        """Send from now on."""

        def work() -> None:
            began, before = time.monotonic(), self.sent
            while not self._is_over.wait(0.1):
                due = before + int((time.monotonic() - began) * a_second)
                self.send(due - self.sent)

        self._thread = threading.Thread(target=work, name=self.topic)
        self._thread.start()

    def end(self) -> None:
        """Send no more."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()


class Increments:
    """The increment, run over and over on a thread."""

    def __init__(self, workshop: Workshop) -> None:
        self._workshop, self._is_over = workshop, threading.Event()
        self.failure: BaseException | None = None
        self.runs = 0
        self._thread = threading.Thread(target=self._work, name="increments")
        self._thread.start()

    def end(self) -> None:
        """Run it once more behind what has been read, and end."""
        self._is_over.set()
        self._thread.join()
        if self.failure is None:
            self._run()

    def _work(self) -> None:
        while self.failure is None and not self._is_over.wait(_INCREMENT_SECONDS):
            self._run()

    def _run(self) -> None:
        try:
            self._workshop.run("increments", is_recorded=True)
            self.runs += 1
        except BaseException as error:  # noqa: BLE001  # whatever ends it is a finding
            self.failure = error


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How a stream did for a while. rate: rows of a second. p95_ms: of the times of its batches."""

    batches: int
    rate: float
    median_ms: float
    p95_ms: float


def pace_of(ledger: Ledger, stream: str, *, since: datetime, seconds: float) -> Pace:
    """How a stream did since a time, so many seconds long."""
    recent = (one for one in recent_batches(ledger, stream, 100_000) if (one.recorded_at or since) >= since)
    batches = [one for one in recent if sum(one.published_rows.values())]
    took = sorted(one.duration_ms for one in batches) or [0]
    return Pace(
        batches=len(batches),
        rate=sum(sum(one.published_rows.values()) for one in batches) / seconds,
        median_ms=statistics.median(took),
        p95_ms=took[min(len(took) - 1, int(len(took) * 0.95))],
    )


def problems_of_rows(workshop: Workshop, sent: Mapping[str, int]) -> Iterator[str]:
    """What is not in the tables as it was sent, by DuckDB. sent: how many records of each topic."""
    engine = duckdb.connect()
    for topic, records in sent.items():
        numbers = f"SELECT i AS id, i * 7919 % {_KEYS} AS key FROM range({records}) t(i)"  # noqa: S608  # numbers of ours
        made = f"SELECT id, key, key % 4 AS part, 'word ' || id AS word FROM ({numbers})"  # noqa: S608
        engine.execute(f"CREATE VIEW {topic} AS {made}")
    engine.execute(
        "CREATE VIEW newest AS SELECT * FROM changes QUALIFY row_number() OVER (PARTITION BY key ORDER BY id DESC) = 1"
    )
    for name in _TABLES:
        right = "newest" if name == "merged" else "events"
        engine.register(name, workshop.table(name).scan().to_arrow())
        for title, query in (
            ("lost", f"SELECT id, key, part, word FROM {right} EXCEPT ALL SELECT id, key, part, word FROM {name}"),  # noqa: S608
            ("wrong or twice", f"SELECT id, key, part, word FROM {name} EXCEPT ALL FROM {right}"),  # noqa: S608
        ):
            if found := engine.execute(query).fetchall():
                yield f"{name}: {len(found)} rows {title}, such as {found[:3]}"


def is_caught_up(workshop: Workshop, sent: Mapping[str, int]) -> bool:
    """Whether the streams have all that was sent."""
    newest = {name: workshop.table(name).scan(selected_fields=("id",)).to_arrow()["id"] for name in _TABLES[:3]}
    return (
        len(newest["appended"]) >= sent["events"]
        and len(newest["copied"]) >= sent["events"]
        and max((int(one) for one in newest["merged"].to_pylist() if one is not None), default=-1)
        >= sent["changes"] - 1
    )


def done_by_upkeep(ledger: Ledger, tables: Sequence[str], *, since: datetime) -> Counter[tuple[str, str, str]]:
    """How often each step of each table had which outcome."""
    return Counter(
        (table, str(step.step), str(step.outcome))
        for table in tables
        for run in recent_maintenance(ledger, table, limit=100_000)
        if run.started_at >= since
        for step in run.operations
        if step.outcome is not StepOutcome.SKIPPED
    )


@dataclass(slots=True, kw_only=True)
class Drill:
    """The streams at work, what sends to them, and how they did. streams: those with records all the time."""

    workshop: Workshop
    senders: Mapping[str, Sender]
    streams: Sequence[Running]
    increments: Increments
    paces: dict[str, dict[str, Pace]] = field(default_factory=dict)

    @property
    def sent(self) -> dict[str, int]:
        """How many records of each topic were sent."""
        return {name: sender.sent for name, sender in self.senders.items()}

    @property
    def failures(self) -> list[str]:
        """Why streams ended that were to work on."""
        found = [*(one.failure for one in self.streams), self.increments.failure]
        return [f"a stream ended: {one!r}" for one in found if one is not None]

    def await_read(self) -> None:
        """Wait until everything that was sent is in the tables.

        Raises
        ------
        SystemExit: when a stream has failed, or it is not in them in time.
        """
        wait_until(
            lambda: is_caught_up(self.workshop, self.sent) or bool(self.failures),
            bool,
            seconds=_END_SECONDS,
            poll_seconds=2.0,
        )
        if self.failures or not is_caught_up(self.workshop, self.sent):
            raise SystemExit("; ".join(self.failures) or f"not all is in the tables after {_END_SECONDS:.0f} s")

    def capacity(self) -> float:
        """How many records of each topic the streams take in a second, when nothing else works."""
        began = time.monotonic()
        for sender in self.senders.values():
            sender.send(_BACKLOG)
        self.await_read()
        return _BACKLOG / (time.monotonic() - began)

    def measure(self, title: str, *, minutes: float) -> None:
        """Let everything work for a while, and note the pace of the streams."""
        time.sleep(_WARM_SECONDS)  # the pace of a time is asked for, and what was before it does not count
        began, since = time.monotonic(), datetime.now(UTC)
        time.sleep(minutes * 60)
        seconds, ledger = time.monotonic() - began, self.workshop.ledger
        self.paces[title] = {one: pace_of(ledger, one, since=since, seconds=seconds) for one in _STREAMS}

    def end(self) -> None:
        """Let the streams read what is left, and stop them."""
        for sender in self.senders.values():
            sender.end()
        try:
            self.await_read()
        finally:
            for stream in self.streams:
                stream.end()
            self.increments.end()


def begin(workshop: Workshop, another: Callable[[], Workshop]) -> Drill:
    """Declare everything, send a few records and let the streams begin with them."""
    kafka = client_settings(workshop.settings.connection("flights_kafka", KafkaConnection))
    admin = AdminClient({**kafka})
    for topic in admin.create_topics([NewTopic(name, 1, 1) for name in _TOPICS]).values():
        topic.result()
    declare(workshop)
    senders = {name: Sender(name, Producer({**kafka})) for name in _TOPICS}
    for sender in senders.values():
        sender.send(_FIRST)
    streams = [Running(another(), name) for name in _STREAMS]
    return Drill(workshop=workshop, senders=senders, streams=streams, increments=Increments(another()))


def _run(workshop: Workshop, another: Callable[[], Workshop], options: argparse.Namespace) -> list[str]:
    drill, names = begin(workshop, another), [workshop.table_name(name) for name in _TABLES]
    try:
        drill.await_read()
        capacity = drill.capacity()
        _CONSOLE.print(f"the streams take {capacity:.0f} records a second of each topic; half as many are sent")
        for sender in drill.senders.values():
            sender.begin(a_second=capacity / 2)
        drill.measure("alone", minutes=options.alone)
        since = datetime.now(UTC)
        upkeep = Upkeep(workshop.settings, names, kill_every_seconds=options.kill_every)
        try:
            drill.measure(BESIDE, minutes=options.minutes)
        finally:
            upkeep.end()
    finally:
        drill.end()
    steps = done_by_upkeep(workshop.ledger, names, since=since)
    _print(drill.paces, steps, kills=upkeep.kills, increments=drill.increments.runs, sent=drill.sent)
    ends = [f"the process of the maintenance ended {upkeep.ends} times by itself"] if upkeep.ends else []
    missed = _missed(drill.paces, steps, names)
    return [*drill.failures, *ends, *missed, *problems_of_rows(workshop, drill.sent)]


def _missed(
    paces: Mapping[str, Mapping[str, Pace]], steps: Counter[tuple[str, str, str]], tables: Sequence[str]
) -> Iterator[str]:
    alone, beside = paces["alone"], paces[BESIDE]
    for name, pace in beside.items():
        if pace.rate < LEAST_RATE * alone[name].rate:
            yield f"{name}: {pace.rate:.0f} rows a second, {alone[name].rate:.0f} alone"
        if pace.p95_ms > MOST_P95 * alone[name].p95_ms:
            yield f"{name}: of twenty batches one takes {pace.p95_ms:.0f} ms or more, {alone[name].p95_ms:.0f} alone"
    for (table, step, outcome), times in steps.items():
        if outcome in (StepOutcome.FAILED, StepOutcome.REFUSED):
            yield f"{table}: {step} {outcome}, {times} times"
    for table in tables:
        if not any(of == table and outcome == StepOutcome.DONE for of, _, outcome in steps):
            yield f"{table}: no step was done"


def _print(
    paces: Mapping[str, Mapping[str, Pace]],
    steps: Counter[tuple[str, str, str]],
    *,
    kills: int,
    increments: int,
    sent: Mapping[str, int],
) -> None:
    shown = Table("", "stream", "batches", "rows a second", "median ms", "p95 ms", title="Streams beside maintenance")
    for title, of_streams in paces.items():
        for name, pace in of_streams.items():
            figures = (f"{pace.rate:.0f}", f"{pace.median_ms:.0f}", f"{pace.p95_ms:.0f}")
            shown.add_row(title, name, str(pace.batches), *figures)
    _CONSOLE.print(shown)
    for (table, step, outcome), times in sorted(steps.items()):
        _CONSOLE.print(f"{table}: {step} {outcome}, {times} times")
    _CONSOLE.print(f"killed {kills} times; {increments} increments; sent {dict(sent)}")


def main(arguments: list[str]) -> int:
    """Run it and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15, help="beside maintenance")
    parser.add_argument("--alone", type=float, default=4, help="minutes without it")
    parser.add_argument("--kill-every", type=float, default=180, help="seconds that a process maintains")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs", "kafka"))
        with opened(stack.settings(), Path(folder)) as (workshop, another):
            problems = _run(workshop, another, options)
    for problem in problems:
        _CONSOLE.print(f"PROBLEM {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
