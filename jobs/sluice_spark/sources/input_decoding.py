"""Decodes the values of records and the lines of files: what fits its declaration becomes columns, everything else is
refused with its place.

Nothing that cannot be decoded becomes a null: a null is what the sender meant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.source_declarations import FilesSource
from sluice.declarations.value_declaration import RECORD_COLUMN
from sluice.declarations.value_declaration import Column as DeclaredColumn
from sluice.record_values.frames import HEAD, HEAD_BYTES, NO_FRAME
from sluice.record_values.resolving import resolve_values
from sluice.record_values.schemas import ValueSchema
from sluice.settings import Settings
from sluice_spark.session.identifiers import quoted
from sluice_spark.session.spark_types import spark_schema
from sluice_spark.sources.value_decoding import decoding_of

_VALUE, _TEXT, _FILE = "_sluice_value", "_sluice_text", "file"
UNFIT = "_sluice_unfit"
"""The column in which Spark's readers put a text that does not fit the declared columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What is decoded, in which words it is told, and where it is.

    place: the fields of a record that tell where it stood. content: the one with its bytes.
    is_framed: whether they begin with the id of a schema. is_json: or another form, which Python decodes; csv is told
    as json is.
    """

    noun: str
    unfit: str
    place: tuple[str, ...]
    content: str = "value"
    is_framed: bool = False
    is_json: bool = True


_VALUES = _Form(noun="value", unfit="is no JSON object of the declared columns", place=("topic", "partition", "offset"))
_LINES = _Form(noun="line", unfit="does not fit the declared columns", place=(_FILE,))
_RECORDS = {
    "kafka": _VALUES,
    "kinesis": replace(_VALUES, place=("stream", "shard", "sequence_number"), content="data"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """An input after its values were decoded.

    rows: what could be; all of it for an input whose values are taken as they come.
    refused: the rest, with the columns of a quarantine: reason, position, payload.
    """

    rows: DataFrame
    refused: DataFrame | None = None


def decode(rows: DataFrame, declared: InputDeclaration, *, folder: Path, settings: Settings) -> Decoded:
    """Decode the values of an input's records when it says how, and its lines when malformed ones are put aside.

    Parameters
    ----------
    rows: as the source brings them.
    folder: where the declaration lies, and its schema files.

    Raises
    ------
    RegistryError: when the schema of a subject cannot be had.
    SettingsError: when the deployment does not have the registry's connection.
    """
    source, files = declared.declared_source, declared.declared_source.files
    if source.value is not None:
        schema = resolve_values(source.value, folder=folder, settings=settings)
        form = replace(_RECORDS[source.kind], is_framed=schema.registry is not None, is_json=schema.format == "json")
        tried = _tried(rows, schema.columns, form) if form.is_json else _tried_in_python(rows, schema, form)
        return _split(tried, schema.columns, form)
    if files is not None and files.on_malformed == "quarantine":
        is_json = files.format == "json"
        lines = _tried(_json_lines(rows), files.columns, _LINES) if is_json else _tried_csv(rows, files)
        split = _split(lines, files.columns, _LINES)
        return replace(split, rows=split.rows.drop(RECORD_COLUMN))
    return Decoded(rows=rows)


def _split(tried: DataFrame, columns: Sequence[DeclaredColumn], form: _Form) -> Decoded:
    """What could be decoded beside what could not."""
    reason = _reason(columns, form)
    names = [fn.col(f"{_VALUE}.{quoted(column.name)}") for column in columns]
    return Decoded(
        rows=tried.where(reason.isNull()).select(*names, RECORD_COLUMN),
        refused=tried.where(reason.isNotNull()).select(
            reason.alias("reason"),
            fn.to_json(fn.struct(*_of_record(form.place))).alias("position"),
            fn.coalesce(_TEXT, fn.concat(fn.lit("0x"), fn.hex(f"{RECORD_COLUMN}.{form.content}"))).alias("payload"),
        ),
    )


def _tried(rows: DataFrame, columns: Sequence[DeclaredColumn], form: _Form) -> DataFrame:
    """Every record with the text of its value and what came out of it."""
    value = fn.col(form.content)
    framed = fn.when(fn.startswith(value, fn.lit(HEAD)), fn.substr(value, fn.lit(HEAD_BYTES + 1)))
    text = fn.try_validate_utf8((framed if form.is_framed else value).cast("string"))
    schema = spark_schema(columns).add(UNFIT, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": UNFIT}
    return rows.select(fn.struct("*").alias(RECORD_COLUMN), text.alias(_TEXT)).withColumn(
        _VALUE, fn.from_json(_TEXT, schema, options)
    )


def _tried_in_python(rows: DataFrame, schema: ValueSchema, form: _Form) -> DataFrame:
    """Every record with what came out of its value, or why nothing did; such values are no text."""
    value = decoding_of(schema, unfit=UNFIT)(fn.col(form.content))
    return rows.select(
        fn.struct("*").alias(RECORD_COLUMN), fn.lit(None).cast("string").alias(_TEXT), value.alias(_VALUE)
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


def _reason(columns: Sequence[DeclaredColumn], form: _Form) -> Column:
    """Why a record is refused; null for one that is not."""
    required = [column.name for column in columns if column.required]
    absent = fn.concat_ws(
        ", ", *(fn.when(fn.col(f"{_VALUE}.{quoted(name)}").isNull(), fn.lit(name)) for name in required)
    )
    content, told = fn.col(f"{RECORD_COLUMN}.{form.content}"), fn.col(f"{_VALUE}.{UNFIT}")
    reason = fn.when(content.isNull(), fn.lit("the record has no value"))
    if not form.is_json:
        reason = reason.when(told.isNotNull(), told)
    else:
        if form.is_framed:
            reason = reason.when(~fn.startswith(content, fn.lit(HEAD)), fn.lit(NO_FRAME))
        reason = reason.when(fn.col(_TEXT).isNull(), fn.lit(f"the {form.noun} is no UTF-8 text"))
        reason = reason.when(fn.col(_VALUE).isNull() | told.isNotNull(), fn.lit(f"the {form.noun} {form.unfit}"))
    return reason.when(absent != "", fn.concat(fn.lit(f"the {form.noun} lacks "), absent))


def _of_record(names: Sequence[str]) -> list[Column]:
    return [fn.col(f"{RECORD_COLUMN}.{name}") for name in names]
