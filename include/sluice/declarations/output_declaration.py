"""Where a batch becomes visible: one model for each kind of output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sluice.declarations.scalar_types import (
    ColumnName,
    Declared,
    Duration,
    FunctionReference,
    Name,
    OneOfKinds,
    RelativePath,
    TableName,
    WholeNumber,
    one_of,
    wrong,
)
from sluice.declarations.source_declarations import TopicName

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


OutputMode = Literal["append", "update", "complete"]
"""Spark's output mode, which says what rows of a result a batch hands over. A query has one."""

_ROWS_OF_A_BATCH = (
    "what a batch hands over: rows that are final, the rows that it changed (`update`), or the whole result of an "
    "aggregation (`complete`)"
)


class DeltaOutput(Declared):
    """Rows of a Delta table, idempotent by transaction."""

    connection: Name = Field(description="a files connection of the deployment")
    path: RelativePath = Field(description="the table's folder below the connection's")
    mode: Literal["append", "overwrite"] = Field("append", description="add rows, or replace the table's")


class KafkaOutput(Declared):
    """Records of a Kafka topic, delivered at least once: a batch that runs again is sent again."""

    connection: Name = Field(description="a Kafka connection of the deployment")
    topic: TopicName | None = Field(None, description="the topic of every record")
    topic_column: ColumnName | None = Field(None, description="the column that names each record's topic")
    key_column: ColumnName | None = Field(None, description="the column that becomes the record's key, as text")
    value_column: ColumnName | None = Field(
        None,
        description="the column that becomes the record's value, as text or bytes; unset: a JSON object of all columns "
        "but those of topic and headers",
    )
    headers_column: ColumnName | None = Field(
        None, description="the column that becomes the record's headers, a `map<string, string>`"
    )
    mode: OutputMode = Field("append", description=_ROWS_OF_A_BATCH)

    @model_validator(mode="after")
    def _one_topic(self) -> Self:
        one_of(self, "topic", "topic_column")
        roles = [name for name in (self.topic_column, self.key_column, self.value_column, self.headers_column) if name]
        if self.value_column is not None and roles.count(self.value_column) > 1:
            raise ValueError(f"value_column {self.value_column} already has another part in the record")
        return self


class FilesOutput(Declared):
    """Files below a folder of a connection: a folder for each batch, complete when it holds `_SUCCESS`."""

    connection: Name = Field(description="a files connection of the deployment")
    path: RelativePath = Field(description="the folder below the connection's")
    format: Literal["parquet", "json", "csv"] = Field("parquet", description="the format of the files")


class ConsoleOutput(Declared):
    """Rows printed to the driver's log, for trying out."""

    rows: WholeNumber = Field(20, gt=0, le=10_000, description="the most rows of a batch")
    mode: OutputMode = Field("append", description=_ROWS_OF_A_BATCH)


class MemoryOutput(Declared):
    """Rows kept in the driver, for tests."""

    mode: OutputMode = Field("append", description=_ROWS_OF_A_BATCH)


class PythonOutput(Declared):
    """A Python function that is handed each batch and its publication key."""

    function: FunctionReference = Field(description="`<file>.py:<function>` beside the declaration")
    mode: OutputMode = Field("append", description=_ROWS_OF_A_BATCH)


class HudiOutput(Declared):
    """Rows of a Hudi table."""

    table: TableName = Field(description="the table")


AnyOutput = (
    IcebergOutput | DeltaOutput | KafkaOutput | FilesOutput | ConsoleOutput | MemoryOutput | PythonOutput | HudiOutput
)

_OUTPUT_MODES: Mapping[str, OutputMode] = {
    "append": "append",
    "overwrite_partitions": "append",
    "merge": "update",
    "update": "update",
    "overwrite": "complete",
    "complete": "complete",
}
"""Spark's word for what a declaration calls the mode of an output."""


class OutputDeclaration(OneOfKinds):
    """One output, under the key that says its kind."""

    iceberg: IcebergOutput | None = Field(None, description="rows of an Iceberg table")
    delta: DeltaOutput | None = Field(None, description="rows of a Delta table")
    kafka: KafkaOutput | None = Field(None, description="records of a Kafka topic")
    files: FilesOutput | None = Field(None, description="files of a folder")
    console: ConsoleOutput | None = Field(None, description="lines in the driver's log")
    memory: MemoryOutput | None = Field(None, description="rows in the driver")
    python: PythonOutput | None = Field(None, description="a Python function")
    hudi: HudiOutput | None = Field(None, description="rows of a Hudi table")

    @property
    def way(self) -> str:
        """The kind and, where one kind has two, the way in which its rows become visible."""
        return "iceberg_direct" if self.iceberg is not None and self.iceberg.is_direct else self.kind

    @property
    def output(self) -> AnyOutput:
        """The output itself, whatever its kind."""
        output: AnyOutput = getattr(self, self.kind)
        return output

    @property
    def mode(self) -> OutputMode:
        """The output mode that Spark's query needs for this output."""
        return _OUTPUT_MODES[self.declared_mode]

    @property
    def declared_mode(self) -> str:
        """The mode in the words of this kind of output; one without a choice appends."""
        mode: str = getattr(self.output, "mode", "append")
        return mode
