"""Loads tables, and creates and evolves them as they are declared. It never drops a table, a column or a row."""

from __future__ import annotations

from collections.abc import Iterable

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError
from pyiceberg.table import Table, Transaction
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddSortOrderUpdate,
    AssertDefaultSortOrderId,
    AssertTableUUID,
    SetDefaultSortOrderUpdate,
)
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Identifier

from sluice.declarations.table_declaration import SortField, TableDeclaration
from sluice.errors import LakehouseError
from sluice.tables.catalog import catalog_refusals
from sluice.tables.change_plan import (
    AddColumn,
    AddPartitionField,
    CreateTable,
    DescribeColumn,
    DropColumn,
    MakeOptional,
    OrderColumns,
    RemovePartitionField,
    RemoveProperty,
    RenameColumn,
    SchemaChange,
    SetProperty,
    SetSortOrder,
    TableChange,
    WidenColumn,
    plan_table_changes,
)
from sluice.tables.table_schemas import (
    FORMAT_VERSION,
    null_order_of,
    partition_spec_of,
    properties_of,
    schema_of,
    sort_order_of,
    transform_of,
)


def load_table(catalog: Catalog, name: str | Identifier) -> Table | None:
    """The table of this name, freshly loaded; none when the catalog does not have it.

    Parameters
    ----------
    name: `<namespace>.<table>`, or its parts: a table that is not declared may have a dot in one.

    Raises
    ------
    LakehouseError: when the catalog cannot be asked.
    """
    with catalog_refusals(f"load the table {name if isinstance(name, str) else '.'.join(name)}"):
        try:
            return catalog.load_table(name)
        except NoSuchTableError:
            return None


def require_table(catalog: Catalog, name: str) -> Table:
    """The table of this name, freshly loaded.

    Raises
    ------
    LakehouseError: when it does not exist, or the catalog cannot be asked.
    """
    table = load_table(catalog, name)
    if table is None:
        raise LakehouseError(f"The table {name} does not exist.", next_step=f"Run `sluice table create {name}`.")
    return table


def plan_table(catalog: Catalog, declaration: TableDeclaration) -> tuple[TableChange, ...]:
    """Plan what `create_or_evolve_table` would do now.

    Raises
    ------
    LakehouseError: when the catalog cannot be asked, or a change would lose rows.
    """
    table = load_table(catalog, declaration.table)
    return plan_table_changes(declaration, table.metadata if table is not None else None)


def create_or_evolve_table(catalog: Catalog, declaration: TableDeclaration) -> tuple[TableChange, ...]:
    """Create a table as it is declared, or evolve it.

    Returns
    -------
    The changes; none when the table was as declared.

    Raises
    ------
    LakehouseError: when the catalog refuses, or a change would lose rows.
    """
    changes = plan_table(catalog, declaration)
    apply_table_changes(catalog, declaration, changes)
    return changes


def apply_table_changes(catalog: Catalog, declaration: TableDeclaration, changes: tuple[TableChange, ...]) -> None:
    """Carry out a plan: a creation, or all other changes in one commit (the removal of a sort order is a second one).

    Parameters
    ----------
    changes: from `plan_table_changes` for this declaration.

    Raises
    ------
    LakehouseError: when the catalog refuses.
    """
    if any(isinstance(change, CreateTable) for change in changes):
        _create(catalog, declaration)
    elif changes:
        with catalog_refusals(f"evolve the table {declaration.table}"):
            _evolve(catalog.load_table(declaration.table), changes)


def _create(catalog: Catalog, declaration: TableDeclaration) -> None:
    schema = schema_of(declaration)
    with catalog_refusals(f"create the table {declaration.table}"):
        catalog.create_namespace_if_not_exists(declaration.namespace)
        try:
            table = catalog.create_table(
                declaration.table,
                schema=schema,
                partition_spec=partition_spec_of(declaration, schema),
                sort_order=sort_order_of(declaration, schema),
                properties=properties_of(declaration) | {"format-version": FORMAT_VERSION},
            )
        except TableAlreadyExistsError:
            table = catalog.load_table(declaration.table)
        # Another process may have created it since the plan was made; SeaweedFS then answers with that table.
        rest = plan_table_changes(declaration, table.metadata)
        if rest:
            _evolve(table, rest)


def _evolve(table: Table, changes: Iterable[TableChange]) -> None:
    planned = tuple(changes)
    order = next((change for change in planned if isinstance(change, SetSortOrder)), None)
    with table.transaction() as transaction:
        _update_schema(transaction, planned)
        _update_partitioning(transaction, planned)
        if order is not None and order.fields:
            _update_sort_order(transaction, order.fields)
        _update_properties(transaction, planned)
    if order is not None and not order.fields:
        _stop_sorting(table)


def _stop_sorting(table: Table) -> None:
    """Remove the sort order, in a commit of its own.

    pyiceberg 0.12 sets the sort order with the highest id as "the last added one"; the id of the empty order is 0.
    """
    known = {order.order_id for order in table.metadata.sort_orders}
    unsorted = UNSORTED_SORT_ORDER.order_id
    additions = () if unsorted in known else (AddSortOrderUpdate(sort_order=UNSORTED_SORT_ORDER),)
    table.catalog.commit_table(
        table,
        (
            AssertTableUUID(uuid=table.metadata.table_uuid),
            AssertDefaultSortOrderId(default_sort_order_id=table.metadata.default_sort_order_id),
        ),
        (*additions, SetDefaultSortOrderUpdate(sort_order_id=unsorted)),
    )


def _update_schema(transaction: Transaction, changes: tuple[TableChange, ...]) -> None:
    schema_changes = [change for change in changes if isinstance(change, SchemaChange)]
    renames = [change for change in schema_changes if isinstance(change, RenameColumn)]
    others = [change for change in schema_changes if not isinstance(change, RenameColumn)]
    for some in (renames, others):  # pyiceberg finds a column that it renames by its former name until the update ends
        if some:
            with transaction.update_schema() as update:
                for change in some:
                    _update_column(update, change)


def _update_column(update: UpdateSchema, change: SchemaChange) -> None:
    match change:
        case AddColumn():
            update.add_column(change.path, change.type, doc=change.doc or None)
        case RenameColumn():
            update.rename_column(change.before, change.name)
        case DropColumn():
            update.delete_column(change.name)
        case WidenColumn():
            update.update_column(change.path, field_type=change.type)
        case MakeOptional():
            update.make_column_optional(change.path)
        case DescribeColumn():
            update.update_column(change.path, doc=change.doc)
        case OrderColumns():
            update.move_first(change.names[0])
            for before, name in zip(change.names, change.names[1:], strict=False):
                update.move_after(name, before)


def _update_partitioning(transaction: Transaction, changes: tuple[TableChange, ...]) -> None:
    partition_changes = [change for change in changes if isinstance(change, AddPartitionField | RemovePartitionField)]
    if partition_changes:
        with transaction.update_spec() as update:
            for change in partition_changes:
                if isinstance(change, RemovePartitionField):
                    update.remove_field(change.name)
                else:
                    update.add_field(change.field.column, transform_of(change.field), change.name)


def _update_sort_order(transaction: Transaction, fields: tuple[SortField, ...]) -> None:
    with transaction.update_sort_order() as update:
        for field in fields:
            add = update.asc if field.direction == "asc" else update.desc
            add(field.column, IdentityTransform(), null_order=null_order_of(field))


def _update_properties(transaction: Transaction, changes: tuple[TableChange, ...]) -> None:
    values = {change.name: change.value for change in changes if isinstance(change, SetProperty)}
    if values:
        transaction.set_properties(values)
    names = [change.name for change in changes if isinstance(change, RemoveProperty)]
    if names:
        transaction.remove_properties(*names)
