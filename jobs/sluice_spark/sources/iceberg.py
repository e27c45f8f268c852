"""Iceberg tables as an input.

Source of the options: https://iceberg.apache.org/docs/latest/spark-structured-streaming/#streaming-reads
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.source_declarations import IcebergSource
from sluice.maintenance.pin_plan import is_tag_of
from sluice_spark.session.columns import quoted_table
from sluice_spark.session.jvm import jvm_of


def read_stream(spark: SparkSession, source: IcebergSource, *, catalog: str) -> DataFrame:
    """Read the rows that are appended to the table. Files that maintenance rewrites are not read again.

    Where a new checkpoint begins is written into it before (`sluice_spark.run.table_beginning`).
    """
    options = {
        "streaming-skip-overwrite-snapshots": str(source.on_overwrite == "skip").lower(),
        "streaming-skip-delete-snapshots": str(source.on_delete == "skip").lower(),
    }
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
        kept = next((tag for tag in _tags(spark, source, catalog) if is_tag_of(tag, source.as_of)), None)
        if kept is not None:  # the history of the table may no longer go back as far
            reader = reader.option("versionAsOf", kept)
        else:
            reader = reader.option("timestampAsOf", f"{source.as_of:%Y-%m-%d %H:%M:%S.%f%z}")
    return reader.table(quoted_table(catalog, source.table))


def _tags(spark: SparkSession, source: IcebergSource, catalog: str) -> list[str]:
    """The names of the table's tags and branches."""
    jvm = jvm_of(spark)
    namespace, _, name = source.table.rpartition(".")
    namespaces = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.lang.String"), 1)
    namespaces[0] = namespace
    path = jvm.org.apache.spark.sql.connector.catalog.Identifier.of(namespaces, name)
    loaded = spark._jsparkSession.sessionState().catalogManager().catalog(catalog).loadTable(path)
    return [str(tag) for tag in loaded.table().refs().keySet()]
