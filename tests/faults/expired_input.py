"""A stream reads a table that others write and expire, its driver is killed, and then it is away for too long.

    python -m tests.faults.expired_input [--batches 300] [--keep 60] [--every 20] [--away 180] [--ways append merge]

A foreign writer appends to the source, and a foreign expiry removes every snapshot older than `--keep` seconds from
source and target, every `--every` seconds; neither knows of the stream. The driver is killed three times on the way to
its last batch: it must never be less than right, and never fail while it is not behind. Then it is away for `--away`
seconds: its start must name what is missing, and `sluice stream continue` must end with a table that is equal.

Two limits hold, and `seconds` in the report says how near the drill came to them. A killed driver is behind for as long
as its successor needs to its first batch, which must be less than `--keep`. And the table keeps its newest 500 metadata
files: the writer must not commit more often between the stop of the driver and the plan of its continuation.

DuckDB counts. Ends with 1 when a row was lost or doubled, or a driver ended in another way than it should.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import CommitFailedException
from tests.faults.crash_table import drill_workshops
from tests.fixtures.faulty_drivers import PATIENCE_SECONDS, declare_lost, faulty_driver
from tests.fixtures.spark_jobs import wait_until
from tests.fixtures.workshop import Workshop

from sluice.demo.lakehouse_copy import SEEN, copy_lakehouse
from sluice.errors import LakehouseError
from sluice.ledger.batches import newest_batch
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState
from sluice.maintenance.gap_continuation import continue_stream, plan_continuation
from sluice.publication.crash_points import CrashPoint
from sluice.tables.catalog import open_catalog

COLUMNS = {"id": "long", "number": "long"}
KEYS = 200
"""How many keys a merged stream has: every row from the two hundredth on replaces an earlier one."""

ROWS_AT_ONCE = 5
KILLS = 3
NEVER = 1_000_000
MOST_CONTINUATIONS = 3
_GAP = "were expired before they were read"


class DriverEndedError(Exception):
    """A driver that was to work ended; its exit status and the last line of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """How the source is written and expired. keep_seconds, every_seconds: of the expiry. away_seconds: the driver's.

    pause_seconds: of the writer; longer than a batch takes, or the stream falls behind without any fault.
    """

    batches: int
    keep_seconds: float
    every_seconds: float
    away_seconds: float
    pause_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryReport:
    """What came of one stream.

    lost, doubled: rows of the target, by DuckDB, after the kills and after the absence. gap: as its start named it.
    seconds: from the start of each driver to its first batch, and from the stop to the first plan of a continuation.
    continuations: how often the expiry was faster than the start behind one, and another was asked for.
    """

    way: str
    batches: int
    expiries: int
    lost: int
    doubled: int
    gap: str
    exact_rows: int
    lost_after_the_gap: int
    doubled_after_the_gap: int
    continuations: int
    seconds: dict[str, list[float]]

    @property
    def is_right(self) -> bool:
        """Whether no row was lost or doubled, and the gap was named."""
        counts = (self.lost, self.doubled, self.lost_after_the_gap, self.doubled_after_the_gap)
        return not any(counts) and _GAP in self.gap


@dataclass(slots=True, kw_only=True)
class OthersAtWork:
    """A foreign writer and a foreign expiry. written: the rows in the source. expiries: how many there were."""

    workshop: Workshop
    around: Surroundings
    is_merged: bool
    written: list[tuple[int, int]] = field(default_factory=list)
    expiries: int = 0
    _writing: threading.Lock = field(default_factory=threading.Lock)
    _stop: threading.Event = field(default_factory=threading.Event)
    _errors: list[Exception] = field(default_factory=list)

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Work while the block runs."""
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in (self._write, self._expire)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
        if self._errors:
            raise self._errors[0]

    @contextmanager
    def without_writing(self) -> Iterator[None]:
        """No append is under way while the block runs, so that the stream catches up; the expiry goes on."""
        with self._writing:
            yield

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001  # of a thread; the block raises it
            self._errors.append(error)

    def _write(self) -> None:
        number = 0
        catalog = open_catalog(self.workshop.settings)
        while not self._stop.wait(self.around.pause_seconds):
            with self._writing:
                rows = [(one % KEYS if self.is_merged else one, one) for one in range(number, number + ROWS_AT_ONCE)]
                table = catalog.load_table(self.workshop.table_name("source"))
                content = [{"id": key, "number": one} for key, one in rows]
                table.append(pa.Table.from_pylist(content, table.schema().as_arrow()))
                self.written += rows
            number += ROWS_AT_ONCE

    def _expire(self) -> None:
        catalog = open_catalog(self.workshop.settings)
        while not self._stop.wait(self.around.every_seconds):
            before = datetime.now(UTC) - timedelta(seconds=self.around.keep_seconds)
            for name in ("source", "target"):
                table = catalog.load_table(self.workshop.table_name(name))
                try:
                    table.maintenance.expire_snapshots().older_than(before.replace(tzinfo=None)).commit()
                except (CommitFailedException, LakehouseError):
                    continue  # a writer came first; the next turn tries again
            self.expiries += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryDrill:
    """One stream in these surroundings. environment: the settings of the services for its drivers."""

    workshop: Workshop
    environment: dict[str, str]
    way: str
    around: Surroundings
    seconds: dict[str, list[float]] = field(default_factory=dict)

    @property
    def stream(self) -> str:
        """The stream's name."""
        return f"s{self.workshop.namespace}"

    def run(self) -> ExpiryReport:
        """Kill the drivers, count, let the stream be away, continue it, and count again."""
        self._declare()
        others = OthersAtWork(workshop=self.workshop, around=self.around, is_merged=self.way == "merge")
        with others.at_work():
            for number in range(1, KILLS + 1):
                self._kill_at(self.around.batches * number // (KILLS + 1))
            written = self._work_until_caught_up(others, batches=self.around.batches)
            left_at = time.monotonic()
            lost, doubled = self._count(written)
            self._note("to count", time.monotonic() - left_at)
            self._say(f"killed {KILLS} times: {lost} lost, {doubled} doubled; {self.seconds}")
            time.sleep(max(0.0, left_at + self.around.away_seconds - time.monotonic()))  # the absence is what is tested
            gap = self._failing_start()
            self._note("away", time.monotonic() - left_at)
            self._say(f"away: {self.seconds}; {gap}")
            rows, continuations, again = 0, 0, None
            while again is None:  # the expiry may be faster than the start after a continuation
                if continuations == MOST_CONTINUATIONS:
                    raise DriverEndedError(f"{gap}, and {continuations} continuations came too late")
                rows += self._continue()
                continuations += 1
                again = self._unless_cut_again(others)
            lost_after, doubled_after = self._count(again)
        return ExpiryReport(
            way=self.way,
            batches=self._newest(),
            expiries=others.expiries,
            lost=lost,
            doubled=doubled,
            gap=gap,
            exact_rows=rows,
            lost_after_the_gap=lost_after,
            doubled_after_the_gap=doubled_after,
            continuations=continuations,
            seconds=self.seconds,
        )

    def _say(self, sentence: str) -> None:
        """What is known before the report, which a failure may prevent."""
        sys.stderr.write(f"{self.way}: {sentence}\n")

    def _note(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(round(seconds, 1))

    def _await_first_batch(self, driver: Any, *, newer_than: int) -> None:
        """Wait until a driver has published something, or has ended; note how long that took."""
        begun = time.monotonic()
        wait_until(
            lambda: driver.process.poll() is not None or self._newest() > newer_than, within_seconds=PATIENCE_SECONDS
        )
        self._note("to the first batch", time.monotonic() - begun)

    def _declare(self) -> None:
        source = self.workshop.declare_table("source", COLUMNS)
        target = self.workshop.declare_table("target", COLUMNS)
        # The batch over a gap brings several rows of a key; the newest of them is the one to keep.
        merge: dict[str, Any] = {"mode": "merge", "keys": ["id"], "ordering_column": "number"}
        self.workshop.declare_stream(
            self.stream,
            sql="SELECT id, number FROM records",
            inputs={"records": {"stream": {"iceberg": {"table": source}}}},
            outputs={"copies": {"iceberg": {"table": target, **(merge if self.way == "merge" else {})}}},
            mode="continuous",
            trigger={"processing_time": "200 milliseconds"},
        )

    def _kill_at(self, batch: int) -> None:
        newest = self._newest()
        with self._driver(CrashPoint.PUBLISHED, occurrence=max(1, batch - newest)) as driver:
            self._await_first_batch(driver, newer_than=newest)
            driver.await_death()
        declare_lost(self.workshop, self.stream)

    def _work_until_caught_up(self, others: OthersAtWork, *, batches: int) -> list[tuple[int, int]]:
        """The rows that were written until then: the writer goes on as soon as the driver has ended."""
        newest = self._newest()
        with self._driver(CrashPoint.PUBLISHED, occurrence=NEVER) as driver:
            self._await_first_batch(driver, newer_than=newest)

            def is_alive() -> bool:
                if driver.process.poll() is not None:
                    raise DriverEndedError(driver.last_words())
                return True

            wait_until(lambda: is_alive() and self._newest() >= batches, within_seconds=PATIENCE_SECONDS)
            with others.without_writing():
                wait_until(lambda: is_alive() and self._is_caught_up(), within_seconds=PATIENCE_SECONDS)
                driver.process.send_signal(signal.SIGTERM)
                status = driver.process.wait(PATIENCE_SECONDS)
                assert status == 0, driver.log.read_text()[-4000:]
                return list(others.written)

    def _unless_cut_again(self, others: OthersAtWork) -> list[tuple[int, int]] | None:
        """Work until caught up; the rows that were written until then, and none when the history was cut once more."""
        try:
            return self._work_until_caught_up(others, batches=self.around.batches + 1)
        except DriverEndedError as ended:
            if _GAP not in str(ended):
                raise
            return None

    def _is_caught_up(self) -> bool:
        batch = newest_batch(self.workshop.ledger, self.stream)
        head = self.workshop.table("source").metadata.current_snapshot_id
        return batch is not None and str(head) in json.dumps(dict(batch.end_offsets))

    def _failing_start(self) -> str:
        with self._driver(CrashPoint.PUBLISHED, occurrence=NEVER) as driver:
            words: str = driver.last_words()
        assert words.startswith("1:"), words
        return words

    def _continue(self) -> int:
        settings, stream = self.workshop.settings, self.workshop.stream(self.stream)
        plan = plan_continuation(self.workshop.ledger, open_catalog(settings), stream, settings, leaves_out=False)
        set_desired_state(self.workshop.ledger, self.stream, DesiredState.STOPPED)
        continue_stream(self.workshop.ledger, open_catalog(settings), stream, settings, plan, asked_by="a drill")
        set_desired_state(self.workshop.ledger, self.stream, DesiredState.RUNNING)
        return plan.seen.rows_read

    def _driver(self, point: CrashPoint, *, occurrence: int) -> Any:
        return faulty_driver(self.workshop, self.environment, self.stream, point=point, occurrence=occurrence)

    def _newest(self) -> int:
        batch = newest_batch(self.workshop.ledger, self.stream)
        return -1 if batch is None else batch.key.batch

    def _count(self, written: list[tuple[int, int]]) -> tuple[int, int]:
        """The rows that are lost, and those that are there too often, as DuckDB reads the target."""
        expected = list(dict(written).items()) if self.way == "merge" else written
        name = self.workshop.table_name("target")
        with copy_lakehouse(self.workshop.settings, tables=[name]) as database:
            found = database.execute(f"select id, number from {SEEN}.{name}").fetchall()  # noqa: S608  # our own names
        rows = [(int(key), int(number)) for key, number in found]
        return len(set(expected) - set(rows)), len(rows) - len(set(rows)) + len(set(rows) - set(expected))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drill and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=300)
    parser.add_argument("--keep", type=float, default=60)
    parser.add_argument("--every", type=float, default=20)
    parser.add_argument("--away", type=float, default=180)
    parser.add_argument("--pause", type=float, default=1.5)
    parser.add_argument("--ways", nargs="+", choices=("append", "merge"), default=["append", "merge"])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    around = Surroundings(
        batches=options.batches,
        keep_seconds=options.keep,
        every_seconds=options.every,
        away_seconds=options.away,
        pause_seconds=options.pause,
    )
    reports = []
    with drill_workshops() as drill:
        for way in options.ways:
            one = ExpiryDrill(workshop=drill.workshop(), environment=drill.environment(), way=way, around=around)
            reports.append(one.run())
            sys.stdout.write(f"{json.dumps(asdict(reports[-1])) if options.json else reports[-1]}\n")
            sys.stdout.flush()
    return 0 if all(report.is_right for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
