"""Decodes the values of records and the lines of files: what fits its declaration becomes columns, everything else is
refused with its place.

Nothing that cannot be decoded becomes a null: a null is what the sender meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType

from sluice.declarations.sources import RECORD_COLUMN, FilesSource, InputDeclaration
from sluice.declarations.sources import Column as DeclaredColumn
from sluice_spark.identifiers import quoted
from sluice_spark.spark_types import spark_schema

_VALUE, _TEXT, _FILE = "_sluice_value", "_sluice_text", "file"
UNFIT = "_sluice_unfit"
"""The column in which Spark's readers put a text that does not fit the declared columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """An input after its values were decoded.

    rows: what could be; all of it for an input whose values are taken as they come.
    refused: the rest, with the columns of a quarantine: reason, position, payload.
    """

    rows: DataFrame
    refused: DataFrame | None = None


def decode(rows: DataFrame, declared: InputDeclaration) -> Decoded:
    """Decode the values of an input's records when it says how, and its lines when malformed ones are put aside.

    Parameters
    ----------
    rows: as the source brings them.
    """
    kafka, files = declared.declared_source.kafka, declared.declared_source.files
    if kafka is not None and kafka.value is not None:
        columns = kafka.value.columns
        return _split(_tried(rows, columns), columns, noun="value", place=("topic", "partition", "offset"))
    if files is not None and files.on_malformed == "quarantine":
        lines = _tried(_json_lines(rows), files.columns) if files.format == "json" else _tried_csv(rows, files)
        split = _split(lines, files.columns, noun="line", place=(_FILE,))
        return replace(split, rows=split.rows.drop(RECORD_COLUMN))
    return Decoded(rows=rows)


def _split(tried: DataFrame, columns: Sequence[DeclaredColumn], *, noun: str, place: Sequence[str]) -> Decoded:
    """What could be decoded beside what could not. place: the fields of a record that tell where it stood."""
    reason = _reason(columns, noun)
    names = [fn.col(f"{_VALUE}.{quoted(column.name)}") for column in columns]
    return Decoded(
        rows=tried.where(reason.isNull()).select(*names, RECORD_COLUMN),
        refused=tried.where(reason.isNotNull()).select(
            reason.alias("reason"),
            fn.to_json(fn.struct(*_of_record(place))).alias("position"),
            fn.coalesce(_TEXT, fn.concat(fn.lit("0x"), fn.hex(f"{RECORD_COLUMN}.value"))).alias("payload"),
        ),
    )


def _tried(rows: DataFrame, columns: Sequence[DeclaredColumn]) -> DataFrame:
    """Every record with the text of its value and what came out of it."""
    text = fn.try_validate_utf8(fn.col("value").cast("string"))
    schema = spark_schema(columns).add(UNFIT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNFIT}
    return rows.select(fn.struct("*").alias(RECORD_COLUMN), text.alias(_TEXT)).withColumn(
        _VALUE, fn.from_json(_TEXT, schema, options)
    )


def _json_lines(rows: DataFrame) -> DataFrame:
    """Lines in the form of records; blank ones are none, as for Spark's reader of JSON."""
    lines = rows.select(fn.col("value").cast("binary").alias("value"), fn.col("_metadata.file_path").alias(_FILE))
    return lines.where(fn.trim(fn.col("value").cast("string")) != "")


def _tried_csv(rows: DataFrame, source: FilesSource) -> DataFrame:
    """Lines that Spark's reader of csv has parsed, each with its text; one that fits is put together again.

    The text reads every column, and the reason for a refusal reads the text: were it otherwise, Spark would parse only
    the columns that are asked for, and a line could be sound for one reader and malformed for the other.
    """
    parsed = fn.struct(*(fn.col(quoted(column.name)) for column in source.columns))
    line = fn.coalesce(fn.col(UNFIT), fn.to_csv(parsed)).cast("binary")
    whole = fn.struct(*(fn.col(quoted(column.name)) for column in source.columns), UNFIT)
    record = fn.struct(line.alias("value"), fn.col("_metadata.file_path").alias(_FILE))
    return rows.select(
        record.alias(RECORD_COLUMN), fn.try_validate_utf8(line.cast("string")).alias(_TEXT), whole.alias(_VALUE)
    )


def _reason(columns: Sequence[DeclaredColumn], noun: str) -> Column:
    """Why a record is refused; null for one that is not. noun: what is decoded, a value or a line."""
    required = [column.name for column in columns if column.required]
    absent = fn.concat_ws(
        ", ", *(fn.when(fn.col(f"{_VALUE}.{quoted(name)}").isNull(), fn.lit(name)) for name in required)
    )
    is_unfit = fn.col(_VALUE).isNull() | fn.col(f"{_VALUE}.{UNFIT}").isNotNull()
    unfit = "is no JSON object of the declared columns" if noun == "value" else "does not fit the declared columns"
    return (
        fn.when(fn.col(f"{RECORD_COLUMN}.value").isNull(), fn.lit("the record has no value"))
        .when(fn.col(_TEXT).isNull(), fn.lit(f"the {noun} is no UTF-8 text"))
        .when(is_unfit, fn.lit(f"the {noun} {unfit}"))
        .when(absent != "", fn.concat(fn.lit(f"the {noun} lacks "), absent))
    )


def _of_record(names: Sequence[str]) -> list[Column]:
    return [fn.col(f"{RECORD_COLUMN}.{name}") for name in names]
