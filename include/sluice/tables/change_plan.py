"""Compares a declaration with a table's metadata and plans the changes, as values that can be shown and carried out;
refuses a change that would lose rows.

A plan reads metadata and changes nothing. `sluice.tables.declared_tables` carries out the planned values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.transforms import VoidTransform

from sluice.declarations.table_declaration import PartitionField, SortField, TableDeclaration
from sluice.errors import LakehouseError
from sluice.stored_keys import DECLARED_PROPERTIES
from sluice.tables.table_schemas import partition_name, properties_of, schema_of, sort_order_of, transform_of

ColumnPath: TypeAlias = tuple[str, ...]
"""The path of a column: its name, then names inside structs, `element` inside lists and `value` inside maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """Create the table, which does not exist."""

    table: str
    columns: int

    def __str__(self) -> str:
        return f"create the table with {self.columns} columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumn:
    """Add a column, which is null in existing rows."""

    path: ColumnPath
    type: iceberg.IcebergType
    doc: str = ""

    def __str__(self) -> str:
        return f"add the column {'.'.join(self.path)} of type {self.type}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenameColumn:
    """Give a column another name. Its rows stay: files know a column by its id."""

    before: str
    name: str

    def __str__(self) -> str:
        return f"rename the column {self.before} to {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DropColumn:
    """Take a column out of the table. Its values stay in old snapshots and in files, and no query reads them."""

    name: str

    def __str__(self) -> str:
        return f"drop the column {self.name} with its values"


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenColumn:
    """Change the type of a column to a wider one."""

    path: ColumnPath
    before: iceberg.IcebergType
    type: iceberg.PrimitiveType

    def __str__(self) -> str:
        return f"widen the column {'.'.join(self.path)} from {self.before} to {self.type}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeOptional:
    """Allow nulls in a column."""

    path: ColumnPath

    def __str__(self) -> str:
        return f"make the column {'.'.join(self.path)} optional"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeColumn:
    """Change the description of a column."""

    path: ColumnPath
    doc: str

    def __str__(self) -> str:
        return f"describe the column {'.'.join(self.path)} as {self.doc!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderColumns:
    """Change the order of the columns."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"order the columns as {', '.join(self.names)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionField:
    """Add a partition field for new rows; existing files are not rewritten."""

    name: str
    field: PartitionField

    def __str__(self) -> str:
        return f"partition new rows by {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePartitionField:
    """Remove a partition field for new rows."""

    name: str

    def __str__(self) -> str:
        return f"no longer partition new rows by {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSortOrder:
    """Change the sort order of new rows within files."""

    fields: tuple[SortField, ...]

    def __str__(self) -> str:
        order = ", ".join(f"{field.column} {field.direction}" for field in self.fields)
        return f"sort new rows by {order}" if order else "no longer sort new rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetProperty:
    """Set a table property."""

    name: str
    value: str = field(repr=False)

    def __str__(self) -> str:
        return f"set the property {self.name} to {self.value!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveProperty:
    """Remove a table property that an earlier declaration set."""

    name: str

    def __str__(self) -> str:
        return f"remove the property {self.name}"


SchemaChange: TypeAlias = (
    AddColumn | RenameColumn | DropColumn | WidenColumn | MakeOptional | DescribeColumn | OrderColumns
)

LayoutChange: TypeAlias = AddPartitionField | RemovePartitionField | SetSortOrder

PropertyChange: TypeAlias = SetProperty | RemoveProperty

TableChange: TypeAlias = CreateTable | SchemaChange | LayoutChange | PropertyChange


def plan_table_changes(declaration: TableDeclaration, existing: TableMetadata | None) -> tuple[TableChange, ...]:
    """Compare a declaration with the table that exists.

    Parameters
    ----------
    declaration: the table as declared.
    existing: the table's newest metadata; none when it does not exist.

    Returns
    -------
    The changes in the order in which they are carried out; none when the table is as declared.

    Raises
    ------
    LakehouseError: when a column would be narrowed, changed to another type, made required, or dropped without being
        under `drop`. The message names every such column.
    """
    if existing is None:
        return (CreateTable(table=declaration.table, columns=len(declaration.columns)),)
    renames = tuple(_renames(declaration, existing.schema()))
    existing = _renamed(existing, {change.before: change.name for change in renames})
    comparison = _SchemaComparison(
        declared=schema_of(declaration), existing=existing.schema(), dropped=declaration.drop
    )
    schema_changes = comparison.changes()
    if comparison.refusals:
        raise LakehouseError(
            f"The table {declaration.table} cannot become as it is declared: {'; '.join(comparison.refusals)}.",
            next_step="Correct the declaration, or declare a table of another name.",
        )
    in_use = _layout_columns(existing)
    if kept := [change.name for change in schema_changes if isinstance(change, DropColumn) and change.name in in_use]:
        raise LakehouseError(
            f"The table {declaration.table} cannot become as it is declared: {', '.join(kept)} cannot be dropped, "
            "because partitions or the order of rows, of now or of older files, are made of it.",
            next_step="Declare the column again, or write the rows into a table of another name.",
        )
    return (
        *renames,
        *schema_changes,
        *_partition_changes(declaration, existing),
        *_sort_changes(declaration, existing),
        *_property_changes(declaration, existing),
    )


def _renames(declaration: TableDeclaration, existing: Schema) -> Iterator[RenameColumn]:
    """The columns that still have a former name. A table that has both names keeps them, and the comparison refuses the
    former one, which is declared no more."""
    names = set(existing.column_names)
    for column in declaration.columns:
        if column.renamed_from in names and column.name not in names:
            yield RenameColumn(before=column.renamed_from, name=column.name)


def _renamed(existing: TableMetadata, names: Mapping[str, str]) -> TableMetadata:
    """The metadata as it is once some columns have other names, by their former ones."""
    if not names:
        return existing
    now = existing.schema()
    fields = [field.model_copy(update={"name": names.get(field.name, field.name)}) for field in now.fields]
    schema = Schema(*fields, schema_id=now.schema_id, identifier_field_ids=now.identifier_field_ids)
    others = [other for other in existing.schemas if other.schema_id != now.schema_id]
    return existing.model_copy(update={"schemas": [*others, schema]})


def _layout_columns(existing: TableMetadata) -> frozenset[str | None]:
    """The columns that any partitioning or sort order of the table is made of: old files and old metadata need them."""
    parts = [field.source_id for spec in existing.partition_specs for field in spec.fields]
    sorted_by = [field.source_id for order in existing.sort_orders for field in order.fields]
    schema = existing.schema()
    return frozenset(schema.find_column_name(number) for number in (*parts, *sorted_by, *schema.identifier_field_ids))


class _SchemaComparison:
    """Compares two schemas and collects all refused changes, so that one message can list them.

    dropped: the columns that may go.
    """

    def __init__(self, *, declared: Schema, existing: Schema, dropped: Sequence[str] = ()) -> None:
        self._dropped = frozenset(dropped)
        self._declared = declared
        self._existing = existing
        self.refusals: list[str] = []

    def changes(self) -> tuple[SchemaChange, ...]:
        changes = tuple(self._structs((), self._declared.as_struct(), self._existing.as_struct()))
        added = [change.path[0] for change in changes if isinstance(change, AddColumn) and len(change.path) == 1]
        names = tuple(column.name for column in self._declared.fields)
        kept = (column.name for column in self._existing.fields if column.name not in self._dropped)
        if names != (*kept, *added) and not self.refusals:
            return (*changes, OrderColumns(names=names))
        return changes

    def _structs(
        self, path: ColumnPath, declared: iceberg.StructType, existing: iceberg.StructType
    ) -> Iterator[SchemaChange]:
        known = {column.name: column for column in existing.fields}
        for column in declared.fields:
            place = (*path, column.name)
            before = known.pop(column.name, None)
            if before is not None:
                yield from self._columns(place, column, before)
            elif column.required:
                self._refuse(place, "is new and required, and rows written so far have no value for it")
            else:
                yield AddColumn(path=place, type=column.field_type, doc=column.doc or "")
        for name in known:
            if not path and name in self._dropped:
                yield DropColumn(name=name)
                continue
            ways = "add `renamed_from` to the column that it becomes, or name it under `drop`" if not path else ""
            self._refuse(
                (*path, name),
                f"is in the table and no longer in the declaration ({ways or 'fields of a column are never dropped'})",
            )

    def _columns(
        self, path: ColumnPath, declared: iceberg.NestedField, existing: iceberg.NestedField
    ) -> Iterator[SchemaChange]:
        yield from self._types(path, declared.field_type, existing.field_type)
        if declared.required and existing.optional:
            self._refuse(path, "is optional and declared as required, and rows may lack a value")
        if declared.optional and existing.required:
            yield MakeOptional(path=path)
        # A declaration cannot describe fields inside structs, so their descriptions are kept.
        if (declared.doc or "") != (existing.doc or "") and len(path) == 1:
            yield DescribeColumn(path=path, doc=declared.doc or "")

    def _types(
        self, path: ColumnPath, declared: iceberg.IcebergType, existing: iceberg.IcebergType
    ) -> Iterator[SchemaChange]:
        match declared, existing:
            case iceberg.StructType(), iceberg.StructType():
                yield from self._structs(path, declared, existing)
            case iceberg.ListType(), iceberg.ListType():
                yield from self._columns((*path, "element"), declared.element_field, existing.element_field)
            case iceberg.MapType(), iceberg.MapType():
                if str(declared.key_type) != str(existing.key_type):
                    self._refuse((*path, "key"), f"would change from {existing.key_type} to {declared.key_type}")
                yield from self._columns((*path, "value"), declared.value_field, existing.value_field)
            case iceberg.PrimitiveType(), iceberg.PrimitiveType() if declared == existing:
                return
            case iceberg.PrimitiveType(), iceberg.PrimitiveType() if is_wider(declared, than=existing):
                yield WidenColumn(path=path, before=existing, type=declared)
            case _:
                self._refuse(path, f"would change from {existing} to {declared}, and not every value fits")

    def _refuse(self, path: ColumnPath, reason: str) -> None:
        self.refusals.append(f"the column {'.'.join(path)} {reason}")


def is_wider(declared: iceberg.PrimitiveType, *, than: iceberg.PrimitiveType) -> bool:
    """Whether every value of `than` is one of `declared`.

    Not pyiceberg's own `promote`: in 0.12 it lets a decimal change its scale, and text become bytes.
    Source: https://iceberg.apache.org/spec/#schema-evolution (format version 2)
    """
    match than, declared:
        case iceberg.IntegerType(), iceberg.LongType():
            return True
        case iceberg.FloatType(), iceberg.DoubleType():
            return True
        case iceberg.DecimalType(), iceberg.DecimalType():
            return declared.scale == than.scale and declared.precision > than.precision
    return False


def _partition_changes(declaration: TableDeclaration, existing: TableMetadata) -> Iterator[LayoutChange]:
    schema = existing.schema()
    before = {
        (schema.find_column_name(field.source_id), str(field.transform)): field.name
        for field in existing.spec().fields
        if not isinstance(field.transform, VoidTransform)
    }
    wanted = {(field.column, str(transform_of(field))): field for field in declaration.partitioning}
    yield from (RemovePartitionField(name=name) for key, name in before.items() if key not in wanted)
    for key, partition_field in wanted.items():
        if key not in before:
            yield AddPartitionField(name=partition_name(partition_field, declaration), field=partition_field)


def _sort_changes(declaration: TableDeclaration, existing: TableMetadata) -> Iterator[LayoutChange]:
    schema = existing.schema()
    names = {column.name for column in schema.fields}
    newest = existing.sort_order_by_id(existing.default_sort_order_id)
    before = _sort_terms(newest, schema) if newest is not None else []
    # A column that is not in the table yet cannot be in its sort order, so the order differs without a comparison.
    is_new = any(field.column not in names for field in declaration.sort_order)
    if is_new or before != _sort_terms(sort_order_of(declaration, schema), schema):
        yield SetSortOrder(fields=declaration.sort_order)


def _sort_terms(order: SortOrder, schema: Schema) -> list[tuple[str | None, str, str, str]]:
    return [
        (schema.find_column_name(term.source_id), str(term.transform), term.direction.value, term.null_order.value)
        for term in order.fields
    ]


def _property_changes(declaration: TableDeclaration, existing: TableMetadata) -> Iterator[PropertyChange]:
    wanted = properties_of(declaration)
    for name, value in wanted.items():
        if existing.properties.get(name) != value:
            yield SetProperty(name=name, value=value)
    yield from (
        RemoveProperty(name=name)
        for name in declared_before(existing.properties)
        if name not in wanted and name in existing.properties
    )


def declared_before(properties: Mapping[str, str]) -> tuple[str, ...]:
    """The names of the properties that the previous declaration set; none when Sluice did not create the table."""
    try:
        names = json.loads(properties.get(DECLARED_PROPERTIES, "[]"))
    except ValueError:
        return ()  # another writer changed it: then no property is known to be Sluice's, and none is removed
    return tuple(str(name) for name in names) if isinstance(names, list) else ()
