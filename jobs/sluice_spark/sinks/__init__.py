"""Writes the rows of a batch to outputs other than Iceberg tables, under the batch's key.

When Spark runs a batch again, it has the same key and the same rows. The guarantee of each sink for that case is in the
docstring of its module; `docs/guides/outputs.md` lists them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.output_declaration import (
    ConsoleOutput,
    DeltaOutput,
    FilesOutput,
    KafkaOutput,
    MemoryOutput,
    PythonOutput,
)
from sluice.errors import DeclarationError
from sluice.ledger.batches import PublicationKey
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice_spark.session.user_code import load_function
from sluice_spark.sinks.delta import DeltaSink
from sluice_spark.sinks.files import FilesSink
from sluice_spark.sinks.in_driver import console_sink, function_sink, memory_sink
from sluice_spark.sinks.kafka import KafkaSink


class Sink(Protocol):
    """Writes the rows of one output."""

    @property
    def output(self) -> str:
        """The output's name."""
        ...

    @property
    def place(self) -> str:
        """The destination of the rows, for messages: without secrets."""
        ...

    @property
    def replaces(self) -> bool:
        """Whether a batch replaces what is there: then a batch without rows is written too."""
        ...

    def mismatches(self, rows: StructType) -> Iterable[str]:
        """Report why rows of this schema cannot be written; nothing when they can."""
        ...

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Write the rows of a batch.

        Parameters
        ----------
        rows: the rows; empty only when the sink replaces. They are computed and cached, so reading them twice is cheap.
        key: the key of the batch, the same when Spark runs the batch again.
        """
        ...


def open_sink(stream: LoadedStream, output: str, settings: Settings) -> Sink:
    """Create the sink of an output that is not an Iceberg table.

    Raises
    ------
    DeclarationError: when this kind of output cannot be written, or a function cannot be loaded.
    SettingsError: when the deployment does not have the connection that the output names.
    """
    declared = stream.declaration.outputs[output]
    match declared.output:
        case KafkaOutput() as kafka:
            kafka_connection = settings.connection(kafka.connection, KafkaConnection)
            return KafkaSink(output=output, declared=kafka, connection=kafka_connection)
        case FilesOutput() as files:
            connection = settings.connection(files.connection, FilesConnection)
            return FilesSink(output=output, declared=files, connection=connection)
        case DeltaOutput() as delta:
            return DeltaSink(
                output=output, declared=delta, connection=settings.connection(delta.connection, FilesConnection)
            )
        case ConsoleOutput() as console:
            return console_sink(output, console)
        case MemoryOutput():
            return memory_sink(output, stream.name)
        case PythonOutput() as python:
            path = ("outputs", output, "python", "function")
            function = load_function(stream, python.function, path=path, role=f"output_{output}")
            return function_sink(output, python, function)
    raise DeclarationError(
        f"`outputs.{output}`: an output of kind {declared.kind} cannot be written.",
        location=stream.location(("outputs", output, declared.kind)),
    )
