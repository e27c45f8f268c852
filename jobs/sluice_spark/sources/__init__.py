"""Reads a declared input as a DataFrame: one module per kind of source; those that take a few lines are here.

Source of the options of jdbc: https://spark.apache.org/docs/4.1.0/sql-data-sources-jdbc.html
"""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.scalar_types import duration_text
from sluice.declarations.source_declarations import (
    DeltaSource,
    FilesSource,
    IcebergSource,
    JdbcSource,
    KafkaSource,
    KinesisSource,
    RateSource,
    SocketSource,
)
from sluice.errors import SchemaError, UsageError
from sluice.settings import FilesConnection, JdbcConnection, KafkaConnection, KinesisConnection, Settings
from sluice.sources.source_types import checked_columns, unreadable_columns
from sluice_spark.sources import delta, files, iceberg, kafka, kinesis
from sluice_spark.sources.input_decoding import decode


def open_input(
    spark: SparkSession,
    declared: InputDeclaration,
    settings: Settings,
    *,
    folder: Path | None = None,
) -> DataFrame:
    """Open an input as a streaming DataFrame with its watermark, or as a static one. Values are decoded as declared.

    Parameters
    ----------
    declared: the input.
    settings: the connections and the catalog of the deployment.
    folder: the folder of the declaration file, which schema files are relative to.

    Raises
    ------
    SettingsError: when the deployment does not have the connection that the input names.
    UsageError: when this kind of source cannot be read in this way.
    """
    decoded = decode(
        read_input(spark, declared, settings), declared, folder=folder or settings.pipelines, settings=settings
    )
    return with_watermark(decoded.rows, declared)


def read_input(
    spark: SparkSession, declared: InputDeclaration, settings: Settings, *, checkpoint: str | None = None
) -> DataFrame:
    """Open an input without decoding and without a watermark; see `open_input`.

    Parameters
    ----------
    checkpoint: the stream's checkpoint, for a source that reads its position there.
    """
    if declared.is_stream:
        return _read_stream(spark, declared, settings, checkpoint)
    return _read_static(spark, declared, settings)


def with_watermark(rows: DataFrame, declared: InputDeclaration) -> DataFrame:
    """The rows with the declared watermark, if any."""
    if declared.watermark is None:
        return rows
    return rows.withWatermark(declared.watermark.column, duration_text(declared.watermark.delay))


def _read_stream(
    spark: SparkSession, declared: InputDeclaration, settings: Settings, checkpoint: str | None
) -> DataFrame:
    match declared.declared_source.source:
        case KafkaSource() as source:
            return kafka.read_stream(spark, source, settings.connection(source.connection, KafkaConnection))
        case KinesisSource() as source:
            reading = kinesis.KinesisReading(
                source=source,
                connection=settings.connection(source.connection, KinesisConnection),
                checkpoint=checkpoint,
                object_store=settings.object_store,
            )
            return kinesis.read_stream(spark, reading)
        case FilesSource() as source:
            return files.read_stream(spark, source, settings.connection(source.connection, FilesConnection))
        case IcebergSource() as source:
            return iceberg.read_stream(spark, source, catalog=settings.catalog.name)
        case DeltaSource() as source:
            return delta.read_stream(spark, source, settings.connection(source.connection, FilesConnection))
        case SocketSource() as source:
            return _read_socket(spark, source)
        case RateSource() as source:
            return _read_rate(spark, source)
    raise _unreadable(declared, way="stream")


def _read_static(spark: SparkSession, declared: InputDeclaration, settings: Settings) -> DataFrame:
    match declared.declared_source.source:
        case IcebergSource() as source:
            return iceberg.read_static(spark, source, catalog=settings.catalog.name)
        case FilesSource() as source:
            return files.read_static(spark, source, settings)
        case DeltaSource() as source:
            return delta.read_static(spark, source, settings.connection(source.connection, FilesConnection))
        case JdbcSource() as source:
            return _read_database(spark, source, settings.connection(source.connection, JdbcConnection))
    raise _unreadable(declared, way="static")


def _read_rate(spark: SparkSession, source: RateSource) -> DataFrame:
    """Generated rows of `timestamp` and `value` at a constant rate, for experiments."""
    return spark.readStream.format("rate").option("rowsPerSecond", source.rows_per_second).load()


def _read_socket(spark: SparkSession, source: SocketSource) -> DataFrame:
    """Rows of `value`, one per line, and `timestamp`, the time of arrival, for experiments: lines that were sent before
    a restart are lost."""
    options = {"host": source.host, "port": str(source.port), "includeTimestamp": "true"}
    return spark.readStream.format("socket").options(**options).load()


def _read_database(spark: SparkSession, source: JdbcSource, connection: JdbcConnection) -> DataFrame:
    """The table as it is when a batch begins, with one query each time. A time without a zone stays one: Spark alone
    would take it for an instant in the zone of its JVM."""
    options = {"url": connection.url, "driver": "org.postgresql.Driver", "preferTimestampNTZ": "true"}
    if connection.user is not None:
        options["user"] = connection.user
    if connection.password is not None:
        options["password"] = connection.password.get_secret_value()
    asked = spark.read.format("jdbc").options(**options, query=_COLUMN_TYPES.format(table=source.table)).load()
    kinds = {row.name: row.kind for row in asked.collect()}
    if problems := "; ".join(unreadable_columns(kinds)):
        raise SchemaError(
            f"The table {source.table} cannot be read: {problems}.",
            differences=(),
            next_step="Read a view instead, in which the column is cast, for example to `numeric(38, 9)` or `text`.",
        )
    terms = ", ".join(checked_columns(kinds)) or "*"
    query = f"(SELECT {terms} FROM {source.table}) AS checked"  # noqa: S608  # a name of letters, digits and dots
    return spark.read.format("jdbc").options(**options, dbtable=query).load()


_COLUMN_TYPES = """
SELECT a.attname::text AS name, format_type(
    CASE WHEN t.typtype = 'd' THEN t.typbasetype ELSE a.atttypid END,
    CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END) AS kind
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = to_regclass('{table}') AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
"""The types of the columns of a table; of a domain that of its base."""


def _unreadable(declared: InputDeclaration, *, way: str) -> UsageError:
    return UsageError(f"A source of kind {declared.declared_source.kind} cannot be read as a {way} input.")
