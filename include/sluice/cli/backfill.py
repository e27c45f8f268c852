"""`sluice backfill`: compute intervals of a stream again, beside the live stream."""

from __future__ import annotations

import getpass
import math
from functools import partial
from typing import Annotated

import typer

from sluice.backfill.backfill_plan import BackfillPlan, plan_backfill
from sluice.backfill.followers import Follower, followers_of
from sluice.backfill.interval_gaps import joined
from sluice.backfill.intervals import Interval, divide, parse_interval
from sluice.backfill.observe_backfill import backfill_of, observe_backfill
from sluice.backfill.waiting_requests import waiting_for
from sluice.cli.backfill_results import BackfillResults
from sluice.cli.command_options import AsJson, DryRun, StreamName
from sluice.cli.gap_verbs import search_gaps
from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, print_dry_run_note, print_json
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import UnhealthyError, UsageError
from sluice.launching.foreground import run_and_report
from sluice.launching.job_command import RunBackfill
from sluice.launching.job_output import json_value
from sluice.ledger.backfill_attempts import attempts_launched_by
from sluice.ledger.backfill_requests import add_request, observe_request
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.records.backfill_request import IntervalRequest, RequestObservation, RequestState
from sluice.processes.deadline import wait_until
from sluice.settings import Settings, load_settings
from sluice.tables.catalog import open_catalog

app = typer.Typer(add_completion=False)

_LOOK_SECONDS = 2.0


@app.command()
def backfill(
    stream: StreamName,
    start: Annotated[str, typer.Option("--from", help="The first time of the interval, in ISO 8601; UTC.")] = "",
    end: Annotated[str, typer.Option("--to", help="The end, which is not part of the interval any more.")] = "",
    gaps: Annotated[
        bool, typer.Option("--gaps", help="Only the intervals that differ from the sources (`sluice stream gaps`).")
    ] = False,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="Begin with the newest interval.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Compute an interval of a stream again and replace it, hour by hour, day by day or month by month."""
    settings = load_settings()
    loaded = load_declarations(settings.pipelines).stream(stream)
    length = backfill_of(loaded).interval
    if gaps:
        intervals = joined(search_gaps(settings, loaded, start=start, end=end).gaps)
        if not intervals:
            typer.echo(f"No interval of {stream} differs from its sources.", err=True)
    else:
        intervals = divide(_interval(start, end), length)
    if newest_first:
        intervals = tuple(reversed(intervals))
    if dry_run:
        _show_plans(settings, stream, intervals, as_json=as_json)
    else:
        _carry_out(settings, loaded, intervals, as_json=as_json)


def _interval(start: str, end: str) -> Interval:
    if not start or not end:
        raise UsageError("A backfill has a first time, --from, and an end, --to.", next_step="Or write --gaps.")
    return parse_interval(start, end)


def _show_plans(settings: Settings, stream: str, intervals: tuple[Interval, ...], *, as_json: bool) -> None:
    """Print the plan of each interval; nothing needs Spark."""
    declarations = load_declarations(settings.pipelines)
    catalog = open_catalog(settings)
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        observe = partial(observe_backfill, catalog, ledger, declarations, settings=settings)
        plans = [
            plan_backfill(observe(one.stream, one.interval)[0])
            for interval in intervals
            for one in _in_order(declarations, declarations.stream(stream), interval)
        ]
    if as_json:
        print_json({"stream": stream, "dry_run": True, "plans": [json_value(plan) for plan in plans]})
    else:
        _print_plans(plans)
    if any(plan.is_refused for plan in plans):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _in_order(declarations: Declarations, stream: LoadedStream, interval: Interval) -> tuple[Follower, ...]:
    """The stream itself and those that follow it."""
    return (Follower(stream=stream, interval=interval), *followers_of(declarations, stream, interval))


def _print_plans(plans: list[BackfillPlan]) -> None:
    for plan in plans:
        for sentence in plan.sentences():
            typer.echo(sentence)
    print_dry_run_note()


def _carry_out(settings: Settings, stream: LoadedStream, intervals: tuple[Interval, ...], *, as_json: bool) -> None:
    """Ask for all intervals and run one application after another until each was replaced, and stop at the first
    interval that fails: what was replaced before stays."""
    launched_by = f"sluice backfill, {getpass.getuser()}"
    digest = load_declarations(settings.pipelines).digest
    printed = BackfillResults(as_json=as_json)
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        numbers = [add_request(ledger, _request(stream, one, launched_by, digest=digest)) for one in intervals]
        with waiting_for(ledger, numbers):
            for interval, number in zip(intervals, numbers, strict=True):
                while (seen := _await_end_or_turn(ledger, number)).is_open:
                    _run_application(settings, stream, interval, launched_by, printed)
                _require_done(seen, stream, interval)
                printed.print_recorded(attempts_launched_by(ledger, launched_by), stream.name, interval)


def _require_done(seen: RequestObservation, stream: LoadedStream, interval: Interval) -> None:
    """Go on only when an interval was replaced."""
    if seen.state is RequestState.WITHDRAWN:
        raise UnhealthyError(
            f"{interval.spoken} of {stream.name} was not replaced for this command: the same user has asked for the "
            "same interval again meanwhile, or a person has withdrawn the request.",
            next_step=f"Wait for the other command; if there is none, run this one again. `sluice stream events "
            f"{stream.name}` lists every attempt.",
        )
    if seen.state is not RequestState.DONE:
        typer.echo(seen.failure or f"{interval.spoken} was not replaced.", err=True)
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _await_end_or_turn(ledger: Ledger, number: int) -> RequestObservation:
    """The request once it has ended, or no application works any more: that of a run in Airflow takes it, too."""
    return wait_until(
        partial(observe_request, ledger, number),
        lambda seen: not seen.is_open or not seen.has_application,
        seconds=math.inf,
        poll_seconds=_LOOK_SECONDS,
    )


def _run_application(
    settings: Settings, stream: LoadedStream, interval: Interval, launched_by: str, printed: BackfillResults
) -> None:
    """Run a job for an interval; it goes on with the others. Its output is a line of JSON for each."""
    command = RunBackfill(
        stream=stream.name, start=interval.start.isoformat(), end=interval.end.isoformat(), launched_by=launched_by
    )
    exit_code = run_and_report(command, settings, engine=stream.declaration.engine, report=printed.print_line)
    if exit_code != 0:
        raise typer.Exit(exit_code)


def _request(stream: LoadedStream, interval: Interval, launched_by: str, *, digest: str) -> IntervalRequest:
    return IntervalRequest(
        stream=stream.name,
        interval_start=interval.start,
        interval_end=interval.end,
        launched_by=launched_by,
        digest=digest,
    )
