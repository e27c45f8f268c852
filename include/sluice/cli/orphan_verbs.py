"""`sluice table remove-orphans | restore-orphans`: the files below a table's folders that nothing refers to."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from sluice.cli.cli_context import open_cli_context
from sluice.cli.event_verbs import table_command
from sluice.cli.operation import may_act, print_done
from sluice.cli.terminal import AsJson, DryRun, TableName, Yes
from sluice.declarations.maintenance_declaration import OrphanRemovalDeclaration
from sluice.ledger.connection import database_time
from sluice.ledger.events import EventAction, record_event
from sluice.ledger.locks import maintenance_lock
from sluice.maintenance.maintained_tables import find_declaration
from sluice.maintenance.orphan_removal import open_orphan_removal
from sluice.operations import OperationVerb
from sluice.tables.catalog import open_catalog

At = Annotated[
    str | None, typer.Option("--moved-at", help="Only what one run has moved: the name of its folder in the trash.")
]


def remove_orphans(name: TableName, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Move the files that nothing refers to into the table's trash, and delete what has been there for long.

    The ages are those of the table's declaration (`maintenance.orphan_removal`), without one three and seven days.
    """
    with open_cli_context() as ctx:
        policy = find_declaration(ctx.declarations, name).maintenance.orphan_removal or OrphanRemovalDeclaration()
        removal = open_orphan_removal(ctx.settings, ctx.ledger, ctx.declarations, open_catalog(ctx.settings))
        now = database_time(ctx.ledger)
        plan = removal.plan(name, policy, now=now)
        if not may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        with maintenance_lock(ctx.ledger, name):
            record_event(ctx.ledger, table_command(EventAction.REMOVE_ORPHANS, name, evidence=plan.evidence))
            done = removal.carry_out(plan, now=now)
    print_done(OperationVerb.REMOVE_ORPHANS, asdict(done), f"{name}: {done.sentence()}.", as_json=as_json)


def restore_orphans(
    name: TableName, moved_at: At = None, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False
) -> None:
    """Move files from the table's trash back to where they were."""
    with open_cli_context() as ctx:
        find_declaration(ctx.declarations, name)
        removal = open_orphan_removal(ctx.settings, ctx.ledger, ctx.declarations, open_catalog(ctx.settings))
        plan = removal.plan_restore(name, moved_at=moved_at)
        if not may_act(lambda: [plan], dry_run=dry_run, yes=yes, as_json=as_json):
            return
        with maintenance_lock(ctx.ledger, name):
            record_event(ctx.ledger, table_command(EventAction.RESTORE_ORPHANS, name, evidence=plan.evidence))
            restored = removal.restore(plan)
    print_done(
        OperationVerb.RESTORE_ORPHANS, {"restored": restored}, f"{name}: {restored} files restored.", as_json=as_json
    )
