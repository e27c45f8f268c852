"""The interface of all outputs other than Iceberg tables: write the rows of a batch, under the batch's key.

When Spark runs a batch again, it has the same key and the same rows. The guarantee of each sink for that case is in the
docstring of its module; `docs/guides/outputs.md` lists them.
"""

from __future__ import annotations

from typing import Protocol

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.ledger.batches import PublicationKey


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

    def mismatches(self, rows: StructType) -> list[str]:
        """Report why rows of this schema cannot be written; empty when they can."""
        ...

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Write the rows of a batch.

        Parameters
        ----------
        rows: the rows; empty only when the sink replaces. They are computed and cached, so reading them twice is cheap.
        key: the key of the batch, the same when Spark runs the batch again.
        """
        ...
