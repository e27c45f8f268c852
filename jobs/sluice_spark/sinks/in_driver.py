"""Outputs that a function in the driver takes: a user's function, and for experiments and tests its log and its memory.

*Guarantee* of the log: none. A batch that runs again is logged again, under the same key.

*Guarantee* of the memory: each batch once. The rows of a batch that runs again replace its earlier rows.

*Guarantee* of a user's function: at least once. The function receives the batch's key, the same when the batch runs
again. A function that records the key with what it writes can make that exactly once.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from sluice.declarations.output_declaration import ConsoleOutput, PythonOutput
from sluice.errors import DeliveryError, SluiceError
from sluice.ledger.batches import PublicationKey
from sluice_spark.session.columns import JSON_TEXT

_log = logging.getLogger(__name__)

_KEPT: defaultdict[tuple[str, str], dict[PublicationKey, list[dict[str, Any]]]] = defaultdict(dict)

Taking = Callable[[DataFrame, PublicationKey], object]
"""Takes the rows of a batch, with the key of the batch."""


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
