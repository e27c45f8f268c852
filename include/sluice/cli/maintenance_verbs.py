"""The files of a table and their maintenance: `sluice table status | history | plan | maintain | layout`, orphans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Annotated

import typer
from pydantic import TypeAdapter
from rich.table import Table

from sluice.cli.cli_context import have_done, open_cli_context, person
from sluice.cli.event_verbs import table_command
from sluice.cli.terminal import (
    UNHEALTHY_EXIT_CODE,
    AsJson,
    DryRun,
    TableName,
    Yes,
    console,
    may_act,
    print_done,
    print_json,
)
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations, all_tables
from sluice.declarations.maintenance_declaration import RetentionDeclaration
from sluice.errors import UsageError
from sluice.launching.job_output import json_value
from sluice.layout.layout_advice import advice_document, advice_sentences, advise_layout
from sluice.layout.pruning import known_filters, read_data_files, table_filter
from sluice.ledger.connection import database_time, open_ledger
from sluice.ledger.events import Actor, EventAction, record_event
from sluice.ledger.maintenance_runs import MaintenanceObservation, newest_maintenance, recent_maintenance
from sluice.maintenance.compaction_plan import ORDERED_GROUP_FILES, small_file_bytes
from sluice.maintenance.due_tables import plan_tables
from sluice.maintenance.maintained_tables import find_declaration, plan_table_maintenance
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.maintenance_records import maintenance_operation, plan_sentences, run_sentences, table_sentences
from sluice.maintenance.orphan_removal import FoundOrphans, OrphanRemoval
from sluice.maintenance.run_maintenance import open_maintenance, require_no_problems
from sluice.operations import OperationPlan, OperationVerb, Stake
from sluice.settings import Settings, load_settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table
from sluice.work.requests import MaintainTable


def status(name: TableName, as_json: AsJson = False) -> None:
    """Show a table's files, manifests and snapshots, what maintenance would do now, and what it did last."""
    settings = load_settings()
    plan = _plan(settings, name, load_declarations(settings.pipelines))
    with open_ledger(settings.ledger_url) as ledger:
        newest = newest_maintenance(ledger, name)
    if as_json:
        newest_run = json_value(newest) if newest else None
        print_json(
            {
                "table": json_value(plan.seen),
                "plan": json_value(plan.steps),
                "notes": list(plan.notes),
                "newest_run": newest_run,
            }
        )
        return
    for sentence in (*table_sentences(plan.seen), "", *plan_sentences(plan), ""):
        typer.echo(sentence)
    if newest is None:
        typer.echo(f"{name}: no maintenance has been recorded yet")
        return
    typer.echo(f"{name}: maintained {newest.started_at:%Y-%m-%d %H:%M:%S} UTC by {newest.launched_by}")
    for sentence in run_sentences(newest):
        typer.echo(sentence)


def history(
    name: TableName,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many runs, newest first.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the newest maintenance runs of a table, with the figures before and after each."""
    with open_ledger(load_settings().ledger_url) as ledger:
        runs = recent_maintenance(ledger, name, limit=limit)
    if as_json:
        print_json({"table": name, "runs": [json_value(run) for run in runs]})
    elif runs:
        _print_runs(runs)
    else:
        typer.echo(f"{name}: no maintenance has been recorded yet")


def show_plan(
    name: Annotated[str | None, typer.Argument(help="One table alone; all when left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what maintenance would do now, the tables with the most gain for their cost first, and what it skips.

    For one table, and as JSON, also the policy that holds for it, with where each value comes from.
    """
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    if name is not None:
        find_declaration(declarations, name)
    names = [table for table, one in all_tables(declarations).items() if one.maintenance.is_any]
    planned = plan_tables(settings, declarations, names if name is None else [name])
    if as_json:
        document = planned.as_json()
        for table in document["tables"]:
            table["policy"] = [value.as_json() for value in declarations.policy_of(table["table"])]
        print_json(document)
    else:
        policy = () if name is None else declarations.policy_of(name)
        for sentence in (*planned.sentences(), *(f"{name}: {value}" for value in policy)):
            typer.echo(sentence)
    if planned.problems:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def maintain(name: TableName, dry_run: DryRun = False, as_json: AsJson = False, yes: Yes = False) -> None:
    """Remove the old rows of a table, compact it, rewrite its manifests, pin what readers need and expire the rest,
    where that is declared and due. Where rows go, it asks first; the hourly maintenance then removes old rows by the
    same policy without a question."""
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    policy = find_declaration(declarations, name).maintenance.retention
    shown: list[OperationPlan[MaintenancePlan]] = []

    def planned() -> Sequence[OperationPlan[MaintenancePlan]]:
        shown.append(maintenance_operation(_plan(settings, name, declarations, agreed=policy)))
        return shown

    no_rows_go = policy is None or not policy.is_whole
    if not may_act(planned, dry_run=dry_run, yes=yes or no_rows_go, as_json=as_json):
        return
    is_agreed = yes or any(one.at_stake is not Stake.NOTHING for one in shown)
    with open_cli_context() as ctx:
        find_declaration(ctx.declarations, name)
        record_event(ctx.ledger, table_command(EventAction.MAINTAIN_TABLE, name))
        opened = open_maintenance(ctx.settings, ctx.ledger, ctx.declarations, launched_by=person())
        run = replace(opened, agreed=policy if is_agreed else None).maintain_without_spark(name)
        if run is None:
            done = have_done(ctx, MaintainTable(table=name))
            run = TypeAdapter(MaintenanceObservation).validate_python(done)
        else:
            require_no_problems(ctx.ledger, run)
    if as_json:
        print_json(json_value(run))
    else:
        for sentence in run_sentences(run):
            typer.echo(sentence)


def _plan(
    settings: Settings, name: str, declarations: Declarations, *, agreed: RetentionDeclaration | None = None
) -> MaintenancePlan:
    """The plan of a table's maintenance now: the same that the job would carry out. agreed: the retention to which a
    person is about to agree."""
    declaration = find_declaration(declarations, name)
    table = require_table(open_catalog(settings), name)
    with open_ledger(settings.ledger_url) as ledger:
        now = database_time(ledger)
        return plan_table_maintenance(
            ledger, declarations, settings, declaration=declaration, table=table, now=now, agreed=agreed
        )


def _print_runs(runs: Sequence[MaintenanceObservation]) -> None:
    shown = Table(box=None, pad_edge=False)
    for heading in ("started (UTC)", "files", "MiB", "manifests", "snapshots", "seconds"):
        shown.add_column(heading, no_wrap=True)
    shown.add_column("steps", overflow="fold")
    for run in runs:
        done = ", ".join(f"{step.step} {step.outcome}" for step in run.operations if step.outcome != "skipped")
        shown.add_row(
            f"{run.started_at:%Y-%m-%d %H:%M:%S}",
            f"{run.before.files} → {run.after.files}",
            f"{run.before.bytes / 1024**2:.1f} → {run.after.bytes / 1024**2:.1f}",
            f"{run.before.manifests} → {run.after.manifests}",
            f"{run.before.snapshots} → {run.after.snapshots}",
            f"{(run.ended_at - run.started_at).total_seconds():.1f}",
            done or "nothing to do",
        )
    console().print(shown)


def layout(
    name: TableName,
    where: Annotated[
        list[str] | None,
        typer.Option(
            help='A condition by which queries read the table, in Iceberg\'s expression language, such as "id = 5"; '
            "repeat it for several."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show how many files conditions read now and by other orders of the rows, and the declaration that would help.

    The conditions are those given, those that the table declares, and those of declared backfills. Orders are estimated
    from a sample of rows. Nothing is changed.
    """
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    declaration = find_declaration(declarations, name)
    table = require_table(open_catalog(settings), name)
    files, schema = read_data_files(table), table.schema()
    given = [table_filter(schema, text, origin="--where") for text in dict.fromkeys(where or ())]
    filters = [*given, *known_filters(declarations, declaration, schema, files)]
    if not filters:
        raise UsageError(
            f"No condition is known by which {name} is read: it declares no `filters`, and no backfill reads or "
            "replaces intervals of it.",
            next_step="Declare the conditions of its queries, or give them with --where.",
        )
    advice = advise_layout(
        table,
        declaration,
        filters,
        files=files,
        group_files=ORDERED_GROUP_FILES,
        small_bytes=small_file_bytes(declaration.maintenance),
    )
    if as_json:
        print_json(advice_document(advice))
        return
    for sentence in advice_sentences(advice):
        typer.echo(sentence)


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
