"""Where a batch becomes visible: one model for each kind of output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator

from sluice.declarations.iceberg_output import IcebergOutput
from sluice.declarations.scalar_types import (
    ColumnName,
    Declared,
    FunctionReference,
    Name,
    OneOfKinds,
    RelativePath,
    TableName,
    WholeNumber,
    one_of,
)
from sluice.declarations.source_declarations import TopicName

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
