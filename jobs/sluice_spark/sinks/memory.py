"""Rows kept in the driver as an output, for tests.

*Promise*: each batch once: what a batch brought replaces what the same batch brought before.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.ledger.records.stream_batch import PublicationKey

_KEPT: defaultdict[tuple[str, str], dict[PublicationKey, list[dict[str, Any]]]] = defaultdict(dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySink:
    """The rows of every batch of this driver."""

    output: str
    stream: str

    @property
    def place(self) -> str:
        """Where the rows go, for a person."""
        return "the driver's memory"

    def misfits(self, rows: StructType) -> list[str]:
        """Every row can be kept."""
        return []

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Keep the rows of the batch."""
        _KEPT[self.stream, self.output][key] = [row.asDict(recursive=True) for row in rows.collect()]


def kept_rows(stream: str, output: str) -> dict[PublicationKey, list[dict[str, Any]]]:
    """What this process keeps of an output, by batch."""
    return dict(_KEPT[stream, output])
