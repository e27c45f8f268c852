"""Delta tables as an input.

Source of the options: https://docs.delta.io/delta-streaming/#delta-table-as-a-source
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.source_declarations import DeltaSource
from sluice.settings import FilesConnection
from sluice_spark.sources.files import location_below


def read_stream(spark: SparkSession, source: DeltaSource, connection: FilesConnection) -> DataFrame:
    """Read the rows of the table, then appended rows. A commit that changed or deleted rows stops the stream."""
    options: dict[str, str] = {}
    if source.from_timestamp is not None:
        options["startingTimestamp"] = f"{source.from_timestamp:%Y-%m-%dT%H:%M:%S.%f%z}"
    if source.max_files_per_batch is not None:
        options["maxFilesPerTrigger"] = str(source.max_files_per_batch)
    return spark.readStream.format("delta").options(**options).load(location_below(connection, source.path))


def read_static(spark: SparkSession, source: DeltaSource, connection: FilesConnection) -> DataFrame:
    """Read the table at the declared version or time; by default as it is when a batch begins."""
    options: dict[str, str] = {}
    if source.version is not None:
        options["versionAsOf"] = str(source.version)
    elif source.as_of is not None:
        options["timestampAsOf"] = f"{source.as_of:%Y-%m-%d %H:%M:%S.%f%z}"
    return spark.read.format("delta").options(**options).load(location_below(connection, source.path))
