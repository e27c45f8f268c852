"""The tables that are kept in order: the declared ones, and the quarantine of every stream that has one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.declarations.loaded import Declarations
from sluice.declarations.quarantine import all_tables
from sluice.declarations.tables import TableDeclaration
from sluice.errors import LakehouseError

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


def find_declaration(declarations: Declarations, name: str) -> TableDeclaration:
    """The declaration of a table, its own or the platform's for a quarantine.

    Raises
    ------
    UsageError: when there is none; the message names those that exist.
    DeclarationError: when its file has a problem.
    """
    found = all_tables(declarations).get(name)
    return declarations.table(name).declaration if found is None else found


def require_table(catalog: Catalog, name: str) -> Table:
    """A table as it is in the catalog now.

    Raises
    ------
    LakehouseError: when it has not been created, or the catalog refuses.
    """
    from sluice.tables.declared_tables import load_table

    table = load_table(catalog, name)
    if table is None:
        raise LakehouseError(
            f"Table {name} is declared and not in the catalog.", next_step=f"Run `sluice table create {name}`."
        )
    return table
