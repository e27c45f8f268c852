"""Delta tables as an output.

*Promise*: each batch once. A commit carries the transaction `(stream, generation, output) → batch`, and Delta leaves
out a batch whose number it holds already. A new generation is a new name, so that its batches count from the beginning.
Delta makes a commit atomic by what the store offers; on S3 that is true of one driver at a time.

Source: https://docs.delta.io/delta-streaming/#idempotent-table-writes-in-foreachbatch
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from sluice.declarations.output_declaration import DeltaOutput
from sluice.ledger.records.stream_batch import PublicationKey
from sluice.settings import FilesConnection


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSink:
    """A Delta table by its folder; the first batch makes the table."""

    output: str
    declared: DeltaOutput
    connection: FilesConnection

    @property
    def place(self) -> str:
        """Where the rows go, for a person."""
        return f"the Delta table {self.declared.path} of {self.declared.connection}"

    def misfits(self, rows: StructType) -> list[str]:
        """Delta itself compares the rows with its table."""
        twice = sorted({name for name in rows.names if rows.names.count(name) > 1})
        return [f"column {', '.join(twice)} comes twice"] if twice else []

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Write the batch as one commit, unless the table holds it."""
        transaction = {"txnAppId": f"sluice/{key.stream}/{key.generation}/{self.output}", "txnVersion": str(key.batch)}
        rows.write.format("delta").mode(self.declared.mode).options(**transaction).save(self._folder())

    def _folder(self) -> str:
        return "/".join((self.connection.root.rstrip("/"), self.declared.path.strip("/")))
