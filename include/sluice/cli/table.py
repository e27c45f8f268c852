"""`sluice table`: tables as declared and as they are."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.declarations.loading import Declarations
    from sluice.declarations.tables import TableDeclaration

table_app = typer.Typer(name="table", help="Tables as declared and as they are.", no_args_is_help=True)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
FAILED_EXIT_CODE = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOutcome:
    """What is to be changed on one table, or why it may not be."""

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


@table_app.command("list")
def list_tables(as_json: AsJson = False) -> None:
    """Every declared table, the quarantines of streams included, and whether it is as declared."""
    from sluice.declarations.quarantine import all_tables

    declarations, catalog = _declarations(), _catalog()
    outcomes = [_outcome(catalog, declaration, is_applied=False) for declaration in all_tables(declarations).values()]
    if as_json:
        typer.echo(json.dumps([outcome.as_json() | {"state": outcome.state} for outcome in outcomes], indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, pad_edge=False)
    for heading in ("table", "state", "owner", "written by"):
        shown.add_column(heading, overflow="fold")
    for outcome in outcomes:
        owner = all_tables(declarations)[outcome.table].owner
        shown.add_row(outcome.table, outcome.state, owner, ", ".join(_writers(declarations, outcome.table)))
    Console().print(shown)


@table_app.command()
def show(name: Annotated[str, typer.Argument(help="The table, <namespace>.<table>.")], as_json: AsJson = False) -> None:
    """One table: its columns and layout as declared, who reads and writes it, and what is yet to be changed."""
    declarations = _declarations()
    declaration = _declared(declarations, [name])[0]
    outcome = _outcome(_catalog(), declaration, is_applied=False)
    readers = sorted(stream.name for stream in declarations.streams.values() if name in stream.declaration.tables_read)
    if as_json:
        document = {
            "declaration": declaration.model_dump(mode="json"),
            "written_by": _writers(declarations, name),
            "read_by": readers,
        }
        typer.echo(json.dumps(outcome.as_json() | {"state": outcome.state} | document, indent=2))
        return
    typer.echo(f"{name}: {declaration.description.strip()}")
    typer.echo(f"owner: {declaration.owner}")
    typer.echo(f"written by: {', '.join(_writers(declarations, name)) or 'no declared stream'}")
    typer.echo(f"read by: {', '.join(readers) or 'no declared stream'}")
    _print_layout(declaration)
    _print_outcome(outcome)


@table_app.command()
def create(
    names: Annotated[list[str] | None, typer.Argument(help="The tables; all that are declared when not given.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create and evolve tables as they are declared. Nothing is ever dropped, and a second run changes nothing."""
    declarations = _declarations()
    wanted = _declared(declarations, names or [])
    catalog = _catalog()
    outcomes = [_outcome(catalog, declaration, is_applied=not dry_run) for declaration in wanted]
    if as_json:
        typer.echo(json.dumps({"dry_run": dry_run, "tables": [outcome.as_json() for outcome in outcomes]}, indent=2))
    else:
        for outcome in outcomes:
            _print_outcome(outcome)
        if dry_run:
            typer.echo("Nothing was changed: this was a dry run.")
    if not names:
        declarations.require_valid()
    if any(outcome.refusal is not None for outcome in outcomes):
        raise typer.Exit(FAILED_EXIT_CODE)


def _declarations() -> Declarations:
    from sluice.declarations.loading import load_declarations
    from sluice.settings import load_settings

    return load_declarations(load_settings().pipelines)


def _catalog() -> Catalog:
    from sluice.settings import load_settings
    from sluice.tables.catalog import open_catalog

    return open_catalog(load_settings())


def _declared(declarations: Declarations, names: list[str]) -> list[TableDeclaration]:
    """The declarations of the named tables, or all of them; raises what `Declarations.table` raises."""
    from sluice.declarations.quarantine import all_tables

    tables = all_tables(declarations)
    if not names:
        return list(tables.values())
    return [tables[name] if name in tables else declarations.table(name).declaration for name in names]


def _outcome(catalog: Catalog, declaration: TableDeclaration, *, is_applied: bool) -> TableOutcome:
    """Plan one table and, when asked, carry the plan out. A refusal is this table's alone: the others go on."""
    from sluice.errors import LakehouseError
    from sluice.tables.change_plan import plan_table_changes
    from sluice.tables.declared_tables import apply_table_changes, load_table

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


def _writers(declarations: Declarations, table: str) -> list[str]:
    streams = (stream.declaration for stream in declarations.streams.values())
    return sorted(
        stream.stream
        for stream in streams
        if table in stream.tables_written or (stream.quarantine and table == stream.quarantine_table)
    )


def _print_layout(declaration: TableDeclaration) -> None:
    from rich.console import Console
    from rich.table import Table

    shown = Table("column", "type", "", "", box=None, pad_edge=False)
    for column in declaration.columns:
        shown.add_row(column.name, column.type, "required" if column.required else "", column.doc)
    Console().print(shown)
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
