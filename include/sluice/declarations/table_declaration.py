"""The declaration of a table: columns, layout, expectations and maintenance."""

from __future__ import annotations

import re
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from sluice.declarations.column_types import kind_of
from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.declarations.scalar_types import ColumnName, Declared, TableName, wrong
from sluice.declarations.value_declaration import Column

_PLATFORM_PROPERTIES = re.compile(
    r"sluice\..*|format-version|write\.(data|metadata|object-storage|folder-storage)\.path"
)
_DATED = ("date", "timestamp", "timestamptz")
_TRANSFORMS_BY_TYPE = {
    "year": _DATED,
    "month": _DATED,
    "day": _DATED,
    "hour": _DATED[1:],
    "truncate": ("int", "long", "string", "binary", "decimal"),
    "bucket": (
        "int",
        "long",
        "date",
        "time",
        "timestamp",
        "timestamptz",
        "string",
        "uuid",
        "binary",
        "fixed",
        "decimal",
    ),
}
"""The types a transform takes. Source: https://iceberg.apache.org/spec/#partition-transforms"""


class PartitionField(Declared):
    """One part of the partitioning: a column and its transform."""

    column: ColumnName = Field(description="a column of the table")
    transform: Literal["identity", "year", "month", "day", "hour", "bucket", "truncate"] = Field(
        "identity", description="what of the column's value makes the partition"
    )
    width: int | None = Field(None, gt=0, description="bucket: how many; truncate: how long")

    @model_validator(mode="after")
    def _width_belongs_to_some(self) -> Self:
        if (self.transform in ("bucket", "truncate")) != (self.width is not None):
            raise ValueError("width is needed for bucket and truncate, and for no other transform")
        return self


class SortField(Declared):
    """One part of the sort order."""

    column: ColumnName = Field(description="a column of the table")
    direction: Literal["asc", "desc"] = Field("asc", description="ascending or descending")
    nulls: Literal["first", "last"] | None = Field(
        None, description="where nulls go; unset: first when ascending, last when descending"
    )


class ExpectationDeclaration(Declared):
    """One Great Expectations expectation, in its own words.

    Source: https://greatexpectations.io/expectations/
    """

    type: str = Field(pattern=r"^expect_[a-z0-9_]+$", description="for example `expect_column_values_to_not_be_null`")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="its keyword arguments")


class QualityDeclaration(Declared):
    """What must be true of the committed table."""

    expectations: tuple[ExpectationDeclaration, ...] = Field(min_length=1, description="all of them are checked")


class TableDeclaration(Declared):
    """An Iceberg table. It is created and evolved from this declaration, and never dropped."""

    table: TableName = Field(description="`<namespace>.<table>`: also its file's name")
    description: str = Field(description="what a row is, for a reader who does not know it")
    owner: str = Field(min_length=1, description="who answers for it")
    tags: tuple[str, ...] = Field((), description="words to find it by")
    columns: tuple[Column, ...] = Field(min_length=1, description="the columns in order")
    partitioning: tuple[PartitionField, ...] = Field((), description="how rows are spread over partitions")
    sort_order: tuple[SortField, ...] = Field((), description="how rows are ordered within files")
    properties: dict[str, str] = Field(default_factory=dict, description="further Iceberg table properties")
    quality: QualityDeclaration | None = Field(None, description="what must be true of the committed table")
    maintenance: MaintenanceDeclaration = Field(MaintenanceDeclaration(), description="how it is kept in order")

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        # Spark compares names without regard to case, so `Id` and `id` would be one column to it.
        names = [column.name.lower() for column in self.columns]
        for index, name in enumerate(names):
            if name in names[:index]:
                raise wrong(f"the column {name} is declared twice", "columns", index, "name")
        return self

    @model_validator(mode="after")
    def _layout_fits_columns(self) -> Self:
        for index, part in enumerate(self.partitioning):
            self._require_column(part.column, "partitioning", index, "column")
            self._require_transform(part, index)
            if part in self.partitioning[:index]:
                raise wrong("this part is declared twice", "partitioning", index)
        for index, field in enumerate(self.sort_order):
            self._require_column(field.column, "sort_order", index, "column")
        return self

    @model_validator(mode="after")
    def _properties_are_the_declarations(self) -> Self:
        for name in self.properties:
            if _PLATFORM_PROPERTIES.fullmatch(name):
                raise wrong("this property is the platform's and is not declared", "properties", name)
        return self

    def _require_column(self, name: str, *at: str | int) -> None:
        if self.column(name) is None:
            known = ", ".join(column.name for column in self.columns)
            raise wrong(f"the table has no column {name}; it has {known}", *at)

    def _require_transform(self, part: PartitionField, index: int) -> None:
        column = self.column(part.column)
        kind = kind_of(column.column_type) if column is not None else ""
        if kind in ("list", "map", "struct") or kind not in _TRANSFORMS_BY_TYPE.get(part.transform, (kind,)):
            raise wrong(f"the transform {part.transform} takes no column of type {kind}", "partitioning", index)

    @property
    def namespace(self) -> str:
        """The namespace of the table."""
        return self.table.partition(".")[0]

    def column(self, name: str) -> Column | None:
        """The column of this name, if the table has one."""
        return next((column for column in self.columns if column.name == name), None)
