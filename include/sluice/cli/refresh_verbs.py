"""`sluice stream refresh`: rebuilds the table of a stream beside it, takes that back, or gives it up."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

import typer

from sluice.cli.cli_context import CliContext, open_cli_context, person
from sluice.cli.command_options import AsJson, DryRun, StreamName
from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, print_dry_run_note, print_json
from sluice.cli.work_requests import have_done
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.ledger.refreshes import RefreshObservation
from sluice.refresh.abandon import abandon, plan_abandoning
from sluice.refresh.observe_refresh import KEEPS, observe_refresh, refreshed_output
from sluice.refresh.refresh_plan import RefreshPlan, plan_refresh
from sluice.refresh.take_back import plan_way_back, take_back
from sluice.tables.catalog import open_catalog
from sluice.work.requests import RefreshTable


def refresh(
    name: StreamName,
    keep_days: Annotated[
        float, typer.Option("--keep-days", min=0.01, help="For how long the earlier content can be taken back.")
    ] = KEEPS / timedelta(days=1),
    takes_back: Annotated[
        bool, typer.Option("--take-back", help="Bring the content back that the newest refresh has replaced.")
    ] = False,
    gives_up: Annotated[
        bool, typer.Option("--abandon", help="Give up a refresh whose result is not visible yet.")
    ] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Build the content of a stream's table again from its sources, and replace it in one commit.

    The stream continues meanwhile, and readers see the old content until the new one is whole. A command that was
    interrupted is completed by repeating it.
    """
    if takes_back and gives_up:
        raise UsageError("--take-back and --abandon are two commands.", next_step="Give one of them.")
    with open_cli_context() as ctx:
        stream = ctx.declarations.stream(name)
        if takes_back:
            _take_back(ctx, stream, dry_run=dry_run, as_json=as_json)
        elif gives_up:
            _abandon(ctx, stream, dry_run=dry_run, as_json=as_json)
        elif dry_run:
            _show_plan(ctx, stream, keeps=timedelta(days=keep_days), as_json=as_json)
        else:
            _refresh(ctx, stream, keep_days=keep_days, as_json=as_json)


def _show_plan(ctx: CliContext, stream: LoadedStream, *, keeps: timedelta, as_json: bool) -> None:
    catalog = open_catalog(ctx.settings)
    plan = plan_refresh(observe_refresh(catalog, ctx.ledger, ctx.declarations, stream, ctx.settings, keeps=keeps))
    if as_json:
        print_json({"verb": "refresh", "stream": stream.name, "dry_run": True, "plan": _plan_json(plan)})
    else:
        for sentence in plan.sentences():
            typer.echo(sentence)
        print_dry_run_note()
    if plan.is_refused:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _plan_json(plan: RefreshPlan) -> dict[str, Any]:
    """Of the declaration its name alone."""
    seen = plan.seen
    return {
        "target": seen.target,
        "rows": seen.rows,
        "keep_seconds": seen.keeps.total_seconds(),
        "inputs": [json_value(one) for one in seen.inputs],
        "readers": [json_value(one) for one in seen.readers],
        "continues": None if plan.continues is None else json_value(plan.continues),
        "refusals": [json_value(one) for one in plan.refusals],
    }


def _refresh(ctx: CliContext, stream: LoadedStream, *, keep_days: float, as_json: bool) -> None:
    done = have_done(ctx, RefreshTable(stream=stream.name, keep_days=str(keep_days)))
    if as_json:
        print_json(done)
        return
    typer.echo(
        f"{refreshed_output(stream.declaration).target} has its new content, {done['rows']:,} rows, in snapshot "
        f"{done['snapshot_id']}; {stream.name} continues in generation {done['opens']}. Until {done['keeps_until']}: "
        f"`sluice stream refresh {stream.name} --take-back`."
    )


def _take_back(ctx: CliContext, stream: LoadedStream, *, dry_run: bool, as_json: bool) -> None:
    catalog = open_catalog(ctx.settings)
    if dry_run:
        back = plan_way_back(catalog, ctx.ledger, stream)
        if as_json:
            print_json({"verb": "take-back", "stream": stream.name, "dry_run": True, "plan": json_value(back)})
            return
        typer.echo(
            f"{back.target} gets the {back.rows:,} rows from before refresh {back.refresh.number} back; "
            f"{back.files} files with {back.copied_bytes:,} bytes are copied for that. {stream.name} reads again what "
            "it has read since."
        )
        print_dry_run_note()
        return
    done = take_back(catalog, ctx.ledger, stream, asked_by=person())
    _print_done("take-back", done, "is taken back", as_json=as_json)


def _abandon(ctx: CliContext, stream: LoadedStream, *, dry_run: bool, as_json: bool) -> None:
    if dry_run:
        seen = plan_abandoning(ctx.ledger, stream)
        if as_json:
            print_json({"verb": "abandon", "stream": stream.name, "dry_run": True, "plan": json_value(seen)})
            return
        typer.echo(f"Refresh {seen.number} of {seen.stream}, which is {seen.state}, would be given up.")
        print_dry_run_note()
        return
    done = abandon(open_catalog(ctx.settings), ctx.ledger, stream, asked_by=person())
    _print_done("abandon", done, "is given up; the table is as it was", as_json=as_json)


def _print_done(verb: str, done: RefreshObservation, what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"verb": verb, "refresh": json_value(done)})
    else:
        typer.echo(f"Refresh {done.number} of {done.stream} {what}.")
