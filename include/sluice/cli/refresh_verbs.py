"""`sluice stream refresh`: rebuilds the table of a stream beside it, takes that back, or gives it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

import typer

from sluice.cli.cli_context import CliContext, have_done, open_cli_context, person
from sluice.cli.terminal import (
    FEWER_ALLOWED,
    AllowFewer,
    AllowRepeated,
    AsJson,
    DryRun,
    StreamName,
    Yes,
    may_act,
    print_done,
)
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.ledger.refreshes import RefreshObservation
from sluice.operations import OperationPlan, OperationVerb
from sluice.refresh.observe_refresh import KEEPS, observe_refresh, refreshed_output
from sluice.refresh.refresh_plan import RefreshPlan, plan_refresh
from sluice.refresh.settle_refresh import settle_refresh
from sluice.refresh.undo_refresh import abandon, plan_abandoning, plan_way_back, take_back
from sluice.tables.catalog import open_catalog
from sluice.work.requests import NO, YES, RefreshTable


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
    allows_fewer: AllowFewer = False,
    allows_repeated: AllowRepeated = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Build the content of a stream's table again from its sources, and replace it in one commit.

    The stream continues meanwhile, and readers see the old content until the new one is whole. A command that was
    interrupted is completed by repeating it. The plan is shown, and you are asked to confirm it.
    """
    if takes_back and gives_up:
        raise UsageError("--take-back and --abandon are two commands.", next_step="Give one of them.")
    with open_cli_context() as ctx:
        stream = ctx.declarations.stream(name)
        if takes_back or gives_up:
            undo = _give_up(ctx, stream) if gives_up else _take_back(ctx, stream, allows_repeated=allows_repeated)
            _undo(ctx, stream, undo, dry_run=dry_run, yes=yes, as_json=as_json)
            return

        def planned() -> list[RefreshPlan]:
            plan = _plan(ctx, stream, keeps=timedelta(days=keep_days), settles=not dry_run)
            return [plan.followed_by(FEWER_ALLOWED) if allows_fewer else plan]

        if may_act(planned, dry_run=dry_run, yes=yes, as_json=as_json):
            fewer = YES if allows_fewer else NO
            done = have_done(ctx, RefreshTable(stream=name, keep_days=str(keep_days), allow_fewer=fewer))
            print_done(OperationVerb.REFRESH, done, _refreshed(stream, done), as_json=as_json)


def _plan(ctx: CliContext, stream: LoadedStream, *, keeps: timedelta, settles: bool) -> RefreshPlan:
    """The plan of a refresh; nothing needs Spark. settles: record first what an earlier one has left unrecorded."""
    catalog = open_catalog(ctx.settings)
    if settles:
        settle_refresh(catalog, ctx.ledger, stream.declaration)
    return plan_refresh(observe_refresh(catalog, ctx.ledger, ctx.declarations, stream, ctx.settings, keeps=keeps))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Undoing:
    """A way to undo a refresh. plan: makes its plan. act: carries out the plan with a digest. done: what was done."""

    verb: OperationVerb
    plan: Callable[[], OperationPlan[RefreshObservation]]
    act: Callable[[str], RefreshObservation]
    done: str


def _take_back(ctx: CliContext, stream: LoadedStream, *, allows_repeated: bool) -> _Undoing:
    what = (open_catalog(ctx.settings), ctx.ledger, ctx.declarations, stream)
    return _Undoing(
        verb=OperationVerb.TAKE_BACK,
        plan=lambda: plan_way_back(*what, allows_repeated=allows_repeated),
        act=lambda planned: take_back(*what, asked_by=person(), planned=planned, allows_repeated=allows_repeated),
        done="taken back",
    )


def _give_up(ctx: CliContext, stream: LoadedStream) -> _Undoing:
    catalog = open_catalog(ctx.settings)
    return _Undoing(
        verb=OperationVerb.ABANDON_REFRESH,
        plan=lambda: plan_abandoning(ctx.ledger, stream),
        act=lambda planned: abandon(catalog, ctx.ledger, stream, asked_by=person(), planned=planned),
        done="given up; the table is as it was",
    )


def _undo(ctx: CliContext, stream: LoadedStream, undo: _Undoing, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Take the newest refresh back, or give it up."""
    if not dry_run:
        settle_refresh(open_catalog(ctx.settings), ctx.ledger, stream.declaration)
    plan = undo.plan()
    if may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
        ended = undo.act(plan.digest)
        sentence = f"Refresh {ended.number} of {stream.name} is {undo.done}."
        print_done(undo.verb, json_value(ended), sentence, as_json=as_json)


def _refreshed(stream: LoadedStream, done: Mapping[str, Any]) -> str:
    return (
        f"{refreshed_output(stream.declaration).target} has its new content, {done['rows']:,} rows, in snapshot "
        f"{done['snapshot_id']}; {stream.name} continues in generation {done['opens']}. Until {done['keeps_until']}: "
        f"`sluice stream refresh {stream.name} --take-back`."
    )
