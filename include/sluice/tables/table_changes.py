"""The changes that make a table as it is declared, as values: planned by `change_plan`, shown, and carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg import types as iceberg

from sluice.declarations.table_declaration import PartitionField, SortField

ColumnPath: TypeAlias = tuple[str, ...]
"""The way to a column: its name, then names inside structs, `element` inside lists and `value` inside maps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateTable:
    """Create the table; nothing of this name exists."""

    table: str
    columns: int

    def __str__(self) -> str:
        return f"create the table with {self.columns} columns"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddColumn:
    """Add a column that rows written so far leave empty."""

    path: ColumnPath
    type: iceberg.IcebergType
    doc: str = ""

    def __str__(self) -> str:
        return f"add the column {'.'.join(self.path)} of type {self.type}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WidenColumn:
    """Give a column a type that holds all its values."""

    path: ColumnPath
    before: iceberg.IcebergType
    type: iceberg.PrimitiveType

    def __str__(self) -> str:
        return f"widen the column {'.'.join(self.path)} from {self.before} to {self.type}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeOptional:
    """Let rows have no value for a column."""

    path: ColumnPath

    def __str__(self) -> str:
        return f"make the column {'.'.join(self.path)} optional"


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeColumn:
    """Say something else of a column."""

    path: ColumnPath
    doc: str

    def __str__(self) -> str:
        return f"describe the column {'.'.join(self.path)} as {self.doc!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderColumns:
    """Show the columns in another order."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"order the columns as {', '.join(self.names)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPartitionField:
    """Partition the rows to come by one thing more; files written so far stay where they are."""

    name: str
    field: PartitionField

    def __str__(self) -> str:
        return f"partition new rows by {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovePartitionField:
    """Partition the rows to come by one thing less."""

    name: str

    def __str__(self) -> str:
        return f"no longer partition new rows by {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetSortOrder:
    """Order the rows to come differently within files."""

    fields: tuple[SortField, ...]

    def __str__(self) -> str:
        order = ", ".join(f"{field.column} {field.direction}" for field in self.fields)
        return f"sort new rows by {order}" if order else "no longer sort new rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetProperty:
    """Give a table property a value."""

    name: str
    value: str = field(repr=False)

    def __str__(self) -> str:
        return f"set the property {self.name} to {self.value!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveProperty:
    """Take a table property back that an earlier declaration set."""

    name: str

    def __str__(self) -> str:
        return f"remove the property {self.name}"


SchemaChange: TypeAlias = AddColumn | WidenColumn | MakeOptional | DescribeColumn | OrderColumns

LayoutChange: TypeAlias = AddPartitionField | RemovePartitionField | SetSortOrder

PropertyChange: TypeAlias = SetProperty | RemoveProperty

TableChange: TypeAlias = CreateTable | SchemaChange | LayoutChange | PropertyChange
