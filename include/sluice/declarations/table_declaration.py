"""The declaration of a table: columns, layout, expectations and maintenance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sluice.declarations.column_types import kind_of
from sluice.declarations.error_messages import did_you_mean
from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.declarations.rule_declaration import RuleDeclaration, require_distinct, unfit_column
from sluice.declarations.scalar_types import (
    LARGEST_INT,
    MOST_TAGS,
    ColumnName,
    Declared,
    Description,
    Owner,
    TableName,
    Tag,
    WholeNumber,
    listed,
    wrong,
)
from sluice.declarations.sql_text import condition_problem
from sluice.declarations.table_properties import property_problem, unchecked_property_problem
from sluice.declarations.value_declaration import Column

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


MOST_LAYOUT_FIELDS = 50
"""Parts of a partitioning or a sort order: each multiplies the partitions, or is compared for every row."""


MOST_FILTERS = 20
"""Each is evaluated for every file of the table, before and after a compaction."""


class PartitionField(Declared):
    """One part of the partitioning: a column and its transform."""

    column: ColumnName = Field(description="a column of the table")
    transform: Literal["identity", "year", "month", "day", "hour", "bucket", "truncate"] = Field(
        "identity", description="what of the column's value makes the partition"
    )
    width: WholeNumber | None = Field(None, gt=0, le=LARGEST_INT, description="bucket: how many; truncate: how long")

    @model_validator(mode="after")
    def _width_belongs_to_some(self) -> Self:
        if (self.transform in ("bucket", "truncate")) != (self.width is not None):
            raise ValueError("width is needed for bucket and truncate, and for no other transform")
        return self


_TIMES = ("year", "month", "day", "hour")


def _are_one(part: PartitionField, other: PartitionField) -> bool:
    """Whether Iceberg takes only one of two parts."""
    are_times = part.transform in _TIMES and other.transform in _TIMES
    return part.column == other.column and (are_times or part.transform == other.transform)


_WITHOUT_ORDER = ("list", "map", "struct")
"""The types by which Iceberg sorts no rows."""

_WITHOUT_Z_ORDER = (*_WITHOUT_ORDER, "decimal")
_Z_COLUMN = "icezvalue"


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
    on_publication: bool = Field(
        False, description="check the table after publications into it as well, one check at a time; it reads all rows"
    )


class TableColumn(Column):
    """A column of a table."""

    renamed_from: ColumnName | None = Field(
        None, description="the name that the column had before; it may stay when the table has been changed"
    )

    @classmethod
    def of(cls, column: Column) -> TableColumn:
        """A column of a value, or of a file, as one of a table."""
        return cls(name=column.name, type=column.type, required=column.required, doc=column.doc)


class TableDeclaration(Declared):
    """An Iceberg table. It is created and evolved from this declaration. The table itself is never dropped."""

    table: TableName = Field(description="`<namespace>.<table>`: also its file's name")
    description: Description = Field(description="what a row is, for a reader who does not know it")
    owner: Owner = Field(description="who answers for it")
    tags: tuple[Tag, ...] = Field((), max_length=MOST_TAGS, description="words to find it by")
    columns: tuple[TableColumn, ...] = Field(min_length=1, description="the columns in order")
    drop: tuple[ColumnName, ...] = Field(
        (),
        description="columns that are taken out of the table, with their values; a name may stay when it is gone",
    )
    partitioning: tuple[PartitionField, ...] = Field(
        (), max_length=MOST_LAYOUT_FIELDS, description="how rows are spread over partitions"
    )
    sort_order: tuple[SortField, ...] = Field(
        (), max_length=MOST_LAYOUT_FIELDS, description="how rows are ordered within files"
    )
    filters: tuple[Annotated[str, StringConstraints(min_length=1, max_length=1000)], ...] = Field(
        (),
        max_length=MOST_FILTERS,
        description="conditions by which queries read the table, in Iceberg's expression language, such as `id = 5`: "
        "`sluice table layout` measures them, and a compaction records how many files they read before and after it",
    )
    properties: dict[str, str] = Field(
        default_factory=dict, description="further table properties that Iceberg documents"
    )
    unchecked_properties: dict[str, str] = Field(
        default_factory=dict,
        description="table properties that are not checked, for other engines and for labels",
    )
    rules: tuple[RuleDeclaration, ...] = Field(
        (), description="what must be true of every row and of every batch, whichever stream writes it"
    )
    quality: QualityDeclaration | None = Field(None, description="what must be true of the committed table")
    unusual_rows: Literal["report", "ignore"] = Field(
        "report",
        description="whether hours are reported in which unusually many or few rows come, or are rejected, or columns "
        "have unusual nulls or values",
    )
    maintenance: MaintenanceDeclaration = Field(MaintenanceDeclaration(), description="how it is kept in order")

    @model_validator(mode="after")
    def _columns_differ(self) -> Self:
        # Spark compares names without regard to case, so `Id` and `id` would be one column to it.
        known: set[str] = set()
        for index, name in enumerate(column.name.lower() for column in self.columns):
            if name in known:
                raise wrong(f"the column {name} is declared twice", "columns", index, "name")
            known.add(name)
        return self

    @model_validator(mode="after")
    def _former_names_differ(self) -> Self:
        declared = {column.name for column in self.columns}
        former: set[str] = set()
        for index, column in enumerate(self.columns):
            if (before := column.renamed_from) is None:
                continue
            if before in declared or before in former:
                what = "is a column of the table" if before in declared else "is the former name of another column"
                raise wrong(f"{before} {what}", "columns", index, "renamed_from")
            former.add(before)
        for index, name in enumerate(self.drop):
            if name in declared | former or name in self.drop[:index]:
                what = "dropped twice" if name in self.drop[:index] else "declared as a column, or as its former name"
                raise wrong(f"{name} is {what}", "drop", index)
        return self

    @model_validator(mode="after")
    def _layout_fits_columns(self) -> Self:
        for index, part in enumerate(self.partitioning):
            self._require_column(part.column, "partitioning", index, "column")
            self._require_transform(part, index)
            if part in self.partitioning[:index]:
                raise wrong("this part is declared twice", "partitioning", index)
            if any(_are_one(part, other) for other in self.partitioning[:index]):
                problem = (
                    f"{part.column} already has a part of this kind, and Iceberg takes one of years, months, days "
                )
                raise wrong(f"{problem}and hours, one of buckets, and one of cut values", "partitioning", index)
        for index, field in enumerate(self.sort_order):
            self._require_column(field.column, "sort_order", index, "column")
            if any(field.column == other.column for other in self.sort_order[:index]):
                raise wrong(f"rows are already ordered by {field.column}", "sort_order", index)
            self._require_order(field, index)
        return self

    @model_validator(mode="after")
    def _sorting_has_an_order(self) -> Self:
        compaction = self.maintenance.compaction
        if compaction is not None and compaction.strategy == "sort" and not self.sort_order:
            raise wrong("sort needs the `sort_order` of the table", "maintenance", "compaction", "strategy")
        for index, name in enumerate((compaction.z_order if compaction is not None else None) or ()):
            at = ("maintenance", "compaction", "z_order", index)
            self._require_column(name, *at)
            if self._has_z_column:
                raise wrong(f"Iceberg z-orders no table with a column {_Z_COLUMN}", *at)
            if (problem := self._z_order_problem(self.column(name))) is not None:
                raise wrong(problem, *at)
        return self

    @model_validator(mode="after")
    def _retention_is_by_a_partition(self) -> Self:
        retention = self.maintenance.retention
        if retention is None or retention.column is None:
            return self
        at = ("maintenance", "retention", "column")
        self._require_column(retention.column, *at)
        if retention.column not in self.partition_times:
            problem = f"the table is not partitioned by years, months, days or hours of {retention.column}"
            raise wrong(f"{problem}: then files, which go as a whole, would hold old and new rows together", *at)
        return self

    @model_validator(mode="after")
    def _filters_are_conditions(self) -> Self:
        for index, text in enumerate(self.filters):
            if (problem := condition_problem(text)) is not None:
                raise wrong(f"the condition {problem}", "filters", index)
            if text in self.filters[:index]:
                raise wrong("this condition is declared twice", "filters", index)
        return self

    @model_validator(mode="after")
    def _statistics_are_of_its_columns(self) -> Self:
        statistics = self.maintenance.statistics
        for index, name in enumerate((statistics.columns if statistics is not None else None) or ()):
            at = ("maintenance", "statistics", "columns", index)
            self._require_column(name, *at)
            if name not in self.countable:
                raise wrong(f"{name} has values within its values, and no distinct ones are counted", *at)
        return self

    @model_validator(mode="after")
    def _properties_are_the_declarations(self) -> Self:
        for name, value in self.properties.items():
            if (problem := property_problem(name, value)) is not None:
                raise wrong(problem, "properties", name)
        for name, value in self.unchecked_properties.items():
            if (problem := unchecked_property_problem(name, value)) is not None:
                raise wrong(problem, "unchecked_properties", name)
            if name in self.properties:
                raise wrong("this property is declared twice", "unchecked_properties", name)
        return self

    @model_validator(mode="after")
    def _rules_are_its_own(self) -> Self:
        require_distinct(self.rules)
        for index, rule in enumerate(self.rules):
            if rule.output is not None:
                raise wrong("belongs to the rule of a stream", "rules", index, "output")
            for argument, name in rule.columns:
                at = ("rules", index, "kwargs", *argument)
                if (column := self.column(name)) is None:
                    known = [one.name for one in self.columns]
                    hint = did_you_mean(name, known)
                    raise wrong(f"the table has no column {name}; it has {listed(known)}. {hint}".rstrip(". "), *at)
                if rule.is_of_batch and (problem := unfit_column(str(rule.type), rule.kwargs, column.column_type)):
                    raise wrong(f"{name} {problem}", *at)
        return self

    def _require_column(self, name: str, *at: str | int) -> None:
        if self.column(name) is None:
            known = listed(column.name for column in self.columns)
            raise wrong(f"the table has no column {name}; it has {known}", *at)

    def _require_transform(self, part: PartitionField, index: int) -> None:
        column = self.column(part.column)
        kind = kind_of(column.column_type) if column is not None else ""
        if kind in ("list", "map", "struct") or kind not in _TRANSFORMS_BY_TYPE.get(part.transform, (kind,)):
            raise wrong(f"the transform {part.transform} takes no column of type {kind}", "partitioning", index)

    def _require_order(self, field: SortField, index: int) -> None:
        column = self.column(field.column)
        kind = kind_of(column.column_type) if column is not None else ""
        if kind in _WITHOUT_ORDER:
            raise wrong(f"rows cannot be sorted by a column of type {kind}", "sort_order", index, "column")

    def _z_order_problem(self, column: TableColumn | None) -> str | None:
        """Why Iceberg cannot z-order rows by a column. Source: org.apache.iceberg.spark.actions.SparkZOrderUDF."""
        kind = kind_of(column.column_type) if column is not None else ""
        if kind in _WITHOUT_Z_ORDER:
            return f"rows cannot be z-ordered by a column of type {kind}"
        name = column.name if column is not None else ""
        if any(part.column == name and part.transform == "identity" for part in self.partitioning):
            return f"{name} has one value in each partition; name columns that vary within them"
        return None

    @property
    def _has_z_column(self) -> bool:
        """Whether it has the column of SparkZOrderFileRewriteRunner, which no other one may have the name of."""
        return any(one.name.lower() == _Z_COLUMN for one in self.columns)

    @property
    def z_orderable(self) -> frozenset[str]:
        """The columns by which its rows can be z-ordered."""
        fit = (one.name for one in self.columns if self._z_order_problem(one) is None)
        return frozenset() if self._has_z_column else frozenset(fit)

    @property
    def countable(self) -> frozenset[str]:
        """The columns of which Iceberg counts the distinct values."""
        return frozenset(one.name for one in self.columns if kind_of(one.column_type) not in _WITHOUT_ORDER)

    @property
    def partition_times(self) -> frozenset[str]:
        """The columns by whose dates or times the rows are spread over partitions."""
        kinds = {column.name: kind_of(column.column_type) for column in self.columns}
        return frozenset(
            part.column
            for part in self.partitioning
            if part.transform in _TIMES or (part.transform == "identity" and kinds.get(part.column) == "date")
        )

    @property
    def all_properties(self) -> dict[str, str]:
        """The declared table properties, those that are checked and those that are not."""
        return self.properties | self.unchecked_properties

    @property
    def namespace(self) -> str:
        """The namespace of the table."""
        return self.table.partition(".")[0]

    def column(self, name: str) -> TableColumn | None:
        """The column of this name, if the table has one."""
        return next((column for column in self.columns if column.name == name), None)


_ALIGNED_WITH: Mapping[str, frozenset[str]] = {
    "hour": frozenset({"identity", "hour"}),
    "day": frozenset({"identity", "hour", "day"}),
    "month": frozenset({"identity", "hour", "day", "month"}),
}
"""The transforms of a partition that never put the values of two intervals of a length into one file."""


def is_partition_aligned(table: TableDeclaration, column: str, length: Literal["hour", "day", "month"]) -> bool:
    """Whether each file that is written into a table holds rows of one interval alone, by the table's partitions."""
    return any(part.column == column and part.transform in _ALIGNED_WITH[length] for part in table.partitioning)
