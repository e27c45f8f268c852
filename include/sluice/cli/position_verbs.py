"""What writes the position of a stream: `continue` past missing input, `repair`, `rewind`, and `adopt` of
a table."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from sluice.cli.cli_context import open_cli_context, person
from sluice.cli.stream_verbs import lines_of_start
from sluice.cli.terminal import AsJson, DryRun, StreamName, TableName, Yes, may_act, print_done
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.maintenance.gap_continuation import continue_stream, plan_continuation
from sluice.positions.adopt_table import adopt_table
from sluice.positions.adoption import AdoptionWay
from sluice.positions.adoption_plan import plan_adoption
from sluice.positions.repair_stream import plan_repair, repair_stream
from sluice.positions.rewind_plan import batch_of_time, plan_rewind
from sluice.positions.rewind_stream import RewindWithReaders, rewind_stream
from sluice.supervision import control_plans, stream_commands
from sluice.tables.catalog import open_catalog

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
