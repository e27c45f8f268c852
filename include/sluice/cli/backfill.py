"""`sluice backfill`: compute intervals of a stream again, beside the live stream."""

from __future__ import annotations

import json
from functools import partial
from typing import Annotated

import typer

from sluice.backfill.backfill_plan import BackfillPlan, plan_backfill
from sluice.backfill.followers import Follower, followers_of
from sluice.backfill.interval_gaps import joined
from sluice.backfill.intervals import Interval, divide, parse_interval
from sluice.backfill.observe_backfill import backfill_of, observe_backfill
from sluice.backfill.run_results import sentences_of
from sluice.cli.cli_context import CliContext, open_cli_context
from sluice.cli.command_options import AsJson, DryRun, StreamName
from sluice.cli.gap_verbs import search_gaps
from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, print_dry_run_note, print_json
from sluice.cli.work_requests import result_of, show_line
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.ledger.work_items import ask
from sluice.tables.catalog import open_catalog
from sluice.work.await_items import asked_for, await_item
from sluice.work.requests import ReplaceInterval
from sluice.work.start_application import profile_for

app = typer.Typer(add_completion=False)


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
    with open_cli_context() as ctx:
        length = backfill_of(ctx.declarations.stream(stream)).interval
        if gaps:
            intervals = joined(search_gaps(ctx, stream, start=start, end=end).gaps)
            if not intervals:
                typer.echo(f"No interval of {stream} differs from its sources.", err=True)
        else:
            intervals = divide(_interval(start, end), length)
        if newest_first:
            intervals = tuple(reversed(intervals))
        if dry_run:
            _show_plans(ctx, stream, intervals, as_json=as_json)
        else:
            _carry_out(ctx, stream, intervals, as_json=as_json)


def _interval(start: str, end: str) -> Interval:
    if not start or not end:
        raise UsageError("A backfill has a first time, --from, and an end, --to.", next_step="Or write --gaps.")
    return parse_interval(start, end)


def _show_plans(ctx: CliContext, stream: str, intervals: tuple[Interval, ...], *, as_json: bool) -> None:
    """Print the plan of each interval; nothing needs Spark."""
    catalog, declarations = open_catalog(ctx.settings), ctx.declarations
    observe = partial(observe_backfill, catalog, ctx.ledger, declarations, settings=ctx.settings)
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


def _carry_out(ctx: CliContext, stream: str, intervals: tuple[Interval, ...], *, as_json: bool) -> None:
    """Ask for all intervals and wait for each, and stop at the first interval that fails: what was replaced before
    stays."""
    queue = ctx.work_queue()
    requests = [
        ReplaceInterval(stream=stream, start=one.start.isoformat(), end=one.end.isoformat()) for one in intervals
    ]
    profiles = [profile_for(request, ctx.settings.pipelines) for request in requests]
    items = ask(ctx.ledger, *(queue.item(*both) for both in zip(requests, profiles, strict=True)))
    with asked_for(queue, items):
        for number, (interval, item, profile) in enumerate(zip(intervals, items, profiles, strict=True), start=1):
            seen = await_item(queue, item, profile, on_line=show_line, beside=items[number:])
            result = result_of(seen, f"the backfill of {interval.spoken} of {stream}")
            for text in [json.dumps(result)] if as_json else sentences_of(result):
                typer.echo(text)
