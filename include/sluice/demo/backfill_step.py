"""The step that corrupts days of silver and gold beside the live streams, and repairs them by a backfill."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, field, replace
from threading import Event
from typing import TYPE_CHECKING

from sluice.backfill.intervals import Interval, divide
from sluice.demo import verification
from sluice.demo.airflow_backfill import await_no_backfill, backfill_days
from sluice.demo.comparison import CheckResult, compare, require_truth
from sluice.demo.corrupted_days import GOLD_TABLE, SILVER_TABLE, corrupt, days_to_corrupt
from sluice.demo.dag_runs import BACKFILL
from sluice.demo.demo_progress import DemoStep, JobProgress, LiveTable, StepLog
from sluice.demo.flights_data import Span
from sluice.demo.lakehouse_copy import SEEN, copy_lakehouse
from sluice.demo.local_platform import LocalPlatform, watch_streams
from sluice.demo.proof import expect_recovered, load_oracle
from sluice.demo.replay_position import make_plan, plans_in
from sluice.demo.stream_watch import GOLD, SILVER, has_passed
from sluice.tables.catalog import open_catalog

if TYPE_CHECKING:
    import duckdb

    Database = duckdb.DuckDBPyConnection

_TIME_COLUMNS = {SILVER_TABLE: "departure", GOLD_TABLE: "window_start"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillStep:
    """Deletes days of silver and doubles them in gold, backfills them through Airflow, and verifies them; then
    backfills them again, and verifies that no row has changed.

    span: what is replayed; the days are of it, or before it.
    live: shows how many runs have ended.
    repaired: set when the days are verified for the first time. From then on other jobs may read silver.
    """

    platform: LocalPlatform
    log: StepLog
    span: Span
    live: LiveTable
    repaired: Event = field(default_factory=Event)

    def run(self) -> tuple[CheckResult, ...]:
        """Carry it out, as soon as no flight of the replay changes the days any more.

        Raises
        ------
        VerificationError: when the days are not what was sent, or the second backfill has changed a row.
        DemonstrationError: when a run fails, or when nothing moves.
        """
        days = days_to_corrupt(self.span)
        with self.log.step(DemoStep.BACKFILL):
            self.platform.dag_runs.await_known(BACKFILL)
            # One of an interrupted demo would repair a part of the days.
            await_no_backfill(self.platform.dag_runs, BACKFILL)
            _await_closed(self.platform, days)
            corrupt(open_catalog(self.platform.settings), days)
            _backfill(self.platform, days, self.live, what="Backfill of corrupted days")
            with closing(copy_days(self.platform, days)) as repaired:
                expect_days(repaired, self.platform, days)
                require_truth(checks := check_repair(repaired, days))
                self.repaired.set()
                _backfill(self.platform, days, self.live, what="The same backfill again")
                with closing(copy_days(self.platform, days)) as repeated:
                    checks += check_repetition(repaired, repeated, days)
            require_truth(checks)
            return checks


def copy_days(platform: LocalPlatform, days: Interval) -> Database:
    """A copy of the days in silver and gold."""
    database = copy_lakehouse(platform.settings, tables=tuple(_TIME_COLUMNS))
    restrict(database, days)
    return database


def restrict(database: Database, days: Interval) -> None:
    """Leave only the rows of some days in the copies of silver and gold."""
    for table, column in _TIME_COLUMNS.items():
        outside = f"delete from {SEEN}.{table} where {column} < $1 or {column} >= $2"  # noqa: S608  # our own names
        database.execute(outside, [days.start, days.end])


def expect_days(database: Database, platform: LocalPlatform, days: Interval) -> None:
    """Load the rows that are expected in the days: what was sent of them, and what the backfill has recovered."""
    sent = platform.topic.read()
    load_oracle(database, sent=sent, plans=[make_plan(name) for name in plans_in(sent)], weather_days=())
    expect_recovered(database, [days])
    restrict_expected(database, days)


def restrict_expected(database: Database, days: Interval) -> None:
    """Leave only the flights of some days among those that must be there."""
    within = "create temp table arrived_then as from arrived where departure >= $1 and departure < $2"
    database.execute(within, [days.start, days.end])
    database.execute("create or replace temp view arrived as from arrived_then")


def check_repair(database: Database, days: Interval) -> tuple[CheckResult, ...]:
    """Compare silver and gold with what was sent: no row is lost, none is doubled.

    Parameters
    ----------
    database: see `copy_days` and `expect_days`.
    """
    silver = verification.silver_holds_the_flights(database)
    gold = verification.gold_by_carrier_equals_the_csv(database)
    when = _spoken(days)
    return (
        replace(
            silver,
            name="backfill of silver.flights",
            statement=f"silver holds every flight of {when} once again, all of which another writer had deleted",
        ),
        replace(
            gold,
            name="backfill of gold.delays_by_carrier_hour",
            statement=f"gold holds every row of {when} once again, each of which another writer had doubled",
        ),
    )


def check_repetition(before: Database, after: Database, days: Interval) -> tuple[CheckResult, ...]:
    """Compare the days before and after the second backfill, in every column."""
    return tuple(_unchanged(before, after, table, days) for table in _TIME_COLUMNS)


def _unchanged(before: Database, after: Database, table: str, days: Interval) -> CheckResult:
    after.register("content_before", before.execute(f"from {SEEN}.{table}").to_arrow_table())
    return compare(
        after,
        name=f"repeated backfill of {table}",
        statement=f"the same backfill again has changed no row of {_spoken(days)} in {table}",
        expected="from content_before",
        seen=f"from {SEEN}.{table}",
    )


def _await_closed(platform: LocalPlatform, days: Interval) -> None:
    """Wait until neither stream writes into the days any more."""
    watch = watch_streams(platform)
    platform.standstill.await_answer(
        lambda: has_passed(watch.observe(), days.end, streams=(SILVER, GOLD)) or None,
        what=f"The watermarks of {SILVER} and {GOLD} have not passed {days.end:%Y-%m-%d}",
        next_step="Look at `sluice stream status`.",
    )


def _backfill(platform: LocalPlatform, days: Interval, live: LiveTable, *, what: str) -> None:
    total = len(divide(days, "day"))
    try:
        backfill_days(
            platform.dag_runs,
            BACKFILL,
            days,
            report_ended=lambda ended: live.show_job(JobProgress(what=what, done=ended, total=total)),
        )
    finally:
        live.show_job(None)


def _spoken(days: Interval) -> str:
    parts = divide(days, "day")
    first, last = parts[0].start, parts[-1].start
    return f"{first:%Y-%m-%d}" if first == last else f"{first:%Y-%m-%d} to {last:%Y-%m-%d}"
