"""Reads a few rows of a declared input as a batch, the same columns as the stream: for `sluice preview`."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.source_declarations import DeltaSource, FilesSource, IcebergSource, KafkaSource, RateSource
from sluice.errors import UsageError
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice_spark.sources import delta, files, iceberg, kafka, open_input
from sluice_spark.sources.input_decoding import DecodedInput, decode


def sample_input(
    spark: SparkSession,
    declared: InputDeclaration,
    settings: Settings,
    *,
    rows: int,
    folder: Path,
    quarantines: bool = False,
) -> DecodedInput:
    """A sample of the rows of an input, from where a new checkpoint would start; a static input is read whole. Of
    records whose values are decoded, the sample includes those that cannot be decoded. Of all other inputs the
    rejected records are those among the first rows or lines.

    Parameters
    ----------
    folder: where the declaration lies, and its schema files.
    quarantines: whether the stream has a quarantine.

    Raises
    ------
    SettingsError: when the deployment does not have the connection that the input names.
    UsageError: when this kind of source can only be read as a stream.
    """
    if not declared.is_stream:
        return DecodedInput(rows=open_input(spark, declared, settings, folder=folder))
    arriving = _rows(spark, declared, settings, rows)
    if declared.declared_source.value is not None:
        return decode(arriving.limit(rows), declared, folder=folder, settings=settings)
    decoded, first = (
        decode(some, declared, folder=folder, settings=settings, quarantines=quarantines)
        for some in (arriving, _first(arriving, declared, rows))
    )
    return DecodedInput(rows=decoded.rows.limit(rows), rejected=first.rejected)


def _first(arriving: DataFrame, declared: InputDeclaration, rows: int) -> DataFrame:
    """The first rows; of files of lines with the path of each and one line more, which may be a header. A file is read
    by one task, and the lines of a task stay in their order."""
    source = declared.declared_source.files
    if source is None or source.format not in ("json", "csv"):
        return arriving.limit(rows)
    return arriving.select("*", "_metadata").limit(rows + 1)


def _rows(spark: SparkSession, declared: InputDeclaration, settings: Settings, rows: int) -> DataFrame:
    match declared.declared_source.source:
        case KafkaSource() as source:
            return kafka.read_now(spark, source, settings.connection(source.connection, KafkaConnection))
        case FilesSource() as source:
            return files.read_static(spark, source, settings.connection(source.connection, FilesConnection))
        case IcebergSource() as source:
            return iceberg.read_static(spark, source, catalog=settings.catalog.name)
        case DeltaSource() as source:
            return delta.read_static(spark, source, settings.connection(source.connection, FilesConnection))
        case RateSource():
            return spark.range(rows).select(fn.current_timestamp().alias("timestamp"), fn.col("id").alias("value"))
    kind = declared.declared_source.kind
    raise UsageError(
        f"An input of kind {kind} cannot be previewed: it can be read in no other way than as a stream.",
        next_step="Start the stream with the output `console`.",
    )
