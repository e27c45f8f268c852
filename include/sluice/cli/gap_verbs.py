"""`sluice stream gaps`: the intervals of a table that do not hold what the sources of its stream give."""

from __future__ import annotations

from typing import Annotated

import typer
from pydantic import TypeAdapter
from rich.table import Table

from sluice.backfill.interval_gaps import GapReport
from sluice.backfill.intervals import parse_interval
from sluice.backfill.observe_backfill import backfill_of
from sluice.cli.command_options import AsJson, StreamName
from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, console, print_json
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.launching.foreground import run_in_foreground
from sluice.launching.job_command import FindGaps
from sluice.launching.job_output import json_value
from sluice.settings import Settings, load_settings


def gaps(
    name: StreamName,
    start: Annotated[str, typer.Option("--from", help="Where to begin, in ISO 8601; the oldest row if unset.")] = "",
    end: Annotated[str, typer.Option("--to", help="Where to end; the newest closed interval if unset.")] = "",
    as_json: AsJson = False,
) -> None:
    """Find the intervals of a stream's table that do not hold what its sources give. Ends with 1 if there are some."""
    settings = load_settings()
    stream = load_declarations(settings.pipelines).stream(name)
    backfill_of(stream)
    report = search_gaps(settings, stream, start=start, end=end)
    if as_json:
        print_json(json_value(report))
    else:
        _print(report)
    if report.gaps:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def search_gaps(settings: Settings, stream: LoadedStream, *, start: str, end: str) -> GapReport:
    """Run the search of a stream as a job, whose log goes to stderr.

    Raises
    ------
    UsageError: when the end is not after the start.
    Exit: with the job's own status when it fails.
    """
    if start and end:
        parse_interval(start, end)
    command = FindGaps(stream=stream.name, start=start, end=end, fails="no")
    ended = run_in_foreground(command, settings, keeps_output=True, engine=stream.declaration.engine)
    if ended.exit_code != 0:
        raise typer.Exit(ended.exit_code)
    return TypeAdapter(GapReport).validate_json(ended.output.strip().splitlines()[-1])


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
