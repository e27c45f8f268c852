"""Decodes the values of records and the lines of files: valid ones become columns, all others are rejected with their
position and a reason.

A value that cannot be decoded never becomes null, because null is a value that a sender may have meant.
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
from sluice.record_values.resolving import resolve_values
from sluice.record_values.schemas import ValueSchema
from sluice.record_values.wire_format import MAGIC_BYTE, NO_PREFIX, PREFIX_BYTES
from sluice.settings import Settings
from sluice_spark.session.identifiers import quoted
from sluice_spark.session.spark_types import spark_schema
from sluice_spark.sources.value_decoding import decoding_of

_VALUE, _TEXT, _FILE = "_sluice_value", "_sluice_text", "file"
REJECTION = "_sluice_unfit"
"""The column of what was rejected: for Spark's readers the malformed text, for the decoder in Python the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What is decoded, and how its rejections are worded.

    noun: what a reason calls it. mismatch: the reason when it does not match the declared columns.
    position: the fields of a record that identify it in its source.
    content: the field with its bytes.
    has_schema_id: whether the bytes begin with the id of a schema.
    is_text: whether Spark decodes it (json, csv); the decoder in Python otherwise.
    """

    noun: str
    mismatch: str
    position: tuple[str, ...]
    content: str = "value"
    has_schema_id: bool = False
    is_text: bool = True


_VALUES = _Form(
    noun="value",
    mismatch="is not a JSON object of the declared columns",
    position=("topic", "partition", "offset"),
)
_LINES = _Form(noun="line", mismatch="does not fit the declared columns", position=(_FILE,))
_RECORDS = {
    "kafka": _VALUES,
    "kinesis": replace(_VALUES, position=("stream", "shard", "sequence_number"), content="data"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedInput:
    """The rows of an input after decoding.

    rows: the decoded rows; all rows of an input without decoding.
    refused: the rejected rows with the columns of a quarantine: reason, position, payload. None without decoding.
    """

    rows: DataFrame
    refused: DataFrame | None = None


def decode(rows: DataFrame, declared: InputDeclaration, *, folder: Path, settings: Settings) -> DecodedInput:
    """Decode the values of an input that declares `value`, and the lines of one with `on_malformed: quarantine`.

    Parameters
    ----------
    rows: the rows as the source returns them.
    declared: the input.
    folder: the folder of the declaration file, which schema files are relative to.
    settings: the connections of the deployment.

    Raises
    ------
    RegistryError: when the schema of a subject cannot be used.
    SettingsError: when the deployment does not have the registry's connection.
    """
    source, files = declared.declared_source, declared.declared_source.files
    if source.value is not None:
        schema = resolve_values(source.value, folder=folder, settings=settings)
        form = replace(
            _RECORDS[source.kind], has_schema_id=schema.registry is not None, is_text=schema.format == "json"
        )
        tried = _tried(rows, schema.columns, form) if form.is_text else _tried_in_python(rows, schema, form)
        return _split(tried, schema.columns, form)
    if files is not None and files.on_malformed == "quarantine":
        is_json = files.format == "json"
        lines = _tried(_json_lines(rows), files.columns, _LINES) if is_json else _tried_csv(rows, files)
        split = _split(lines, files.columns, _LINES)
        return replace(split, rows=split.rows.drop(RECORD_COLUMN))
    return DecodedInput(rows=rows)


def _split(tried: DataFrame, columns: Sequence[DeclaredColumn], form: _Form) -> DecodedInput:
    """Separate decoded rows from rejected ones."""
    reason = _reason(columns, form)
    names = [fn.col(f"{_VALUE}.{quoted(column.name)}") for column in columns]
    return DecodedInput(
        rows=tried.where(reason.isNull()).select(*names, RECORD_COLUMN),
        refused=tried.where(reason.isNotNull()).select(
            reason.alias("reason"),
            fn.to_json(fn.struct(*_of_record(form.position))).alias("position"),
            fn.coalesce(_TEXT, fn.concat(fn.lit("0x"), fn.hex(f"{RECORD_COLUMN}.{form.content}"))).alias("payload"),
        ),
    )


def _tried(rows: DataFrame, columns: Sequence[DeclaredColumn], form: _Form) -> DataFrame:
    """Every record with the text of its value and the result of decoding it."""
    value = fn.col(form.content)
    framed = fn.when(fn.startswith(value, fn.lit(MAGIC_BYTE)), fn.substr(value, fn.lit(PREFIX_BYTES + 1)))
    text = fn.try_validate_utf8((framed if form.has_schema_id else value).cast("string"))
    schema = spark_schema(columns).add(REJECTION, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": REJECTION}
    return rows.select(fn.struct("*").alias(RECORD_COLUMN), text.alias(_TEXT)).withColumn(
        _VALUE, fn.from_json(_TEXT, schema, options)
    )


def _tried_in_python(rows: DataFrame, schema: ValueSchema, form: _Form) -> DataFrame:
    """Every record with the result of decoding its value in Python. Such values have no text."""
    value = decoding_of(schema, rejection=REJECTION)(fn.col(form.content))
    return rows.select(
        fn.struct("*").alias(RECORD_COLUMN), fn.lit(None).cast("string").alias(_TEXT), value.alias(_VALUE)
    )


def _json_lines(rows: DataFrame) -> DataFrame:
    """Lines as records, without blank lines, which Spark's reader of JSON skips as well."""
    lines = rows.select(fn.col("value").cast("binary").alias("value"), fn.col("_metadata.file_path").alias(_FILE))
    return lines.where(fn.trim(fn.col("value").cast("string")) != "")


def _tried_csv(rows: DataFrame, source: FilesSource) -> DataFrame:
    """Lines as records, parsed by Spark's reader of csv. The text of a valid line is composed from its columns.

    The text depends on every column, and the reason for a rejection depends on the text. Otherwise Spark would parse
    only the selected columns, and a line could be valid for decoded rows and malformed for rejected ones.
    """
    parsed = fn.struct(*(fn.col(quoted(column.name)) for column in source.columns))
    line = fn.coalesce(fn.col(REJECTION), fn.to_csv(parsed)).cast("binary")
    whole = fn.struct(*(fn.col(quoted(column.name)) for column in source.columns), REJECTION)
    record = fn.struct(line.alias("value"), fn.col("_metadata.file_path").alias(_FILE))
    return rows.select(
        record.alias(RECORD_COLUMN), fn.try_validate_utf8(line.cast("string")).alias(_TEXT), whole.alias(_VALUE)
    )


def _reason(columns: Sequence[DeclaredColumn], form: _Form) -> Column:
    """Why a record is rejected; null for a valid one."""
    required = [column.name for column in columns if column.required]
    absent = fn.concat_ws(
        ", ", *(fn.when(fn.col(f"{_VALUE}.{quoted(name)}").isNull(), fn.lit(name)) for name in required)
    )
    content, rejection = fn.col(f"{RECORD_COLUMN}.{form.content}"), fn.col(f"{_VALUE}.{REJECTION}")
    reason = fn.when(content.isNull(), fn.lit("the record has no value"))
    if not form.is_text:
        reason = reason.when(rejection.isNotNull(), rejection)
    else:
        if form.has_schema_id:
            reason = reason.when(~fn.startswith(content, fn.lit(MAGIC_BYTE)), fn.lit(NO_PREFIX))
        reason = reason.when(fn.col(_TEXT).isNull(), fn.lit(f"the {form.noun} is not UTF-8 text"))
        reason = reason.when(
            fn.col(_VALUE).isNull() | rejection.isNotNull(), fn.lit(f"the {form.noun} {form.mismatch}")
        )
    return reason.when(absent != "", fn.concat(fn.lit(f"the {form.noun} lacks "), absent))


def _of_record(names: Sequence[str]) -> list[Column]:
    return [fn.col(f"{RECORD_COLUMN}.{name}") for name in names]
