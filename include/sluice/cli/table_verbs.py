"""Lists, shows and creates declared tables."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any

import typer
from pyiceberg.catalog import Catalog
from rich.table import Table

from sluice.cli.event_verbs import table_command
from sluice.cli.terminal import UNHEALTHY_EXIT_CODE, AsJson, DryRun, TableName, console, print_dry_run_note, print_json
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations, all_tables
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import LakehouseError
from sluice.ledger.connection import open_ledger
from sluice.ledger.events import EventAction, record_event
from sluice.settings import Settings, load_settings
from sluice.tables.catalog import open_catalog
from sluice.tables.change_plan import plan_table_changes
from sluice.tables.declared_tables import apply_table_changes, load_table


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutcome:
    """The changes of one table, or the reason why it may not be changed.

    Parameters
    ----------
    table: its name.
    exists: whether it is in the catalog.
    changes: what is or was to be changed, a sentence for each point.
    refusal: why the declaration cannot be applied; None when it can.
    """

    table: str
    exists: bool
    changes: tuple[str, ...] = ()
    refusal: str | None = None

    @property
    def state(self) -> str:
        """The outcome in a few words."""
        if self.refusal is not None:
            return "refused"
        if not self.exists:
            return "not created"
        return f"to be changed in {len(self.changes)} points" if self.changes else "as declared"

    def as_json(self) -> dict[str, Any]:
        """The outcome for a program."""
        return {"table": self.table, "exists": self.exists, "changes": list(self.changes), "refusal": self.refusal}


def _plan_table(catalog: Catalog, declaration: TableDeclaration) -> TableOutcome:
    """Compare a declaration with its table; nothing is changed."""
    return _outcome(catalog, declaration, is_applied=False)


def _create_or_change_table(catalog: Catalog, declaration: TableDeclaration) -> TableOutcome:
    """Create a table, or change it to its declaration. A refused change is in the outcome, not raised."""
    return _outcome(catalog, declaration, is_applied=True)


def _outcome(catalog: Catalog, declaration: TableDeclaration, *, is_applied: bool) -> TableOutcome:
    table = load_table(catalog, declaration.table)
    exists = table is not None
    try:
        changes = plan_table_changes(declaration, table.metadata if table is not None else None)
        if is_applied:
            apply_table_changes(catalog, declaration, changes)
    except LakehouseError as error:
        return TableOutcome(table=declaration.table, exists=exists, refusal=str(error))
    return TableOutcome(
        table=declaration.table, exists=exists or is_applied, changes=tuple(str(change) for change in changes)
    )


def list_tables(as_json: AsJson = False) -> None:
    """List the declared tables, the quarantines of streams included, and whether each is as declared."""
    settings = load_settings()
    declarations, catalog = load_declarations(settings.pipelines), open_catalog(settings)
    tables = all_tables(declarations)
    outcomes = [_plan_table(catalog, declaration) for declaration in tables.values()]
    if as_json:
        print_json([outcome.as_json() | {"state": outcome.state} for outcome in outcomes])
        return
    shown = Table(box=None, pad_edge=False)
    for heading in ("table", "state", "owner", "written by"):
        shown.add_column(heading, overflow="fold")
    for outcome in outcomes:
        writers = ", ".join(_writers(declarations, outcome.table))
        shown.add_row(outcome.table, outcome.state, tables[outcome.table].owner, writers)
    console().print(shown)


def show(name: TableName, as_json: AsJson = False) -> None:
    """Show one table: its declared columns and layout, its readers and writers, and what is yet to be changed."""
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    declaration = _declared(declarations, [name])[0]
    outcome = _plan_table(open_catalog(settings), declaration)
    writers = _writers(declarations, name)
    readers = sorted(stream.name for stream in declarations.streams.values() if name in stream.declaration.tables_read)
    if as_json:
        document = {
            "declaration": declaration.model_dump(mode="json"),
            "maintenance": [value.as_json() for value in declarations.policy_of(name)],
            "written_by": writers,
            "read_by": readers,
        }
        print_json(outcome.as_json() | {"state": outcome.state} | document)
        return
    typer.echo(f"{name}: {declaration.description.strip()}")
    typer.echo(f"owner: {declaration.owner}")
    typer.echo(f"written by: {', '.join(writers) or 'no declared stream'}")
    typer.echo(f"read by: {', '.join(readers) or 'no declared stream'}")
    _print_layout(declaration)
    for value in declarations.policy_of(name):
        typer.echo(f"maintenance {value}")
    _print_outcome(outcome)


def create(
    names: Annotated[list[str] | None, typer.Argument(help="The tables; all that are declared when not given.")] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Create and evolve tables as they are declared. Nothing is ever dropped, and a second run changes nothing.

    With a named table come the quarantines of the streams that write it.
    """
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    declared = _declared(declarations, _with_quarantines(declarations, names or []))
    catalog = open_catalog(settings)
    outcomes = [_plan_table(catalog, declaration) for declaration in declared]
    if not dry_run:
        _save(settings, outcomes)
        outcomes = [_create_or_change_table(catalog, declaration) for declaration in declared]
    if as_json:
        print_json({"dry_run": dry_run, "tables": [outcome.as_json() for outcome in outcomes]})
    else:
        for outcome in outcomes:
            _print_outcome(outcome)
        if dry_run:
            print_dry_run_note()
    if not names:
        declarations.require_valid()
    if any(outcome.refusal is not None for outcome in outcomes):
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


def _save(settings: Settings, outcomes: list[TableOutcome]) -> None:
    """Save the command as an event of each table that it is about to create or change."""
    with open_ledger(settings.ledger_url) as ledger:
        for outcome in outcomes:
            if outcome.changes and outcome.refusal is None:
                evidence = {"exists": outcome.exists, "changes": list(outcome.changes)}
                record_event(ledger, table_command(EventAction.CREATE_TABLE, outcome.table, evidence=evidence))


def _declared(declarations: Declarations, names: list[str]) -> list[TableDeclaration]:
    """The declarations of the named tables, or all of them; raises what `Declarations.table` raises."""
    tables = all_tables(declarations)
    if not names:
        return list(tables.values())
    return [tables[name] if name in tables else declarations.table(name).declaration for name in names]


def _with_quarantines(declarations: Declarations, names: list[str]) -> list[str]:
    """The names, each table followed by the quarantines of the streams that write it: these streams need both."""
    streams = [stream.declaration for _, stream in sorted(declarations.streams.items())]
    wanted = (
        (name, *(stream.quarantine_table for stream in streams if stream.quarantine and name in stream.tables_written))
        for name in names
    )
    return list(dict.fromkeys(chain.from_iterable(wanted)))


def _writers(declarations: Declarations, table: str) -> list[str]:
    streams = (stream.declaration for stream in declarations.streams.values())
    return sorted(
        stream.stream
        for stream in streams
        if table in stream.tables_written or (stream.quarantine and table == stream.quarantine_table)
    )


def _print_layout(declaration: TableDeclaration) -> None:
    shown = Table("column", "type", "", "", box=None, pad_edge=False)
    for column in declaration.columns:
        shown.add_row(column.name, column.type, "required" if column.required else "", column.doc)
    console().print(shown)
    for part in declaration.partitioning:
        width = f"[{part.width}]" if part.width is not None else ""
        typer.echo(f"partitioned by {part.transform}{width} of {part.column}")
    for field in declaration.sort_order:
        typer.echo(f"sorted by {field.column} {field.direction}")


def _print_outcome(outcome: TableOutcome) -> None:
    if outcome.refusal is not None:
        typer.echo(f"{outcome.table}: refused. {outcome.refusal}")
    elif not outcome.changes:
        typer.echo(f"{outcome.table}: as declared")
    for change in outcome.changes:
        typer.echo(f"{outcome.table}: {change}")
