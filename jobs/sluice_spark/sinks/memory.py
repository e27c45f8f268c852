"""The driver's memory as an output, for tests.

*Guarantee*: each batch once. The rows of a batch that runs again replace its earlier rows.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.ledger.batches import PublicationKey

_KEPT: defaultdict[tuple[str, str], dict[PublicationKey, list[dict[str, Any]]]] = defaultdict(dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySink:
    """Keeps the rows of every batch in this process."""

    output: str
    stream: str

    @property
    def place(self) -> str:
        """The destination of the rows, for messages."""
        return "the driver's memory"

    @property
    def replaces(self) -> bool:
        """Whether a batch replaces what is there."""
        return False

    def mismatches(self, rows: StructType) -> list[str]:
        """Every schema can be kept."""
        return []

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Keep the rows of the batch."""
        _KEPT[self.stream, self.output][key] = [row.asDict(recursive=True) for row in rows.collect()]


def kept_rows(stream: str, output: str) -> dict[PublicationKey, list[dict[str, Any]]]:
    """The rows that this process keeps of an output, by batch."""
    return dict(_KEPT[stream, output])
