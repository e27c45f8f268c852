"""`sluice table remove-orphans | restore-orphans`: what dead writers left behind, and the trash it goes to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sluice.cli.cli_context import open_cli_context, person
from sluice.cli.operation import may_act, print_done
from sluice.cli.terminal import AsJson, DryRun, TableName, Yes
from sluice.ledger.events import Actor
from sluice.maintenance.orphan_removal import FoundOrphans, OrphanRemoval
from sluice.operations import OperationPlan, OperationVerb
from sluice.tables.catalog import open_catalog


def remove_orphans(name: TableName, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Move files that dead writers of Sluice left behind to a trash, and empty what is there for seven days."""
    with _removal() as removal:
        shown: list[str] = []

        def planned() -> tuple[OperationPlan[FoundOrphans]]:
            plan = removal.plan(name)
            shown.append(plan.digest)
            return (plan,)

        if may_act(planned, dry_run=dry_run, yes=yes, as_json=as_json):
            done = removal.remove(name, planned=shown[0] if shown else None).evidence
            sentence = f"{name}: {done['files']} files ({done['bytes']} bytes) are in the trash."
            print_done(OperationVerb.REMOVE_ORPHANS, done, sentence, as_json=as_json)


def restore_orphans(name: TableName, dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Bring everything in the trash of a table back to where it lay. No later removal takes these files."""
    with _removal() as removal:
        if may_act(lambda: (removal.plan_restore(name),), dry_run=dry_run, yes=yes, as_json=as_json):
            count = removal.restore(name)
            sentence = f"{name}: {count} files are back."
            print_done(OperationVerb.RESTORE_ORPHANS, {"files": count}, sentence, as_json=as_json)


@contextmanager
def _removal() -> Iterator[OrphanRemoval]:
    with open_cli_context() as ctx:
        yield OrphanRemoval(
            catalog=open_catalog(ctx.settings),
            ledger=ctx.ledger,
            declarations=ctx.declarations,
            actor=Actor.person(person()),
        )
