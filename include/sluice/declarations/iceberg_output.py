"""The declaration of an Iceberg table as an output: mode, keys, change feed, delivery."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sluice.declarations.scalar_types import (
    ColumnName,
    Declared,
    Duration,
    TableName,
    WholeNumber,
    wrong,
)

MOST_KEYS = 50
"""Columns that say which row a new one replaces; each is a condition of the MERGE."""

OperationValue = Annotated[str, StringConstraints(min_length=1, max_length=64)]
"""What a change feed writes for an operation."""


class OperationsDeclaration(Declared):
    """What the values of a change feed's operation column mean. Unset, they are Debezium's.

    Source: https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-events
    """

    insert: tuple[OperationValue, ...] = Field(("c", "r"), description="the row is new")
    update: tuple[OperationValue, ...] = Field(("u",), description="the row has changed")
    delete: tuple[OperationValue, ...] = Field(("d",), description="the row is gone")

    @model_validator(mode="after")
    def _one_meaning(self) -> Self:
        values = (*self.insert, *self.update, *self.delete)
        twice = sorted({value for value in values if values.count(value) > 1})
        if twice:
            raise ValueError(f"the operation {twice[0]} is named twice")
        if not values:
            raise ValueError("no operation is named, so that every change would be unknown")
        return self


class IcebergOutput(Declared):
    """Rows of an Iceberg table.

    `staged` delivery writes a batch into a staging table first and publishes it from there, once, whatever dies in
    between. `direct` is Iceberg's own streaming sink, for plain appends: it promises less, see docs/guides/outputs.md.
    """

    table: TableName = Field(description="the table")
    mode: Literal["append", "merge", "complete", "overwrite_partitions"] = Field(
        "append",
        description="`append` adds rows; `merge` replaces the row of the same `keys`; `complete` replaces the table's "
        "rows; `overwrite_partitions` replaces the partitions that the batch holds",
    )
    keys: tuple[ColumnName, ...] = Field(
        (), max_length=MOST_KEYS, description="mode merge: the columns that say which row a new one replaces"
    )
    operation_column: ColumnName | None = Field(
        None,
        description="mode merge: the column of a change feed that says insert, update or delete; rows have it beside "
        "the table's columns, and it is never published; a value that `operations` does not name goes to the stream's "
        "quarantine, and stops the batch where there is none",
    )
    operations: OperationsDeclaration | None = Field(
        None, description="with `operation_column`: what its values mean; unset: Debezium's"
    )
    ordering_column: ColumnName | None = Field(
        None,
        description="mode merge: of several rows of one key in a batch, the one that is highest here counts; "
        "with `operation_column` also against the row in the table. Two different rows that tie stop the batch",
    )
    ordering_columns: tuple[ColumnName, ...] = Field(
        (),
        description="mode merge: several columns in the place of `ordering_column`, compared in turn, for example the "
        "time of the change and the record's offset",
    )
    delivery: Literal["staged", "direct"] = Field("staged", description="the way a batch becomes visible")
    publish_every: Duration | None = Field(
        None, description="staged delivery: several batches become visible together, so often"
    )
    max_held_batches: WholeNumber | None = Field(
        None,
        gt=0,
        description="staged delivery: how many batches may queue behind one that a rule holds, before the stream reads "
        "no more; unset: 10",
    )

    @model_validator(mode="after")
    def _direct_delivery_has_no_step_between(self) -> Self:
        if not self.is_direct:
            return self
        if self.mode == "overwrite_partitions":
            raise wrong("Iceberg's own sink adds rows and replaces none: delivery `direct` has mode append", "delivery")
        for key in ("publish_every", "max_held_batches"):
            if getattr(self, key) is not None:
                raise wrong("belongs to staged delivery: Iceberg's own sink makes each batch visible at once", key)
        return self

    @property
    def ordering(self) -> tuple[str, ...]:
        """The columns that say which of two rows of a key is newer, compared in turn; none when nothing does."""
        return self.ordering_columns if self.ordering_column is None else (self.ordering_column,)

    @property
    def is_direct(self) -> bool:
        """Whether Iceberg's own streaming sink writes the rows, without a staging table and a mark."""
        return self.delivery == "direct"

    @model_validator(mode="after")
    def _keys_belong_to_merge(self) -> Self:
        if self.mode == "merge" and not self.keys:
            raise ValueError("keys are needed for mode merge: they say which row a new one replaces")
        if self.mode != "merge" and (self.keys or self.operation_column or self.ordering):
            raise ValueError("keys, operation_column, ordering_column and ordering_columns belong to mode merge")
        if self.ordering_column is not None and self.ordering_columns:
            raise wrong("stands in the place of ordering_column: write one of the two", "ordering_columns")
        for name, columns in (("keys", self.keys), ("ordering_columns", self.ordering_columns)):
            if len(set(columns)) != len(columns):
                raise ValueError(f"{name} names a column twice")
        if self.operations is not None and self.operation_column is None:
            raise ValueError("operations needs operation_column: it says what the values of that column mean")
        return self
