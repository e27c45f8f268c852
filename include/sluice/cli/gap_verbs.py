"""`sluice stream gaps`: the intervals of a table that do not hold what the sources of its stream give."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import TypeAdapter
from rich.table import Table

from sluice.backfill.interval_gaps import GapReport
from sluice.backfill.intervals import parse_interval
from sluice.backfill.observe_backfill import backfill_of
from sluice.cli.cli_context import CliContext, open_cli_context
from sluice.cli.command_options import AsJson, StreamName
from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, console, print_json
from sluice.cli.work_requests import have_done
from sluice.launching.job_output import json_value
from sluice.work.requests import FindGaps


def gaps(
    name: StreamName,
    start: Annotated[str, typer.Option("--from", help="Where to begin, in ISO 8601; the oldest row if unset.")] = "",
    end: Annotated[str, typer.Option("--to", help="Where to end; the newest closed interval if unset.")] = "",
    as_json: AsJson = False,
) -> None:
    """Find the intervals of a stream's table that do not hold what its sources give. Ends with 1 if there are some."""
    with open_cli_context() as ctx:
        backfill_of(ctx.declarations.stream(name))
        report = search_gaps(ctx, name, start=start, end=end)
    if as_json:
        print_json(json_value(report))
    else:
        _print(report)
    if report.gaps:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def search_gaps(ctx: CliContext, stream: str, *, start: str, end: str) -> GapReport:
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


def _print(report: GapReport) -> None:
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
