"""`sluice stream leftovers | clean`: what streams left behind and nothing needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from sluice.cli.cli_context import CliContext, open_cli_context, person
from sluice.cli.terminal import AsJson, DryRun, Yes, console, may_act, print_done, print_json
from sluice.launching.job_output import json_value
from sluice.ledger.connection import database_time
from sluice.ledger.events import Actor
from sluice.ledger.generations import find_generation
from sluice.leftovers.observe_leftovers import Leftover, Leftovers
from sluice.leftovers.remove_leftovers import CleaningPlan, plan_cleaning
from sluice.leftovers.remove_leftovers import clean as clean_up
from sluice.operations import OperationVerb
from sluice.tables.catalog import open_catalog

Name = Annotated[str, typer.Argument(help="The stream's name; without one, of all streams.", metavar="[STREAM]")]


def leftovers(name: Name = "", as_json: AsJson = False) -> None:
    """List what is left of closed generations, their copies, ended refreshes and died backfills, and when it goes."""
    with open_cli_context() as ctx:
        left = _leftovers(ctx, name)
        listed = (*left.found, *left.doubtful)
        if as_json:
            print_json({"leftovers": [json_value(one) | {"is_due": one.is_due(left.now)} for one in listed]})
        elif listed:
            console().print(_table(listed, left.now))
        else:
            typer.echo("Nothing is left behind.")


def clean(name: Name = "", dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Remove what is left behind and has been kept for SLUICE_LEFTOVERS_KEPT_DAYS. A DAG does it daily."""
    with open_cli_context() as ctx:
        shown: list[str] = []

        def planned() -> tuple[CleaningPlan]:
            plan = plan_cleaning(_leftovers(ctx, name))
            shown.append(plan.digest)
            return (plan,)

        if may_act(planned, dry_run=dry_run, yes=yes, as_json=as_json):
            done = clean_up(_leftovers(ctx, name), actor=Actor.person(person()), planned=shown[0] if shown else None)
            result = {"removed": [json_value(one) for one in done]}
            print_done(OperationVerb.CLEAN, result, _removed(done), as_json=as_json)


def _leftovers(ctx: CliContext, name: str) -> Leftovers:
    """Of a stream that is declared, or that the ledger knows."""
    if name and find_generation(ctx.ledger, name) is None:
        ctx.declarations.stream(name)
    now = database_time(ctx.ledger)
    return Leftovers(catalog=open_catalog(ctx.settings), ledger=ctx.ledger, settings=ctx.settings, now=now, stream=name)


def _removed(done: tuple[Leftover, ...]) -> str:
    files, size = sum(one.files or 0 for one in done), sum(one.size_bytes or 0 for one in done)
    return f"{len(done)} leftovers are gone: {files:,} files with {size:,} bytes." if done else "No leftover was to go."


def _table(listed: Sequence[Leftover], now: datetime) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("stream", "what", "of", "not needed since", "files", "bytes", "goes", "where"):
        table.add_column(heading, overflow="fold")
    for one in listed:
        counts = (
            "" if one.files is None else f"{one.files:,}",
            "" if one.size_bytes is None else f"{one.size_bytes:,}",
        )
        goes = "stays: " + one.problem if one.problem else "due" if one.is_due(now) else f"{one.goes_at:%Y-%m-%d}"
        table.add_row(one.stream, one.kind, one.of, f"{one.since:%Y-%m-%d %H:%M}", *counts, goes, one.place)
    return table
