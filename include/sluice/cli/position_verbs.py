"""What writes the position of a stream: `continue` past missing input, `repair`, and `adopt` of a table."""

from __future__ import annotations

from typing import Annotated

import typer

from sluice.cli.cli_context import open_cli_context, person
from sluice.cli.operation import may_act, print_done
from sluice.cli.terminal import AsJson, DryRun, StreamName, TableName, Yes
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.maintenance.gap_continuation import continue_stream, plan_continuation
from sluice.positions.adopt_table import adopt_table
from sluice.positions.adoption import AdoptionWay
from sluice.positions.adoption_plan import plan_adoption
from sluice.positions.repair_stream import plan_repair, repair_stream
from sluice.tables.catalog import open_catalog


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


def repair(name: StreamName, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Write back what was lost or damaged of a stream's position: its checkpoint, or the ledger's record of it.

    Tables, ledger, checkpoint and sources are compared; the one that disagrees is written back from the others, so that
    the stream continues where its tables stand. What that cannot bring back is refused, with what would be lost.
    """
    with open_cli_context() as ctx:
        stream = ctx.declarations.stream(name)
        catalog = open_catalog(ctx.settings)
        plan = plan_repair(ctx.ledger, catalog, stream, ctx.settings)
        if not may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        done = repair_stream(ctx.ledger, catalog, stream, ctx.settings, planned=plan.digest, asked_by=person())
    print_done(plan.verb, done.as_json(), " ".join(step.sentence for step in done.steps), as_json=as_json)


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
