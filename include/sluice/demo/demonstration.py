"""The demo from the first service to the last check: `sluice demo`. Its bounded jobs are started through Airflow: the
weather, maintenance, quality, checkpoint health.

Steps overlap to keep both cores of a small machine busy: the replay is planned while the tables are created; half of
the flights are sent as a backlog while the drivers start, and half while the streams run. Each job begins as soon as
its input is there: the backfill when the streams have passed the days that it corrupts, the weather, the maintenance
and the quality checks when the flights are read and those days are repaired, which is while they are backfilled once
more. The late set is sent after that, so that the second backfill finds the records of the first.

Ctrl-C stops the replay between two hours of event time, when every sent record is acknowledged. The stack keeps
running, as it does at the end of the demo: `sluice stack down` stops it, and `sluice demo` continues the replay. While
the stack itself is being started, Ctrl-C stops it, as it does for `sluice stack up`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Event
from typing import TYPE_CHECKING, Any

from rich.console import Console

from sluice.declarations.load_declarations import load_declarations
from sluice.demo.airflow_api import (
    BRONZE_WEATHER,
    CHECKED_TABLES,
    CHECKPOINT_HEALTH,
    GOLD_BY_WEATHER,
    MAINTAINED_TABLES,
    MAINTENANCE,
    QUALITY,
    DagRunObservation,
)
from sluice.demo.backfill_step import BackfillStep
from sluice.demo.flight_streaming import FlightStreaming, watermark_to_pass
from sluice.demo.flights_data import DAYS_OF_DATA, FIRST_DAY, Span, drop_weather, open_landing_folder
from sluice.demo.flights_topic import NextReplay
from sluice.demo.lakehouse_copy import CheckResult, compare, copy_lakehouse, require_truth
from sluice.demo.local_platform import (
    LocalPlatform,
    open_platform,
    prepare_replay,
    prepare_tables,
    start_stack,
    watch_streams,
    where_to_look,
)
from sluice.demo.proof import load_sent, prove
from sluice.demo.report import BRONZE, STREAMS, DemoReport, DemoStep, LiveTable, Render, StepLog
from sluice.errors import DemonstrationError
from sluice.ledger.batches import PublicationKey, totals
from sluice.ledger.connection import database_time
from sluice.ledger.held_batches import HeldBatch, HeldDecision, find_held
from sluice.operations import OperationVerb
from sluice.publication.held_decisions import decide, plan_decision

if TYPE_CHECKING:
    import duckdb

    Database = duckdb.DuckDBPyConnection

DEMO = "sluice demo"
"""Whom the ledger names as the person who releases what is held."""


def unpause_streams(platform: LocalPlatform) -> None:
    """Unpause the DAGs of the continuous streams.

    Raises
    ------
    DemonstrationError: when Airflow does not parse them.
    """
    for stream in STREAMS:
        platform.dag_runs.await_known(stream)
        platform.airflow.unpause(stream)


def run_weather(platform: LocalPlatform, log: StepLog, *, flights_until: datetime) -> str:
    """Write weather files, read them with one incremental run, release what a rule of the table holds of them, and wait
    for the run that its new rows trigger. A demo that continues an interrupted one may find all of them written, and
    read: then there is nothing to trigger one.

    Parameters
    ----------
    log: records how long it took.
    flights_until: all flights that departed earlier are in `silver.flights`.

    Returns
    -------
    What was held, and released without the rows that break the rule; empty when nothing was.

    Raises
    ------
    DemonstrationError: when a job fails, or when nothing moves.
    UsageError: when the held batch cannot be released.
    """
    with log.step(DemoStep.WEATHER):
        platform.dag_runs.await_known(GOLD_BY_WEATHER)
        platform.airflow.unpause(GOLD_BY_WEATHER)
        known = _runs(platform, GOLD_BY_WEATHER)
        written = drop_weather(open_landing_folder(platform.settings), ends_at=flights_until)
        run = _run(platform, BRONZE_WEATHER)
        held, released = "", set[PublicationKey]()
        # A demo that was interrupted may have left one, too.
        while (waiting := find_held(platform.ledger, BRONZE_WEATHER)) is not None and waiting.key not in released:
            released.add(waiting.key)
            held = release_weather(platform, log, waiting)
            run = _run(platform, BRONZE_WEATHER)
        if written and not held:
            raise DemonstrationError(
                f"A bad file was dropped, and {BRONZE_WEATHER} has held no batch.",
                next_step=f"See what its rule has found: `sluice batch list {BRONZE_WEATHER}`.",
            )
        if written or platform.airflow.has_raised_asset_events(run):
            platform.dag_runs.await_new(GOLD_BY_WEATHER, known=known)
        for triggered in platform.airflow.runs(GOLD_BY_WEATHER):
            if triggered.run_id not in known or not triggered.has_ended:
                platform.dag_runs.await_success(triggered)
    return held


def release_weather(platform: LocalPlatform, log: StepLog, held: HeldBatch) -> str:
    """Decide as a person does about weather that a rule holds: its rows become visible, those that break the rule go to
    the quarantine. The next run carries it out.

    Returns
    -------
    What was held and what became of it, in a sentence.

    Raises
    ------
    UsageError: when its rows cannot be separated.
    """
    decision, by = held.decision, held.decided_by
    if decision is None:
        stream = load_declarations(platform.settings.pipelines, only=BRONZE_WEATHER).stream(BRONZE_WEATHER)
        plan = plan_decision(platform.ledger, stream, OperationVerb.SEPARATE_BATCH)
        decide(platform.ledger, plan, requested_by=DEMO, planned=plan.digest)
        decision, by = HeldDecision.SEPARATED, DEMO
    sentence = (
        f"A bad file was held, and none of its rows visible: batch {held.key.number} of {BRONZE_WEATHER} breaks "
        f"{held.reason}. "
    )
    if decision is HeldDecision.SEPARATED:
        sentence += f"It was released without those rows; they are in quarantine.{BRONZE_WEATHER}."
    else:
        sentence += f"It was {decision} by {by}."
    log.print(f"[yellow]![/yellow] {sentence}")
    return sentence


def run_maintenance(platform: LocalPlatform, log: StepLog) -> None:
    """Run the maintenance of the tables that receive small files.

    Parameters
    ----------
    log: records how long it took.

    Raises
    ------
    DemonstrationError: when a job fails, or when nothing moves.
    """
    with log.step(DemoStep.MAINTENANCE):
        _run(platform, MAINTENANCE, tables=MAINTAINED_TABLES)


def run_checks(platform: LocalPlatform, log: StepLog) -> None:
    """Run the quality checks, then the checks of the checkpoints.

    Parameters
    ----------
    log: records how long each took.

    Raises
    ------
    DemonstrationError: when a check fails, or when nothing moves.
    """
    with log.step(DemoStep.QUALITY):
        _run(platform, QUALITY, tables=CHECKED_TABLES)
    with log.step(DemoStep.HEALTH):
        _run(platform, CHECKPOINT_HEALTH)


def _run(platform: LocalPlatform, dag_id: str, *, tables: tuple[str, ...] = ()) -> DagRunObservation:
    platform.dag_runs.await_known(dag_id)
    known = _runs(platform, dag_id)
    platform.airflow.unpause(dag_id)
    conf = {"tables": list(tables)} if tables else {}
    return platform.dag_runs.await_success(platform.dag_runs.run_now(dag_id, conf=conf, known=known))


def _runs(platform: LocalPlatform, dag_id: str) -> frozenset[str]:
    return frozenset(run.run_id for run in platform.airflow.runs(dag_id))


_TABLE = "bronze.flights"


def look_at_bronze(platform: LocalPlatform, log: StepLog) -> None:
    """Wait for a batch with rows, then verify that bronze holds the topic as far as it has come, and print it.

    Parameters
    ----------
    log: prints it, with the seconds since the demo began.

    Raises
    ------
    VerificationError: when bronze holds anything else.
    DemonstrationError: when no batch comes, and nothing moves.
    """
    platform.standstill.await_answer(
        lambda: totals(platform.ledger, BRONZE).input_rows or None,
        what=f"{BRONZE} has not delivered a row",
        next_step="Look at `sluice stream status`.",
    )
    with closing(copy_lakehouse(platform.settings, tables=(_TABLE,))) as database:
        load_sent(database, platform.topic.read())
        check = check_arrived(database)
    require_truth([check])
    log.print(
        f"[green]✓[/green] Verified by DuckDB so far: {check.seen_rows:,} rows, {check.statement} "
        f"[dim](after {log.seconds:.1f} s)[/dim]"
    )


def check_arrived(database: Database) -> CheckResult:
    """Compare bronze with the topic as far as it has come.

    A batch takes the records of a partition in their order, so none before the newest one is missing.

    Parameters
    ----------
    database: holds the table `sent` and the copy of bronze.
    """
    return compare(
        database,
        name="first rows of bronze.flights",
        statement="bronze holds the records of the topic, each at its place, and none before the newest is missing",
        expected="""
            select topic, partition, "offset", key, value from sent where "offset" <= (
                select max(arrived."offset") from seen.bronze.flights as arrived
                where arrived.topic = sent.topic and arrived.partition = sent.partition
            )
        """,
        seen='select topic, partition, "offset", decode(key), decode(value) from seen.bronze.flights',
    )


_THREADS = 5
"""The plan, then the first look at bronze, the replay and the backfill; at the end the backfill, the weather, the
maintenance and the checks beside the late set: at most five at a time."""

YEAR = Span(first_day=FIRST_DAY, days=DAYS_OF_DATA)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of a demo.

    days: how many days are replayed; at least two.
    hours_per_second: hours of event time per second; None is as fast as possible.
    seed: decides which records are late, repeated and malformed.
    """

    days: int
    hours_per_second: float | None
    seed: int = 2013


def demonstrate(options: DemoOptions, *, console: Console | None, render: Render) -> DemoReport:
    """Run the whole platform on the next days of real flights, and verify the tables.

    Parameters
    ----------
    console: shows the progress; None shows nothing.
    render: makes the live table of the streams; see `LiveTable`.

    Raises
    ------
    VerificationError: when a table does not hold what was sent.
    DemonstrationError: when a stream or a job fails, or when nothing progresses.
    StackError: when the local stack cannot be started.
    """
    log = StepLog(console)
    with log.step(DemoStep.STACK):
        access = start_stack(console)
    with _threads(log) as (pool, stopped), open_platform(access, stopped=stopped) as platform:
        upcoming = _prepare(platform, options, log, pool)
        flights_until = upcoming.plan.span.ends_at if upcoming else YEAR.ends_at
        live = LiveTable(console, render=render)
        repair, held = _stream(platform, options, log, pool, live=live, upcoming=upcoming, flights_until=flights_until)
        with log.step(DemoStep.VERIFICATION):
            proof = prove(settings=platform.settings, ledger=platform.ledger, topic=platform.topic)
        require_truth(proof.checks)
        return DemoReport(
            days=str(upcoming.plan.span) if upcoming else None,
            is_year_over=flights_until >= YEAR.ends_at,
            sent_records=proof.sent_records,
            balance=proof.balance,
            tables=proof.tables,
            checks=(*proof.checks, *repair),
            held=held,
            steps=log.durations,
            total_seconds=log.seconds,
            where=where_to_look(access),
        )


@contextmanager
def _threads(log: StepLog) -> Iterator[tuple[Executor, Event]]:
    """A thread pool and its stop event; when the block ends, the event is set and the threads are joined."""
    stopped = Event()
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="demo") as pool:
        try:
            yield pool, stopped
        except KeyboardInterrupt:
            log.print("Interrupted. The stack still runs: `sluice stack down` stops it, `sluice demo` continues here.")
            raise
        finally:
            stopped.set()


def _prepare(platform: LocalPlatform, options: DemoOptions, log: StepLog, pool: Executor) -> NextReplay | None:
    planning = pool.submit(prepare_replay, platform.topic, days=options.days, seed=options.seed)
    with log.step(DemoStep.TABLES):
        prepare_tables(platform)
    upcoming = planning.result()
    if upcoming is None:
        log.print("Every flight of 2013 has been sent already: nothing is replayed, and no day is corrupted beside it.")
    else:
        what = "An earlier replay was interrupted; it still has" if upcoming.is_continued else "The replay has"
        log.print(f"{what} {len(upcoming.missing):,} records of {upcoming.plan.span}.")
    return upcoming


def _stream(
    platform: LocalPlatform,
    options: DemoOptions,
    log: StepLog,
    pool: Executor,
    *,
    live: LiveTable,
    upcoming: NextReplay | None,
    flights_until: datetime,
) -> tuple[tuple[CheckResult, ...], str]:
    """Run the streams and the jobs; the checks of the backfill, and what was held of the weather."""
    on_time, late_set = (upcoming.on_time, upcoming.late_set) if upcoming else ((), ())
    backlog, rest = on_time[: len(on_time) // 2], on_time[len(on_time) // 2 :]
    with live:
        streaming = FlightStreaming(
            platform=platform,
            watch=watch_streams(platform),
            live=live,
            log=log,
            began_at=database_time(platform.ledger),
            planned=len(on_time) + len(late_set),
            plan_name=upcoming.plan.name if upcoming else "",
            pool=pool,
        )
        with log.step(DemoStep.DRIVERS):
            unpause_streams(platform)
            looking = pool.submit(look_at_bronze, platform, log)
            sending = streaming.send(backlog, hours_per_second=options.hours_per_second)
            streaming.await_under_way(sending, headline="Drivers start")
        backfill = BackfillStep(platform=platform, log=log, span=upcoming.plan.span, live=live) if upcoming else None
        backfilling = pool.submit(backfill.run) if backfill else None
        with log.step(DemoStep.FLIGHTS):
            sending = streaming.send(rest, hours_per_second=options.hours_per_second)
            streaming.await_drained(sending, headline="Streams read flights")
        looking.result()
        if backfill and backfilling:
            streaming.await_either(backfill.repaired, backfilling, headline="Streams run beside the backfill")
        weather = pool.submit(run_weather, platform, log, flights_until=flights_until)
        jobs: tuple[Future[Any], ...] = (
            weather,
            pool.submit(run_maintenance, platform, log),
            pool.submit(run_checks, platform, log),
        )
        if backfilling:
            streaming.await_job(backfilling, headline="Streams run beside the backfill and other jobs")
        if late_set:
            with log.step(DemoStep.LATE_SET):
                streaming.await_passed(watermark_to_pass(late_set), headline="Watermark passes the late flights")
                sending = streaming.send(late_set, hours_per_second=None)
                streaming.await_drained(sending, headline="Streams drop the late flights")
        for job in jobs:
            streaming.await_job(job, headline="Streams run beside the last jobs")
    return backfilling.result() if backfilling else (), weather.result()
