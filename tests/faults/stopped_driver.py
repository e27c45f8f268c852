"""Real drivers are stopped in the middle of a batch; another one takes the stream over, and then they go on.

    python -m tests.faults.stopped_driver [--seconds 5 65] [--only append merge] [--points staged checked] [--json]

A driver with its Spark gets SIGSTOP between stage and publish, or between check and commit. Everybody believes it dead:
another driver publishes batch after batch for so long, and goes on while the stopped one continues. Then each guard is
taken out of a driver in turn, and the table must show what the guard is for (`--guarded-only` leaves that out). Only
the stop at a lost lease is not needed: without it the other guards must be enough.

Ends with 1 when a batch became visible twice or not at all, when the stopped driver did not end with its reason, or
when a guard that is not there was not missed.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from rich.console import Console
from rich.progress import track
from rich.table import Table as ReportTable
from tests.faults.crash_table import FOREIGN_ROW, Drill, drill_workshops
from tests.faults.guards import Guard
from tests.fixtures.crash_scenarios import BATCHES, FOREIGN, Scenario, Way
from tests.fixtures.faulty_drivers import PATIENCE_SECONDS, declare_lost, faulty_driver
from tests.fixtures.spark_jobs import wait_until
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import PublicationKey
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import read_summary
from sluice.stored_keys import FIRST_BATCH
from sluice_spark.run.stop_request import StopReason, StopRequest

RIGHT_ENDS = ("StaleTokenError", "LeaseLostError")
"""How a driver ends whose stream was taken over."""

KILLED = "SIGKILL"

FEEDS = 6
"""How many batches the other driver gets while the first one stands still."""

MEANWHILE_SECONDS = 5.0
"""Long enough for another driver to publish, and shorter than that."""

PAST_THE_EXPIRY_SECONDS = 45.0
"""Longer than Iceberg's Spark catalog keeps a table object by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StopReport:
    """What came of one driver.

    fault: what befell it. wrong_batches: those that became visible twice, or not at all.
    right_ends: how it may end.
    """

    way: Way
    point: CrashPoint
    fault: str
    batches: int
    wrong_batches: tuple[int, ...]
    are_rows_right: bool
    ended_with: str
    without: tuple[Guard, ...] = ()
    right_ends: tuple[str, ...] = RIGHT_ENDS

    @property
    def is_exactly_once(self) -> bool:
        """Whether every batch became visible once, and no older row came back."""
        return self.are_rows_right and not self.wrong_batches

    @property
    def is_right(self) -> bool:
        """Whether a guarded driver did no harm and gave up by name; whether one without a guard was found out."""
        if set(self.without) - {Guard.LEASE_STOP}:
            return not self.is_exactly_once
        return self.is_exactly_once and self.ended_with.partition(":")[0] in self.right_ends


def stop_and_replace(
    drill: Drill, scenario: Scenario, *, seconds: float, without: tuple[Guard, ...] = ()
) -> StopReport:
    """Stop a driver in its second batch, let another one work for so long, and let the first one go on."""
    workshop = drill.workshop()
    stream = f"s{workshop.namespace}"
    scenario.declare(workshop, stream)
    stopped = faulty_driver(
        workshop,
        drill.environment(),
        stream,
        point=scenario.point,
        occurrence=scenario.occurrence,
        number=signal.SIGSTOP,
        without=without,
    )
    with stopped as driver:
        driver.await_place()
        declare_lost(workshop, stream)
        with another_driver(workshop, stream) as other:
            for number in range(BATCHES, BATCHES + FEEDS):
                other.bring(scenario, number)
                time.sleep(seconds / FEEDS)  # how long it stands still is what is tested
            other.await_batch(BATCHES + FEEDS - 1)  # one that has only begun finds what the first one merges
            driver.go_on()
            words = driver.last_words()
            other.bring(scenario, BATCHES + FEEDS)
            other.await_batch(BATCHES + FEEDS)
    batches = BATCHES + FEEDS + 1
    return _report(
        workshop, scenario, batches=batches, ended_with=words, without=without, fault=f"stopped for {seconds:.0f} s"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherDriver:
    """The driver that has taken the stream over; it works on a thread of this process."""

    workshop: Workshop
    errors: list[Exception]

    def bring(self, scenario: Scenario, number: int) -> None:
        """Write what its next batch reads."""
        self.workshop.append("source", scenario.rows_of(number))

    def await_batch(self, number: int) -> None:
        """Wait until a batch is visible."""

        def is_there() -> bool:
            if self.errors:
                raise self.errors[0]
            return published_batches(self.workshop.table("target"))[number] > 0

        wait_until(is_there, within_seconds=PATIENCE_SECONDS)


@contextmanager
def another_driver(workshop: Workshop, stream: str) -> Iterator[OtherDriver]:
    """Run a stream on a thread while the block runs."""
    stop, errors = StopRequest(), list[Exception]()

    def work() -> None:
        try:
            workshop.run(stream, stop=stop)
        except Exception as error:  # noqa: BLE001  # raised by whoever waits for its batches
            errors.append(error)

    thread = threading.Thread(target=work, name="other-driver", daemon=True)
    thread.start()
    try:
        yield OtherDriver(workshop=workshop, errors=errors)
    finally:
        stop.make(StopReason.STOPPED)
        thread.join()


def with_history_expired(drill: Drill, *, without: tuple[Guard, ...]) -> StopReport:
    """A driver dies after its first publication, and the history that shows it is expired: only the mark is left."""
    workshop, scenario = drill.workshop(), Scenario(way=Way.APPEND, point=CrashPoint.PUBLISHED)
    stream = f"s{workshop.namespace}"
    scenario.declare(workshop, stream)
    dying = faulty_driver(workshop, drill.environment(), stream, point=scenario.point, without=without)
    with dying as driver:
        driver.await_death()
    declare_lost(workshop, stream)
    workshop.append("target", [FOREIGN_ROW])
    table = workshop.table("target")
    old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != table.metadata.current_snapshot_id]
    table.maintenance.expire_snapshots().by_ids(old).commit()
    scenario.finish(workshop, stream)
    rows = [row for row in workshop.rows("target") if row["word"] != FOREIGN]
    return StopReport(
        way=scenario.way,
        point=scenario.point,
        fault="killed, history expired",
        batches=BATCHES + 1,
        wrong_batches=(),
        are_rows_right=rows == scenario.expected(),
        ended_with=KILLED,
        without=without,
        right_ends=(KILLED,),
    )


def with_main_set_back(drill: Drill, *, without: tuple[Guard, ...]) -> StopReport:
    """Main is set back to its first batch while a driver stands between check and commit; that must not be undone."""
    workshop, scenario = drill.workshop(), Scenario(way=Way.APPEND, point=CrashPoint.CHECKED)
    stream = f"s{workshop.namespace}"
    scenario.declare(workshop, stream)
    stopped = faulty_driver(
        workshop,
        drill.environment(),
        stream,
        point=scenario.point,
        occurrence=BATCHES,
        number=signal.SIGSTOP,
        without=without,
    )
    with stopped as driver:
        driver.await_place()
        table = workshop.table("target")
        first = next(one for one in table.snapshots() if _key_of(one) is not None)
        table.manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
        driver.go_on()
        wait_until(
            lambda: driver.process.poll() is not None or workshop.rows("target") != scenario.expected(1),
            within_seconds=PATIENCE_SECONDS,
        )
        ended = driver.last_words() if driver.process.poll() is not None else "it goes on"
    report = _report(workshop, scenario, batches=1, ended_with=ended, without=without, fault="main set back")
    return replace(report, right_ends=("RolledBackError",))


def _report(
    workshop: Workshop,
    scenario: Scenario,
    *,
    batches: int,
    ended_with: str,
    without: tuple[Guard, ...],
    fault: str,
) -> StopReport:
    table = workshop.table("target")
    published = published_batches(table)
    return StopReport(
        way=scenario.way,
        point=scenario.point,
        fault=fault,
        batches=batches,
        wrong_batches=tuple(number for number in range(batches) if published[number] != 1),
        are_rows_right=workshop.rows("target") == scenario.expected(batches),
        ended_with=ended_with.rpartition("sluice: failed: ")[2],
        without=without,
    )


def published_batches(table: Table) -> Counter[int]:
    """How often each batch became visible, by the snapshots of main."""
    return Counter(number for snapshot in _ancestors(table) for number in _batches_of(snapshot))


def _ancestors(table: Table) -> Iterator[Snapshot]:
    """The snapshots of main, the newest first."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None


def _batches_of(snapshot: Snapshot) -> range:
    """The batches that a snapshot made visible."""
    last = _key_of(snapshot)
    if last is None or snapshot.summary is None:
        return range(0)
    first = int(snapshot.summary.additional_properties.get(FIRST_BATCH, last.batch))
    return range(first, last.batch + 1)


def _key_of(snapshot: Snapshot) -> PublicationKey | None:
    summary = read_summary(snapshot.summary.additional_properties) if snapshot.summary is not None else None
    return summary.key if summary is not None else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Stop the drivers, one after the other, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", nargs="*", type=float, default=[5, 65], help="how long they stand still")
    parser.add_argument("--only", nargs="*", default=["append", "merge"], help="ways of publishing")
    parser.add_argument("--points", nargs="*", default=["staged", "checked"], help="where they stand still")
    guards = parser.add_mutually_exclusive_group()
    guards.add_argument("--guarded-only", action="store_true", help="take no guard out of any driver")
    guards.add_argument("--unguarded-only", action="store_true", help="only the drivers without a guard")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    stops = [
        (Scenario(way=Way(way), point=CrashPoint(point)), seconds)
        for seconds in options.seconds
        for way in options.only
        for point in options.points
    ]
    with drill_workshops() as drill:
        cases: list[Callable[[], StopReport]] = []
        if not options.unguarded_only:
            cases += [partial(stop_and_replace, drill, scenario, seconds=seconds) for scenario, seconds in stops]
        if not options.guarded_only:
            cases += _without_guards(drill)
        reports: list[StopReport] = []
        problems: list[str] = []
        for case in track(cases, "drivers stopped", console=console):
            try:
                reports.append(case())
            except Exception as error:  # noqa: BLE001  # the others are to be seen all the same
                problems.append(f"{type(error).__name__}: {str(error)[:400]}")
                console.print(problems[-1], soft_wrap=True, markup=False)
            else:
                console.print(" · ".join(_cells(reports[-1])), soft_wrap=True, markup=False)
    if options.json:
        found = {"reports": [asdict(report) for report in reports], "problems": problems}
        print(json.dumps(found, indent=1))  # noqa: T201  # the answer of the program
    else:
        _print(reports, problems)
    return 0 if not problems and all(report.is_right for report in reports) else 1


def _without_guards(drill: Drill) -> list[Callable[[], StopReport]]:
    merge = Scenario(way=Way.MERGE, point=CrashPoint.CHECKED)
    deaf = (Guard.LEASE_STOP,)  # a driver that hears of its lost lease at once mostly stops before its MERGE
    return [
        partial(with_history_expired, drill, without=()),
        partial(with_history_expired, drill, without=(Guard.MARK,)),
        partial(with_main_set_back, drill, without=()),
        partial(with_main_set_back, drill, without=(Guard.COMPARISON,)),
        partial(stop_and_replace, drill, merge, seconds=PAST_THE_EXPIRY_SECONDS, without=deaf),
        partial(stop_and_replace, drill, merge, seconds=PAST_THE_EXPIRY_SECONDS, without=(*deaf, Guard.KEPT_TABLE)),
        partial(stop_and_replace, drill, merge, seconds=MEANWHILE_SECONDS, without=(*deaf, Guard.HELD_TABLE)),
    ]


def _cells(report: StopReport) -> tuple[str, ...]:
    seen = "once each" if report.is_exactly_once else f"WRONG ROWS, batches {list(report.wrong_batches)}"
    return (
        report.way,
        report.point,
        report.fault,
        f"without {' and '.join(report.without)}" if report.without else "all guards",
        f"{report.batches}",
        seen,
        report.ended_with[:60],
        "right" if report.is_right else "WRONG",
    )


def _print(reports: Sequence[StopReport], problems: Sequence[str]) -> None:
    table = ReportTable(title=f"{len(reports)} drivers stopped or killed, while others took their streams over")
    for heading in ("way", "place", "fault", "guards", "batches", "visible", "ended with", "verdict"):
        table.add_column(heading)
    for report in reports:
        table.add_row(*_cells(report))
    console = Console(width=160, markup=False)
    console.print(table)
    for problem in problems:
        console.print(f"not looked at: {problem}")


if __name__ == "__main__":
    sys.exit(main())
