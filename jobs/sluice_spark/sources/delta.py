"""Delta tables as an input.

Source of the options: https://docs.delta.io/delta-streaming/#delta-table-as-a-source
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.declarations.source_declarations import DeltaSource
from sluice.errors import LakehouseError
from sluice.settings import FilesConnection
from sluice_spark.session.columns import quoted
from sluice_spark.sources.files import location_below


def read_stream(spark: SparkSession, source: DeltaSource, connection: FilesConnection) -> DataFrame:
    """Read the rows of the table, then appended rows. A commit that changed or deleted rows stops the stream."""
    options: dict[str, str] = {}
    if source.from_timestamp is not None:
        options["startingTimestamp"] = f"{source.from_timestamp:%Y-%m-%dT%H:%M:%S.%f%z}"
    if source.max_files_per_batch is not None:
        options["maxFilesPerTrigger"] = str(source.max_files_per_batch)
    return spark.readStream.format("delta").options(**options).load(location_below(connection, source.path))


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaCommit:
    """A commit in the log of a Delta table."""

    version: int
    committed_at: datetime


def oldest_commit(spark: SparkSession, source: DeltaSource, connection: FilesConnection) -> DeltaCommit:
    """The oldest commit that the log of a table still has. Delta removes older ones after a while."""
    location = location_below(connection, source.path)
    history = spark.sql(f"DESCRIBE HISTORY delta.{quoted(location)}")
    seconds = fn.unix_micros("timestamp") / 1_000_000
    oldest = history.select("version", seconds.alias("seconds")).orderBy("version").head()
    if oldest is None:  # Delta has no table without a commit
        raise LakehouseError(f"The Delta table {source.path} has no commit.")
    return DeltaCommit(version=int(oldest.version), committed_at=datetime.fromtimestamp(oldest.seconds, UTC))


def read_static(spark: SparkSession, source: DeltaSource, connection: FilesConnection) -> DataFrame:
    """Read the table at the declared version or time; by default as it is when a batch begins."""
    options: dict[str, str] = {}
    if source.version is not None:
        options["versionAsOf"] = str(source.version)
    elif source.as_of is not None:
        options["timestampAsOf"] = f"{source.as_of:%Y-%m-%d %H:%M:%S.%f%z}"
    return spark.read.format("delta").options(**options).load(location_below(connection, source.path))
