"""Keeps what a batch brings to its sinks while its tables are written, so that both come from one computation.

A driver may die when the tables of a batch hold it, or are certain to, and its sinks do not. The batch runs again, and
a static input may have changed since: computed again, a row would be in the table and not in the sink, or differ. So
the rows of the sinks are written into the checkpoint before the first table is staged, and a batch that runs again
reads them once its tables no longer change.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.source_declarations import IcebergSource
from sluice_spark.query.copy_folder import CopyFolder
from sluice_spark.query.static_copies import is_copied
from sluice_spark.query.united_outputs import only

_log = logging.getLogger(__name__)

SINK_ROWS = "sink_rows"
"""The folder of a checkpoint with the rows of one batch. Spark does not know it."""


def may_change(declared: InputDeclaration) -> bool:
    """Whether a batch that runs again may see another state of a static input."""
    source = declared.declared_source.source
    is_fixed = isinstance(source, IcebergSource) and (source.snapshot_id, source.as_of) != (None, None)
    return not declared.is_stream and not is_copied(declared) and not is_fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSinkRows:
    """The rows of a stream's sinks. checkpoint: its folder. sinks: the outputs that are no tables."""

    spark: SparkSession
    checkpoint: str
    sinks: Collection[str]

    def keep(self, rows: DataFrame, number: int) -> None:
        """Write the rows of a batch; those of earlier batches and computations are removed."""
        folder = self._folder(rows)
        folder.keep_only(folder.write(only(rows, self.sinks), number, now=datetime.now(UTC)))

    def find(self, rows: DataFrame, number: int) -> DataFrame | None:
        """The rows of a batch as they were kept; none when they were not, and the batch is to be computed again.

        Parameters
        ----------
        rows: the batch as it is computed now, whose columns they have.
        """
        folder = self._folder(rows)
        kept = [copy for copy in folder.complete() if copy.batch == number]
        if not kept:
            _log.warning(
                "batch %d is in its tables, and what it brings to %s was not kept: it is computed again, and differs "
                "where a static input has changed since",
                number,
                ", ".join(sorted(self.sinks)),
            )
            return None
        newest = max(kept, key=lambda copy: copy.made_at)
        return self.spark.read.schema(rows.schema).parquet(newest.path)

    def _folder(self, rows: DataFrame) -> CopyFolder:
        content = hashlib.sha256(rows.schema.json().encode()).hexdigest()[:16]
        return CopyFolder(spark=self.spark, location=f"{self.checkpoint.rstrip('/')}/{SINK_ROWS}", content=content)
