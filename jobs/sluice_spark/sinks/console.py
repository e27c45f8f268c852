"""The driver's log as an output, for experiments.

*Guarantee*: none. A batch that runs again is logged again, under the same key.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from sluice.declarations.output_declaration import ConsoleOutput
from sluice.ledger.batches import PublicationKey
from sluice_spark.sinks.text_formats import JSON_TEXT

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSink:
    """Logs the first rows of each batch, one line per row."""

    output: str
    declared: ConsoleOutput

    @property
    def place(self) -> str:
        """The destination of the rows, for messages."""
        return "the driver's log"

    @property
    def replaces(self) -> bool:
        """Whether a batch replaces what is there."""
        return False

    def mismatches(self, rows: StructType) -> list[str]:
        """Every schema can be logged."""
        return []

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Log the first rows as JSON, each after the batch's key and the output's name."""
        content = fn.to_json(fn.struct("*"), dict(JSON_TEXT)).alias("content")
        for row in rows.limit(self.declared.rows).select(content).collect():
            _log.info("%s %s %s", key, self.output, row.content)
