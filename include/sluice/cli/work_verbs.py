"""`sluice work list | applications | logs`: the queue of bounded work, and the Spark applications that do it."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from sluice.cli.terminal import AsJson, console, print_json
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.ledger.applications import recent_applications
from sluice.ledger.connection import open_ledger
from sluice.ledger.work_items import find_items, find_items_named, show_item
from sluice.ledger.work_values import WorkItem, WorkState
from sluice.settings import load_settings

app = typer.Typer(no_args_is_help=True, add_completion=False)

Limit = Annotated[int, typer.Option(min=1, max=1000, help="How many, newest first.")]


@app.callback()
def work() -> None:
    """The queue of what Spark is asked to do, and the applications that do it."""


@app.command("list")
def list_items(limit: Limit = 20, as_json: AsJson = False) -> None:
    """Show the newest work items: what was asked for, by whom, and how it stands."""
    with open_ledger(load_settings().ledger_url) as ledger:
        items = find_items(ledger, limit=limit)
    if as_json:
        print_json({"items": [json_value(item) | {"state": state} for item, state in items]})
    elif items:
        _print_items(items)
    else:
        typer.echo("Nothing was asked for yet.")


@app.command()
def applications(limit: Limit = 10, as_json: AsJson = False) -> None:
    """Show the newest Spark applications that do work items: where they run, and why they ended."""
    with open_ledger(load_settings().ledger_url) as ledger:
        found = recent_applications(ledger, limit=limit)
    if as_json:
        print_json({"applications": [json_value(one) for one in found]})
        return
    shown = Table(box=None, pad_edge=False)
    for heading in ("application", "pool", "state", "started (UTC)", "host", "pid", "ended because", "log"):
        shown.add_column(heading, overflow="fold")
    for one in found:
        started, pid = f"{one.started_at:%Y-%m-%d %H:%M:%S}", str(one.pid or "")
        words = (one.application[:8], one.pool.name, one.state, started, one.host or "", pid)
        shown.add_row(*words, one.reason or "", one.log_file or "")
    console().print(shown)


@app.command()
def logs(
    item: Annotated[str, typer.Argument(help="The id of a work item, or its first characters.")],
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, max=1_000_000, help="How many of the last.")] = 1000,
) -> None:
    """Show what was logged about one work item, without the lines of those that ran beside it."""
    from sluice.work.pools import last_lines_of_item  # it loads the declarations of engines

    with open_ledger(load_settings().ledger_url) as ledger:
        found = find_items_named(ledger, item)
        if len(found) != 1:
            which = f"{len(found)} work items begin" if found else "No work item begins"
            raise UsageError(f"{which} with {item}.", next_step="See them with `sluice work list`.")
        seen = show_item(ledger, found[0])
    for line in last_lines_of_item(seen, limit=lines):
        typer.echo(line)


def _print_items(items: tuple[tuple[WorkItem, WorkState], ...]) -> None:
    shown = Table(box=None, pad_edge=False)
    for heading in ("item", "kind", "of", "state", "asked (UTC)", "by", "attempt"):
        shown.add_column(heading, overflow="fold")
    for item, state in items:
        asked = f"{item.asked_at:%Y-%m-%d %H:%M:%S}"
        shown.add_row(item.item[:8], item.kind, item.subject, state, asked, item.asked_by, str(item.attempt))
    console().print(shown)
