"""What a table's declaration changes on the table that exists: planned, or planned and applied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyiceberg.catalog import Catalog

from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import LakehouseError
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


def plan_table(catalog: Catalog, declaration: TableDeclaration) -> TableOutcome:
    """Compare a declaration with its table; nothing is changed."""
    return _outcome(catalog, declaration, is_applied=False)


def create_or_change_table(catalog: Catalog, declaration: TableDeclaration) -> TableOutcome:
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
