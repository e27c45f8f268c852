"""Delta tables as an output.

*Guarantee*: each batch once. A commit carries the transaction `(stream, generation, output) → batch`, and Delta skips a
batch whose number it has already committed. A new generation is a new application id, so its batches are numbered from
zero again. Delta commits atomically with the means of the store; on S3 that holds for one driver at a time.

Source: https://docs.delta.io/delta-streaming/#idempotent-table-writes-in-foreachbatch
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from sluice.declarations.output_declaration import DeltaOutput
from sluice.ledger.batches import PublicationKey
from sluice.settings import FilesConnection
from sluice.stored_keys import DELTA_APPLICATION_PREFIX
from sluice_spark.session.jvm import jvm_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaSink:
    """Writes to the Delta table in a folder. The first batch creates the table."""

    output: str
    declared: DeltaOutput
    connection: FilesConnection

    @property
    def place(self) -> str:
        """The destination of the rows, for messages."""
        return f"the Delta table {self.declared.path} of {self.declared.connection}"

    @property
    def replaces(self) -> bool:
        """Whether a batch replaces what is there: then one without rows empties the table."""
        return self.declared.mode == "overwrite"

    def mismatches(self, rows: StructType) -> list[str]:
        """Report duplicate columns; Delta itself compares the schema with its table."""
        twice = sorted({name for name in rows.names if rows.names.count(name) > 1})
        return [f"column {', '.join(twice)} occurs twice"] if twice else []

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Write the batch as one commit, unless the table already contains it."""
        transaction = {"txnAppId": self._application(key), "txnVersion": str(key.batch)}
        rows.write.format("delta").mode(self.declared.mode).options(**transaction).save(self._folder())

    def newest_behind(self, spark: SparkSession, key: PublicationKey) -> int | None:
        """The newest batch in the log of the table; none when that is not behind the one of the key."""
        jvm = jvm_of(spark)
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # a log that was opened before may be an old one
        log = jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, self._folder())
        newest = log.unsafeVolatileSnapshot().transactions().get(self._application(key))
        return int(newest.get()) if newest.isDefined() and newest.get() > key.batch else None

    def _application(self, key: PublicationKey) -> str:
        return f"{DELTA_APPLICATION_PREFIX}{key.stream}/{key.generation}/{self.output}"

    def _folder(self) -> str:
        return "/".join((self.connection.root.rstrip("/"), self.declared.path.strip("/")))
