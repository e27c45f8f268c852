"""What every output that is no Iceberg table does: take the rows of a batch, under the batch's key.

A batch that Spark runs again comes with the same key and the same rows. What that does to readers is each sink's
promise, and its module says it; `docs/guides/outputs.md` lists them.
"""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.ledger.records.stream_batch import PublicationKey


class Sink(Protocol):
    """Where the rows of one output go."""

    @property
    def output(self) -> str:
        """The output's name."""
        ...

    @property
    def place(self) -> str:
        """Where the rows go, for a person: without secrets."""
        ...

    def misfits(self, rows: StructType) -> list[str]:
        """What keeps rows of this schema from being written; nothing when they fit."""
        ...

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Write the rows of a batch.

        Parameters
        ----------
        rows: computed already and kept, so that reading them twice costs little; never empty.
        key: the batch's, the same when Spark runs the batch again.
        """
        ...
