"""The driver's log as an output, for trying out.

*Promise*: none; a batch that runs again is printed again, under the same key.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from sluice.declarations.output_declaration import ConsoleOutput
from sluice.ledger.records.stream_batch import PublicationKey

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSink:
    """The first rows of each batch, a line for each."""

    output: str
    declared: ConsoleOutput

    @property
    def place(self) -> str:
        """Where the rows go, for a person."""
        return "the driver's log"

    def misfits(self, rows: StructType) -> list[str]:
        """Every row has a line."""
        return []

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Print the first rows as JSON, each after the batch's key and the output's name."""
        content = fn.to_json(fn.struct("*"), {"ignoreNullFields": "false"}).alias("content")
        for row in rows.limit(self.declared.rows).select(content).collect():
            _log.info("%s %s %s", key, self.output, row.content)
