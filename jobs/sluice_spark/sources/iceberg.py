"""Iceberg tables as an input.

Source of the options: https://iceberg.apache.org/docs/latest/spark-structured-streaming/#streaming-reads
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.schema import Schema
from pyspark.errors import UnsupportedOperationException
from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.source_declarations import IcebergSource
from sluice.errors import SchemaError
from sluice.maintenance.pin_plan import is_tag_of
from sluice.sources.source_identities import fields_of, unreadable_fields
from sluice_spark.session.columns import quoted_table
from sluice_spark.session.jvm import first_line, iceberg_table, jvm_of


def read_stream(spark: SparkSession, source: IcebergSource, *, catalog: str) -> DataFrame:
    """Read the rows that are appended to the table. Files that maintenance rewrites are not read again.

    Where a new checkpoint begins is written into it before (`sluice_spark.run.table_beginning`).

    Raises
    ------
    SchemaError: when the table has a column that Spark does not read.
    """
    options = {
        "streaming-skip-overwrite-snapshots": str(source.on_overwrite == "skip").lower(),
        "streaming-skip-delete-snapshots": str(source.on_delete == "skip").lower(),
    }
    if source.max_rows_per_batch is not None:
        options["streaming-max-rows-per-micro-batch"] = str(source.max_rows_per_batch)
    if source.max_files_per_batch is not None:
        options["streaming-max-files-per-micro-batch"] = str(source.max_files_per_batch)
    reader = spark.readStream.options(**options)
    with _named_columns(spark, source, catalog):
        return reader.table(quoted_table(catalog, source.table))


def read_static(spark: SparkSession, source: IcebergSource, *, catalog: str) -> DataFrame:
    """Read the table at the declared snapshot, tag or time; by default as it is when a batch begins.

    Raises
    ------
    SchemaError: when the table has a column that Spark does not read.
    """
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
    with _named_columns(spark, source, catalog):
        return reader.table(quoted_table(catalog, source.table))


@contextmanager
def _named_columns(spark: SparkSession, source: IcebergSource, catalog: str) -> Iterator[None]:
    """Name the columns at which Spark refuses a table: it says their type alone."""
    try:
        yield
    except UnsupportedOperationException as error:
        iceberg = jvm_of(spark).org.apache.iceberg
        table = iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, quoted_table(catalog, source.table))
        fields = fields_of(Schema.model_validate_json(str(iceberg.SchemaParser.toJson(table.schema()))))
        problems = "; ".join(unreadable_fields(fields)) or first_line(error)
        raise SchemaError(
            f"The table {source.table} cannot be read: {problems}.",
            differences=(),
            next_step="Drop the column, or write its values into one of another type: a stream reads the whole table.",
        ) from error


def _tags(spark: SparkSession, source: IcebergSource, catalog: str) -> list[str]:
    """The names of the table's tags and branches."""
    return [str(tag) for tag in iceberg_table(spark, catalog, source.table).refs().keySet()]
