"""Iceberg tables as an input.

Source of the options: https://iceberg.apache.org/docs/latest/spark-structured-streaming/#streaming-reads
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.source_declarations import IcebergSource
from sluice_spark.session.identifiers import quoted_table


def read_stream(spark: SparkSession, source: IcebergSource, *, catalog: str) -> DataFrame:
    """Read the rows that are appended to the table. Files that maintenance rewrites are not read again."""
    options = {
        "streaming-skip-overwrite-snapshots": str(source.on_overwrite == "skip").lower(),
        "streaming-skip-delete-snapshots": str(source.on_delete == "skip").lower(),
    }
    if source.from_timestamp is not None:
        options["stream-from-timestamp"] = str(round(source.from_timestamp.timestamp() * 1000))
    if source.max_rows_per_batch is not None:
        options["streaming-max-rows-per-micro-batch"] = str(source.max_rows_per_batch)
    if source.max_files_per_batch is not None:
        options["streaming-max-files-per-micro-batch"] = str(source.max_files_per_batch)
    return spark.readStream.options(**options).table(quoted_table(catalog, source.table))


def read_static(spark: SparkSession, source: IcebergSource, *, catalog: str) -> DataFrame:
    """Read the table at the declared snapshot, tag or time; by default as it is when a batch begins."""
    reader = spark.read
    if source.snapshot_id is not None:
        reader = reader.option("versionAsOf", str(source.snapshot_id))
    elif source.tag is not None:
        reader = reader.option("versionAsOf", source.tag)
    elif source.as_of is not None:
        reader = reader.option("timestampAsOf", f"{source.as_of:%Y-%m-%d %H:%M:%S.%f%z}")
    return reader.table(quoted_table(catalog, source.table))
