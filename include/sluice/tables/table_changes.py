"""The changes that a declaration requires of a table, as values that can be shown and carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from pyiceberg import types as iceberg

from sluice.declarations.table_declaration import PartitionField, SortField

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
