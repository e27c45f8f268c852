"""`sluice checkpoint check | rehearse` and `sluice stream leftovers | clean`: the checkpoints of streams and their
copies, and what streams left behind and nothing needs any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

import typer
from rich.table import Table

from sluice.checkpoints.checkpoint_copies import Rehearsal
from sluice.cli.cli_context import CliContext, have_done, open_cli_context, person
from sluice.cli.terminal import (
    UNHEALTHY_EXIT_CODE,
    AsJson,
    DryRun,
    StreamName,
    Yes,
    console,
    may_act,
    print_done,
    print_json,
)
from sluice.declarations.load_declarations import load_declarations
from sluice.launching.job_output import json_value
from sluice.ledger.connection import database_time, open_ledger
from sluice.ledger.events import Actor
from sluice.ledger.generations import find_generation
from sluice.ledger.recorded_checks import CheckpointObservation
from sluice.leftovers.observe_leftovers import Leftover, Leftovers
from sluice.leftovers.remove_leftovers import CleaningPlan, plan_cleaning
from sluice.leftovers.remove_leftovers import clean as clean_up
from sluice.operations import OperationVerb
from sluice.positions.check_checkpoints import check_checkpoints
from sluice.settings import load_settings
from sluice.tables.catalog import open_catalog
from sluice.work.requests import RehearseCopy

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def checkpoint() -> None:
    """The checkpoints of streams."""


@app.command()
def check(
    names: Annotated[
        list[str] | None, typer.Argument(help="The streams; all that are declared when not given.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check checkpoints without Spark, record the findings, and end with 1 when one is not healthy."""
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    with open_ledger(settings.ledger_url) as ledger:
        checks = check_checkpoints(ledger, declarations, settings, streams=names or ())
    if as_json:
        print_json({"checks": [json_value(seen) | {"healthy": seen.healthy} for seen in checks]})
    else:
        for seen in checks:
            _print(seen)
        started = {seen.stream for seen in checks}
        for name in names or declarations.streams:
            if name not in started:
                typer.echo(f"{name}: not started yet, so there is no checkpoint")
    if not all(seen.healthy for seen in checks):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


@app.command()
def rehearse(name: StreamName, as_json: AsJson = False) -> None:
    """Put the newest copy of a stream's state into a folder of its own, and run a batch on it for its state alone.

    It ends with 1 when the copy does not do. What came of it is kept beside the copy: `sluice stream show` names it.
    """
    with open_cli_context() as ctx:
        ctx.declarations.stream(name)
        found = Rehearsal.model_validate(have_done(ctx, RehearseCopy(stream=name)))
    if as_json:
        print_json(found.model_dump(mode="json"))
    else:
        typer.echo(
            f"The newest copy of the state of {name} was put back and batch {found.batch} run again on it in "
            f"{found.seconds:.0f} s; the state came out as it was."
        )


def _print(seen: CheckpointObservation) -> None:
    state = "healthy" if seen.healthy else "NOT HEALTHY"
    batch = "no batch yet" if seen.newest_batch is None else f"batch {seen.newest_batch}"
    age = "" if seen.newest_commit_age_seconds is None else f", {seen.newest_commit_age_seconds:.0f} s ago"
    typer.echo(f"{seen.stream}: {state}, generation {seen.generation}, {batch}{age}, {seen.location}")
    for finding in seen.problems:
        typer.echo(f"  {finding.name}: {finding.message}")


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
