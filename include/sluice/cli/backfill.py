"""`sluice backfill`: compute intervals of a stream again; `sluice stream gaps`: which differ from the sources."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import TypeAdapter
from rich.table import Table

from sluice.backfill.backfill_plan import BackfillPlan
from sluice.backfill.interval_gaps import GapReport, joined
from sluice.backfill.intervals import Interval, divide, parse_interval
from sluice.backfill.observe_backfill import backfill_of, plan_with_followers
from sluice.backfill.results import sentences_of
from sluice.cli.cli_context import CliContext, have_done, open_cli_context, result_of, show_line
from sluice.cli.terminal import (
    FEWER_ALLOWED,
    UNHEALTHY_EXIT_CODE,
    AllowFewer,
    AsJson,
    DryRun,
    StreamName,
    Yes,
    console,
    may_act,
    print_json,
)
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.ledger.work_items import ask
from sluice.tables.catalog import open_catalog
from sluice.work.requests import NO, YES, FindGaps, ReplaceInterval
from sluice.work.start_application import asked_for, await_item, profile_for

app = typer.Typer(add_completion=False)

_REPEATED_ALLOWED = "Rows are allowed that the table may hold elsewhere already."
"""The last step of a plan with `--allow-repeated`."""


@app.command()
def backfill(
    stream: StreamName,
    start: Annotated[str, typer.Option("--from", help="The first time of the interval, in ISO 8601; UTC.")] = "",
    end: Annotated[str, typer.Option("--to", help="The end, which is not part of the interval any more.")] = "",
    gaps: Annotated[
        bool, typer.Option("--gaps", help="Only the intervals that differ from the sources (`sluice stream gaps`).")
    ] = False,
    newest_first: Annotated[bool, typer.Option("--newest-first", help="Begin with the newest interval.")] = False,
    allows_fewer: AllowFewer = False,
    allows_repeated: Annotated[
        bool,
        typer.Option("--allow-repeated", help="Also publish rows that the table may hold elsewhere already."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Compute an interval of a stream again and replace it, hour by hour, day by day or month by month.

    The plan is shown, and you are asked to confirm it.
    """
    with open_cli_context() as ctx:
        length, made = backfill_of(ctx.declarations.stream(stream)).interval, "Make one commit."
        if gaps:
            wholes = intervals = joined(_search_gaps(ctx, stream, start=start, end=end).gaps)
            if not intervals:
                typer.echo(f"No interval of {stream} differs from its sources.", err=True)
        else:
            wholes = (_interval(start, end),)
            intervals = divide(wholes[0], length)
            made = f"Make {len(intervals)} commits: one for each {length}."
        if newest_first:
            intervals = tuple(reversed(intervals))

        def planned() -> list[BackfillPlan]:
            fewer = (FEWER_ALLOWED,) if allows_fewer else ()
            repeated = (_REPEATED_ALLOWED,) if allows_repeated else ()
            return [_plan(ctx, stream, whole).followed_by(made, *fewer, *repeated) for whole in wholes]

        if may_act(planned, dry_run=dry_run, yes=yes, as_json=as_json):
            requests = [
                ReplaceInterval(
                    stream=stream,
                    start=one.start.isoformat(),
                    end=one.end.isoformat(),
                    allow_fewer=YES if allows_fewer else NO,
                    allow_repeated=YES if allows_repeated else NO,
                )
                for one in intervals
            ]
            _carry_out(ctx, requests, intervals, as_json=as_json)


def _interval(start: str, end: str) -> Interval:
    if not start or not end:
        raise UsageError("A backfill has a first time, --from, and an end, --to.", next_step="Or write --gaps.")
    return parse_interval(start, end)


def _plan(ctx: CliContext, stream: str, whole: Interval) -> BackfillPlan:
    """The plan of an interval; nothing needs Spark."""
    catalog, declared = open_catalog(ctx.settings), ctx.declarations
    return plan_with_followers(catalog, ctx.ledger, declared, declared.stream(stream), whole, settings=ctx.settings)


def _carry_out(
    ctx: CliContext, requests: Sequence[ReplaceInterval], intervals: tuple[Interval, ...], *, as_json: bool
) -> None:
    """Ask for all intervals and wait for each, and stop at the first interval that fails: what was replaced before
    stays."""
    queue = ctx.work_queue()
    profiles = [profile_for(request, ctx.settings.pipelines) for request in requests]
    items = ask(ctx.ledger, *(queue.item(*both) for both in zip(requests, profiles, strict=True)))
    with asked_for(queue, items):
        for number, (interval, item, profile) in enumerate(zip(intervals, items, profiles, strict=True), start=1):
            seen = await_item(queue, item, profile, on_line=show_line, beside=items[number:])
            result = result_of(seen, f"the backfill of {interval.spoken} of {requests[0].stream}")
            for text in [json.dumps(result)] if as_json else sentences_of(result):
                typer.echo(text)


def gaps(
    name: StreamName,
    start: Annotated[str, typer.Option("--from", help="Where to begin, in ISO 8601; the oldest row if unset.")] = "",
    end: Annotated[str, typer.Option("--to", help="Where to end; the newest closed interval if unset.")] = "",
    as_json: AsJson = False,
) -> None:
    """Find the intervals of a stream's table that do not hold what its sources give. Ends with 1 if there are some."""
    with open_cli_context() as ctx:
        backfill_of(ctx.declarations.stream(name))
        report = _search_gaps(ctx, name, start=start, end=end)
    if as_json:
        print_json(json_value(report))
    else:
        _print_gaps(report)
    if report.gaps:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _search_gaps(ctx: CliContext, stream: str, *, start: str, end: str) -> GapReport:
    """Search the gaps of a stream; the log goes to stderr.

    Raises
    ------
    UsageError: when the end is not after the start.
    Exit: when the search fails.
    """
    if start and end:
        parse_interval(start, end)
    found = have_done(ctx, FindGaps(stream=stream, start=start, end=end, fails="no"))
    return TypeAdapter(GapReport).validate_python(found)


def _print_gaps(report: GapReport) -> None:
    if not report.has_published:
        typer.echo(f"{report.stream} has published nothing yet, so there is nothing to compare with its sources.")
        return
    if report.gaps:
        table = Table(box=None, padding=(0, 2, 0, 0))
        for heading in ("interval", "", "rows expected", "rows held"):
            table.add_column(heading)
        for gap in report.gaps:
            expected, held = f"{gap.expected_rows:,}", f"{gap.held_rows:,}"
            table.add_row(gap.interval.spoken, gap.kind, expected, held)
        console().print(table)
    typer.echo(f"{len(report.gaps)} of {report.compared} intervals of {report.table} differ from the sources.")
    if report.gaps:
        typer.echo(f"`sluice backfill {report.stream} --gaps` replaces them.")
