"""Writes the rows of a batch to outputs other than Iceberg tables: one module per kind of output."""

from __future__ import annotations

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
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice_spark.session.user_code import load_function
from sluice_spark.sinks.console import ConsoleSink
from sluice_spark.sinks.delta import DeltaSink
from sluice_spark.sinks.files import FilesSink
from sluice_spark.sinks.kafka import KafkaSink
from sluice_spark.sinks.memory import MemorySink
from sluice_spark.sinks.port import Sink
from sluice_spark.sinks.python import PythonSink


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
            return ConsoleSink(output=output, declared=console)
        case MemoryOutput():
            return MemorySink(output=output, stream=stream.name)
        case PythonOutput() as python:
            path = ("outputs", output, "python", "function")
            function = load_function(stream, python.function, path=path, role=f"output_{output}")
            return PythonSink(output=output, declared=python, function=function)
    raise DeclarationError(
        f"`outputs.{output}`: an output of kind {declared.kind} cannot be written.",
        location=stream.location(("outputs", output, declared.kind)),
    )
