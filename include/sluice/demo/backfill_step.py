"""The step that corrupts days of silver and gold beside the live streams, and repairs them by a backfill.

The days are corrupted as a mistake of another writer would do it: with pyiceberg. Each backfill is created through
Airflow's REST API, and waited for until its own runs have ended.
Source: https://airflow.apache.org/docs/apache-airflow/stable/core-concepts/backfill.html
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from threading import Event
from typing import TYPE_CHECKING

import pyarrow as pa
import tenacity
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table

from sluice.backfill.intervals import Interval, divide
from sluice.demo import verification
from sluice.demo.airflow_api import BACKFILL, DagRuns
from sluice.demo.flights_data import FIRST_DAY, Span
from sluice.demo.flights_topic import make_plan, plans_in
from sluice.demo.lakehouse_copy import SEEN, CheckResult, compare, copy_lakehouse, require_truth
from sluice.demo.local_platform import LocalPlatform, watch_streams
from sluice.demo.proof import expect_recovered, load_oracle
from sluice.demo.report import GOLD, SILVER, DemoStep, JobProgress, LiveTable, StepLog, has_passed
from sluice.errors import DemonstrationError
from sluice.tables.catalog import open_catalog

if TYPE_CHECKING:
    import duckdb

    Database = duckdb.DuckDBPyConnection


SILVER_TABLE, GOLD_TABLE = "silver.flights", "gold.delays_by_carrier_hour"

_DAYS = timedelta(days=3)
_CLOSED_BEFORE_END = timedelta(days=1)
"""The watermark follows the newest flight by six hours, and a night has hours without flights: the last day of a span
that is surely closed when everything was read ends a day before it."""

_ATTEMPTS = 20
"""The live streams commit every two seconds; a commit that they overtake is made again on the new head."""


def days_to_corrupt(span: Span) -> Interval:
    """Three days, the first whole ones of a span; earlier ones, or fewer at the begin of the year, in a short span.

    Parameters
    ----------
    span: what the demo replays. The days are closed before its end: no flight of the replay changes them any more.
    """
    first = _midnight(span.starts_at) + timedelta(days=1)
    end = min(first + _DAYS, _midnight(span.ends_at) - _CLOSED_BEFORE_END)
    return Interval(start=max(_midnight(Span(first_day=FIRST_DAY, days=1).starts_at), end - _DAYS), end=end)


def corrupt(catalog: Catalog, days: Interval) -> None:
    """Delete the flights of days from silver, and append every row of these days in gold a second time.

    Raises
    ------
    DemonstrationError: when the tables do not show it afterwards.
    """
    flights, hours = _within("departure", days), _within("window_start", days)
    good_rows = catalog.load_table(GOLD_TABLE).scan(row_filter=hours).count()
    _commit(catalog, SILVER_TABLE, lambda silver: silver.delete(flights))
    _commit(catalog, GOLD_TABLE, lambda gold: gold.append(_content(gold, hours)))
    left = catalog.load_table(SILVER_TABLE).scan(row_filter=flights).count()
    doubled = catalog.load_table(GOLD_TABLE).scan(row_filter=hours).count()
    if left or doubled != 2 * good_rows or not good_rows:
        raise DemonstrationError(
            f"{days.spoken} could not be corrupted: {SILVER_TABLE} still holds {left} flights of it, and "
            f"{GOLD_TABLE} {doubled} rows instead of twice {good_rows}.",
            next_step="Look at the newest snapshots of these tables: another program may write them.",
        )


def _commit(catalog: Catalog, name: str, change: Callable[[Table], object]) -> None:
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((CommitFailedException, ValidationException)),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    retrying(lambda: change(catalog.load_table(name)))


def _content(table: Table, rows: BooleanExpression) -> pa.Table:
    return table.scan(row_filter=rows).to_arrow().cast(table.schema().as_arrow())


def _within(column: str, days: Interval) -> BooleanExpression:
    start, end = days.start.isoformat(), days.end.isoformat()
    return And(GreaterThanOrEqual(term=column, value=start), LessThan(term=column, value=end))


def _midnight(moment: datetime) -> datetime:
    return datetime.combine(moment, time(), tzinfo=UTC)


_AT_ONCE = 3


def backfill_days(dag_runs: DagRuns, dag_id: str, days: Interval, *, report_ended: Callable[[int], object]) -> None:
    """Backfill whole days, also those that were backfilled before, and wait until each of them has succeeded.

    Parameters
    ----------
    dag_id: the DAG of a stream's backfills.
    report_ended: receives how many of the days have ended, whenever it was looked.

    Raises
    ------
    DemonstrationError: when a run fails, with the end of its log, or when nothing moves.
    """
    await_no_backfill(dag_runs, dag_id)
    _create(dag_runs, dag_id, days)
    dates, number = _dates(days), len(divide(days, "day"))

    def ended() -> bool | None:
        runs = dag_runs.airflow.runs(dag_id, run_type="backfill", **dates)
        over = [run for run in runs if run.has_ended]
        report_ended(len(over))
        return True if len(over) == number or any(run.state == "failed" for run in over) else None

    dag_runs.standstill.await_answer(
        ended,
        what=f"The backfill of {days.spoken} by the DAG {dag_id} has not ended",
        next_step=f"Look at the DAG {dag_id} in Airflow.",
    )
    for run in dag_runs.airflow.runs(dag_id, run_type="backfill", **dates):
        dag_runs.await_success(run)
    # All its runs have ended. Airflow itself looks for that every half minute only, and admits no other one before.
    dag_runs.airflow.close_backfill(dag_id)


def await_no_backfill(dag_runs: DagRuns, dag_id: str) -> None:
    """Wait until Airflow has noticed the end of the newest backfill of a DAG: it admits one of a DAG at a time.

    A run that was working when the stack was stopped is noticed after five minutes, and tried again.

    Raises
    ------
    DemonstrationError: when nothing moves before.
    """
    dag_runs.standstill.await_answer(
        lambda: dag_runs.airflow.open_backfill(dag_id) is None or None,
        what=f"Another backfill by the DAG {dag_id} is under way",
        next_step=f"Look at the backfills of the DAG {dag_id} in Airflow.",
    )


def _create(dag_runs: DagRuns, dag_id: str, days: Interval) -> None:
    dates = _dates(days)
    order = {
        "dag_id": dag_id,
        "from_date": dates["logical_date_gte"],
        "to_date": dates["logical_date_lte"],
        "run_backwards": True,
        "max_active_runs": _AT_ONCE,
        "reprocess_behavior": "completed",
        "dag_run_conf": {"allow_fewer": True},  # another writer has doubled rows, which go
    }
    dag_runs.airflow.request("POST", "/api/v2/backfills", json=order)


def _dates(days: Interval) -> dict[str, str]:
    """The first and the last day: Airflow names a run by the start of its interval."""
    last = days.end - timedelta(days=1)
    return {"logical_date_gte": days.start.isoformat(), "logical_date_lte": last.isoformat()}


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
