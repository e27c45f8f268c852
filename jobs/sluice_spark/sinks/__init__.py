"""Writes the rows of a batch to outputs other than Iceberg tables, under the batch's key.

When Spark runs a batch again, it has the same key and the same rows. The guarantee of each sink for that case is in the
docstring of its module; `docs/guides/outputs.md` lists them. The outputs that a function in the driver takes are here:
a user's function, and for experiments and tests the driver's log and its memory.

*Guarantee* of the log: none. A batch that runs again is logged again, under the same key.

*Guarantee* of the memory: each batch once. The rows of a batch that runs again replace its earlier rows.

*Guarantee* of a user's function: at least once. The function receives the batch's key, the same when the batch runs
again. A function that records the key with what it writes can make that exactly once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
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
from sluice.errors import DeclarationError, DeliveryError, SluiceError
from sluice.ledger.batches import PublicationKey
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice_spark.session.columns import JSON_TEXT
from sluice_spark.session.user_code import load_function
from sluice_spark.sinks.delta import DeltaSink
from sluice_spark.sinks.files import FilesSink
from sluice_spark.sinks.kafka import KafkaSink

_log = logging.getLogger(__name__)

_KEPT: defaultdict[tuple[str, str], dict[PublicationKey, list[dict[str, Any]]]] = defaultdict(dict)

Taking = Callable[[DataFrame, PublicationKey], object]
"""Takes the rows of a batch, with the key of the batch."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverSink:
    """Hands each batch to a function, which takes every schema. place: the destination of the rows, for messages."""

    output: str
    place: str
    take: Taking

    @property
    def replaces(self) -> bool:
        """Whether a batch replaces what is there."""
        return False

    def mismatches(self, rows: StructType) -> list[str]:
        """Every schema is taken."""
        return []

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Call the function."""
        self.take(rows, key)


def console_sink(output: str, declared: ConsoleOutput) -> DriverSink:
    """Logs the first rows of each batch as JSON, one line per row, after the batch's key and the output's name."""

    def log(rows: DataFrame, key: PublicationKey) -> None:
        content = fn.to_json(fn.struct("*"), dict(JSON_TEXT)).alias("content")
        for row in rows.limit(declared.rows).select(content).collect():
            _log.info("%s %s %s", key, output, row.content)

    return DriverSink(output=output, place="the driver's log", take=log)


def memory_sink(output: str, stream: str) -> DriverSink:
    """Keeps the rows of every batch in this process."""

    def keep(rows: DataFrame, key: PublicationKey) -> None:
        _KEPT[stream, output][key] = [row.asDict(recursive=True) for row in rows.collect()]

    return DriverSink(output=output, place="the driver's memory", take=keep)


def kept_rows(stream: str, output: str) -> dict[PublicationKey, list[dict[str, Any]]]:
    """The rows that this process keeps of an output, by batch."""
    return dict(_KEPT[stream, output])


def function_sink(output: str, declared: PythonOutput, function: Taking) -> DriverSink:
    """Calls a user's function; whatever it raises becomes a DeliveryError with its name."""
    place = f"the function {declared.function}"

    def call(rows: DataFrame, key: PublicationKey) -> None:
        try:
            function(rows, key)
        except SluiceError:
            raise
        except Exception as error:  # whatever the user's function raises is reported with its name
            raise DeliveryError(f"Batch {key}: {place} raised {type(error).__name__}: {error}.") from error

    return DriverSink(output=output, place=place, take=call)
