"""What writes the position of a stream: `continue` past missing input, `repair`, `rewind`, `refresh`, which rebuilds
its table beside it, and `adopt` of a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer

from sluice.cli.cli_context import CliContext, have_done, open_cli_context, person
from sluice.cli.stream_verbs import lines_of_start
from sluice.cli.terminal import (
    FEWER_ALLOWED,
    AllowFewer,
    AllowRepeated,
    AsJson,
    DryRun,
    StreamName,
    TableName,
    Yes,
    may_act,
    print_done,
)
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.ledger.refreshes import RefreshObservation
from sluice.maintenance.gap_continuation import continue_stream, plan_continuation
from sluice.operations import OperationPlan, OperationVerb
from sluice.positions.adopt_table import adopt_table
from sluice.positions.adoption import AdoptionWay
from sluice.positions.adoption_plan import plan_adoption
from sluice.positions.repair_stream import plan_repair, repair_stream
from sluice.positions.rewind_plan import batch_of_time, plan_rewind
from sluice.positions.rewind_stream import RewindWithReaders, rewind_stream
from sluice.refresh.observe_refresh import KEEPS, observe_refresh, refreshed_output
from sluice.refresh.refresh_plan import RefreshPlan, plan_refresh
from sluice.refresh.settle_refresh import settle_refresh
from sluice.refresh.undo_refresh import abandon, plan_abandoning, plan_way_back, take_back
from sluice.supervision import control_plans, stream_commands
from sluice.tables.catalog import open_catalog
from sluice.work.requests import NO, YES, RefreshTable

_TIMES = ("%Y-%m-%d", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M:%S.%f")
"""How a time is typed."""


def continue_past_gap(
    name: StreamName,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Never read the missing rows; continue with what is left.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take a stopped stream past snapshots of its input that were expired before it had read them.

    Where the missing rows can be proved to be files that are still in the table, the next batch reads exactly these;
    otherwise the choices are named. The old checkpoint is kept. The plan is shown, and you are asked to confirm it.
    """
    with open_cli_context() as ctx:
        stream = ctx.declarations.stream(name)
        catalog = open_catalog(ctx.settings)
        plan = plan_continuation(ctx.ledger, catalog, stream, ctx.settings, leaves_out=leave_out)
        if not may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        opened = continue_stream(ctx.ledger, catalog, stream, ctx.settings, plan, asked_by=person())
    sentence = f"Generation {opened.generation} of {name} is open: `sluice stream start {name}` continues."
    print_done(plan.verb, json_value(opened), sentence, as_json=as_json)


def repair(
    name: StreamName,
    start: Annotated[bool, typer.Option("--start", help="Start the stream behind it, where it can start.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Write back what was lost or damaged of a stream's position: its checkpoint, or the ledger's record of it.

    Tables, ledger, checkpoint and sources are compared; the one that disagrees is written back from the others, so that
    the stream continues where its tables stand. What that cannot bring back is refused, with what would be lost.
    """
    with open_cli_context() as ctx:
        stream = ctx.declarations.stream(name)
        catalog = open_catalog(ctx.settings)
        plan = plan_repair(ctx.ledger, catalog, stream, ctx.settings)
        plans = [plan, *([control_plans.plan_start(ctx.supervisor(), stream)] if start else ())]
        if not may_act(lambda: plans, dry_run=dry_run, yes=yes, as_json=as_json):
            return
        done = repair_stream(ctx.ledger, catalog, stream, ctx.settings, planned=plan.digest, asked_by=person())
        result, sentence = done.as_json(), " ".join(step.sentence for step in done.steps)
        if start and done.seen.left is None:
            started = stream_commands.start_stream(ctx.supervisor(), stream, requested_by=person())
            result["run"] = None if started is None else json_value(started.run)
            sentence = "\n".join([sentence, *lines_of_start(ctx, stream, started)])
    print_done(plan.verb, result, sentence, as_json=as_json)


def rewind(
    name: StreamName,
    to_batch: Annotated[
        int | None, typer.Option("--to-batch", min=0, help="The batch of its open generation that is the newest then.")
    ] = None,
    to_time: Annotated[
        datetime | None,
        typer.Option("--to-time", formats=list(_TIMES), help="Or: the newest one that its tables showed then, in UTC."),
    ] = None,
    leave_readers: Annotated[
        bool, typer.Option("--leave-readers", help="Also where streams have read what goes; they keep it.")
    ] = False,
    with_readers: Annotated[
        bool,
        typer.Option("--with-readers", help="Take the streams back first that have read what goes, each by its plan."),
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take a stopped stream and its tables back to a batch together; what came after it is read again.

    It is refused, with what would be lost, where others have written into the tables since, where an input or the
    tables' snapshots do not reach so far back, and where streams that read the tables have passed.
    """
    if (to_batch is None) is (to_time is None):
        raise UsageError(
            "One of --to-batch and --to-time is needed.", next_step=f"`sluice batch list {name}` shows the batches."
        )
    if leave_readers and with_readers:
        raise UsageError(
            "--leave-readers and --with-readers exclude each other.",
            next_step="With neither of them, readers that have passed are named.",
        )
    with open_cli_context() as ctx:
        catalog, declared = open_catalog(ctx.settings), ctx.declarations
        stream = declared.stream(name)
        then = None if to_time is None else to_time.replace(tzinfo=UTC)
        batch = to_batch or 0
        if then is not None:
            batch = batch_of_time(ctx.ledger, catalog, stream, ctx.settings, then=then)
        if with_readers:
            together = RewindWithReaders(
                ledger=ctx.ledger,
                catalog=catalog,
                declarations=declared,
                settings=ctx.settings,
                stream=name,
                batch=batch,
            )
            return _with_readers(together, dry_run=dry_run, yes=yes, as_json=as_json)
        how: dict[str, Any] = {"stream": name, "batch": batch, "leaves_readers": leave_readers}
        plan = plan_rewind(ctx.ledger, catalog, declared, ctx.settings, **how)
        if not may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        done = rewind_stream(ctx.ledger, catalog, declared, ctx.settings, **how, planned=plan.digest, asked_by=person())
    print_done(plan.verb, done.as_json(), " ".join(step.sentence for step in done.steps), as_json=as_json)


def _with_readers(together: RewindWithReaders, *, dry_run: bool, yes: bool, as_json: bool) -> None:
    plans = together.plans()
    if not may_act(lambda: plans, dry_run=dry_run, yes=yes, as_json=as_json):
        return
    done = together.carry_out([one.digest for one in plans], asked_by=person())
    said = " ".join(step.sentence for one in done for step in one.steps)
    print_done(done[-1].verb, {"plans": [one.as_json() for one in done]}, said, as_json=as_json)


def adopt(
    name: TableName,
    undo: Annotated[
        bool, typer.Option("--undo", help="It was a mistake: set main to where the marks of its streams stand.")
    ] = False,
    accept: Annotated[
        bool, typer.Option("--accept", help="It was meant: keep the table as it is, without the rows that are gone.")
    ] = False,
    reread: Annotated[
        bool, typer.Option("--reread", help="Keep the table, and have its streams read again what was taken out.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Take a table back that was rolled back, or created again, and that its streams refuse to write since.

    The plan names the commits of others that an undo hides, and how many rows are gone or are read again.
    """
    way = _way(undo=undo, accept=accept, reread=reread)
    with open_cli_context() as ctx:
        catalog, declared = open_catalog(ctx.settings), ctx.declarations
        plan = plan_adoption(ctx.ledger, catalog, declared, ctx.settings, table=name, way=way)
        if not may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        done = adopt_table(
            ctx.ledger,
            catalog,
            declared,
            ctx.settings,
            table=name,
            way=way,
            planned=plan.digest,
            asked_by=person(),
        )
    print_done(plan.verb, done.as_json(), " ".join(step.sentence for step in done.steps), as_json=as_json)


def _way(*, undo: bool, accept: bool, reread: bool) -> AdoptionWay:
    chosen = [
        way
        for way, is_chosen in zip(
            (AdoptionWay.UNDO, AdoptionWay.ACCEPT, AdoptionWay.REREAD), (undo, accept, reread), strict=True
        )
        if is_chosen
    ]
    if len(chosen) != 1:
        raise UsageError(
            f"One of --undo, --accept and --reread is needed, got {len(chosen)}.",
            next_step="`--undo` when it was a mistake; otherwise `--reread`, or `--accept` to leave the rows out. "
            "`--dry-run` shows what each does.",
        )
    return chosen[0]


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
