"""`sluice demo`: real flights through the whole platform, and the proof that every one arrived."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer
from rich.console import Console

from sluice.cli.stream_rendering import rows_table
from sluice.cli.terminal import DryRun, print_dry_run_note
from sluice.demo.demonstration import DemoOptions, demonstrate
from sluice.demo.local_platform import plan_demo
from sluice.demo.report import print_report

app = typer.Typer(add_completion=False)

_PLAIN_WIDTH = 140
"""The width when the output is not a terminal: wide enough for every line of the report."""


@app.command()
def demo(
    days: Annotated[
        int, typer.Option(min=2, max=365, help="How many days of flights to replay; a repeat continues with the next.")
    ] = 14,
    pace: Annotated[
        float, typer.Option(min=0, help="Hours of flights replayed in one second; 0 is as fast as possible.")
    ] = 24,
    seed: Annotated[int, typer.Option(help="Decides which records are late, repeated or malformed.")] = 2013,
    dry_run: DryRun = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as one JSON object, and nothing else.")
    ] = False,
) -> None:
    """Start the local stack, stream real flights through it, and verify every row with another engine.

    Ctrl-C leaves the stack running; `sluice stack down` stops it.
    """
    if dry_run:
        _print_plan(days=days, seed=seed, as_json=as_json)
        return

    console = Console() if sys.stdout.isatty() else Console(width=_PLAIN_WIDTH)
    options = DemoOptions(days=days, hours_per_second=pace or None, seed=seed)
    report = demonstrate(
        options,
        console=None if as_json else console,
        render=lambda rows, headline: rows_table(rows, title=headline),
    )
    if as_json:
        typer.echo(json.dumps(report.as_json()))
    else:
        print_report(report, console)


def _print_plan(*, days: int, seed: int, as_json: bool) -> None:
    plan = plan_demo(days=days, seed=seed)
    if as_json:
        typer.echo(json.dumps(plan.as_json()))
    else:
        typer.echo("\n".join(plan.sentences()))
        print_dry_run_note()
