"""Decodes the values of records and the lines of files: valid ones become columns, all others are rejected with their
position and a reason.

A value that cannot be decoded never becomes null, because null is a value that a sender may have meant. The rejected
records of a stream's batch are observed while its rows are computed, so that the source is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.source_declarations import FilesSource
from sluice.declarations.value_declaration import RECORD_COLUMN
from sluice.declarations.value_declaration import Column as DeclaredColumn
from sluice.record_values.field_counts import UNDECLARED
from sluice.record_values.resolving import resolve_values
from sluice.record_values.schemas import ValueSchema
from sluice.record_values.wire_format import MAGIC_BYTE, PREFIX_BYTES
from sluice.settings import Settings
from sluice_spark.session.identifiers import quoted
from sluice_spark.sources.csv_lines import decoded_csv
from sluice_spark.sources.event_time_bound import ahead_reason, stopping_ahead
from sluice_spark.sources.value_decoding import NUMBER, REJECTION, UNDECLARED_COUNTS, decoding_of

_VALUE, _FILE = "_sluice_value", "file"
REJECTED = "_sluice_rejected"
"""The column of a rejected record's reason, position and payload; null for a decoded one."""

_COLLECTED = "_sluice_collected_{}"

INPUT_METRIC = "sluice.input."
"""The prefix of the observed metric that counts an input's rows, as `rows`. Spark's own `numInputRows` counts a source
once for each place in the plan where it is read, which is each output; where it is read once, a second count of every
row would only cost time."""

REJECTED_METRIC = "sluice.rejected."
"""The prefix of the observed metric of an input's rejected records: `count`, and as `records` those that are kept; with
`undeclared` as below, if its values are decoded."""

UNDECLARED_METRIC = "sluice.undeclared."
"""The prefix of the observed metric of an input that rejects nothing: as `undeclared` the fields that no column takes,
with their numbers, of each block of values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What is decoded.

    position: the fields of a record that identify it in its source.
    content: the field with its bytes.
    has_schema_id: whether the bytes begin with the id of a schema.
    is_text: whether the bytes are text, which the quarantine then shows as such.
    counts_unknown: whether fields are counted that no column takes. stops_at_unknown: whether one stops the stream.
    """

    position: tuple[str, ...]
    content: str = "value"
    has_schema_id: bool = False
    is_text: bool = True
    counts_unknown: bool = True
    stops_at_unknown: bool = False


_VALUES = _Form(position=("topic", "partition", "offset"))
_LINES = _Form(position=(_FILE,))
_RECORDS = {
    "kafka": _VALUES,
    "kinesis": replace(_VALUES, position=("stream", "shard", "sequence_number"), content="data"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedInput:
    """The rows of an input after decoding.

    rows: the decoded rows; all rows of an input without decoding.
    rejected: the rejected records with the columns of a quarantine: reason, position, payload. None without decoding.
    metric: the name of the observed metric that `rows` have, of which `rejected` is the other way; none without it.
    """

    rows: DataFrame
    rejected: DataFrame | None = None
    metric: str | None = None


def decode(
    rows: DataFrame,
    declared: InputDeclaration,
    *,
    folder: Path,
    settings: Settings,
    observed_as: str | None = None,
    quarantines: bool = False,
    is_counted: bool = False,
) -> DecodedInput:
    """Decode an input as its declaration says, and reject what is too far ahead of the clock.

    Parameters
    ----------
    rows: the rows as the source returns them.
    folder: the folder of the declaration file, which schema files are relative to.
    observed_as: the name of the input in the metric of its rejected records; none to have no metric.
    quarantines: whether the stream has a quarantine, for rows of an input that is not decoded.
    is_counted: whether the rows of an input with a name have a metric that counts them. What is no record, such as the
        header of a file, is not counted.

    Raises
    ------
    RegistryError, SettingsError, UsageError: as `resolve_values` raises them.
    """
    source, files = declared.declared_source, declared.declared_source.files
    if files is not None and files.format == "json":
        rows = _json_lines(rows)
    elif files is not None and files.format == "csv":
        rows = decoded_csv(rows, files, value=_VALUE, with_texts=declared.watermark is not None)
    if is_counted and observed_as is not None and rows.isStreaming:
        rows = rows.observe(f"{INPUT_METRIC}{observed_as}", fn.count(fn.lit(1)).alias("rows"))
    metric = None if observed_as is None else f"{REJECTED_METRIC}{observed_as}"
    if source.value is not None:
        schema = resolve_values(source.value, folder=folder, settings=settings)
        form = replace(
            _RECORDS[source.kind], has_schema_id=schema.registry is not None, is_text=schema.format == "json"
        )
        form = replace(form, stops_at_unknown=schema.on_unknown_field == "fail")
        return _split(_tried(rows, schema, form), schema.columns, form, declared, metric)
    if files is not None and files.format in ("json", "csv"):
        lines = _tried(rows, _line_schema(files), _LINES) if files.format == "json" else rows
        if files.on_malformed == "quarantine":
            form = replace(
                _LINES, counts_unknown=files.format == "json", stops_at_unknown=files.on_unknown_field == "fail"
            )
            split = _split(lines, files.columns, form, declared, metric)
            return replace(split, rows=split.rows.drop(RECORD_COLUMN))
        if observed_as is not None and files.format == "json":
            lines = lines.observe(f"{UNDECLARED_METRIC}{observed_as}", _undeclared())
        rows = _failing(lines, files.columns)
    if declared.watermark is None:
        return DecodedInput(rows=rows)
    if not quarantines:
        return DecodedInput(rows=stopping_ahead(rows, declared))
    return _bounded(rows, declared, metric)


def _bounded(rows: DataFrame, declared: InputDeclaration, metric: str | None) -> DecodedInput:
    """Separate rows of an input that is not decoded from those that are too far ahead of the clock."""
    column = declared.watermark.column if declared.watermark is not None else ""
    reason = ahead_reason(declared, fn.col(quoted(column)))
    position = fn.lit(None).cast("string")
    rejected = fn.struct(
        reason.alias("reason"), position.alias("position"), fn.to_json(fn.struct("*")).alias("payload")
    )
    judged = rows.withColumn(REJECTED, fn.when(reason.isNotNull(), rejected))
    observed = judged if metric is None else _observed(judged, metric, fn.lit(None).cast("long"))
    return DecodedInput(
        rows=observed.where(fn.col(REJECTED).isNull()).drop(REJECTED), rejected=rejected_of(judged), metric=metric
    )


def _line_schema(source: FilesSource) -> ValueSchema:
    return ValueSchema(format="json", columns=source.columns, on_unknown_field=source.on_unknown_field)


def _split(
    tried: DataFrame,
    columns: Sequence[DeclaredColumn],
    form: _Form,
    declared: InputDeclaration,
    metric: str | None,
) -> DecodedInput:
    """Separate decoded rows from rejected ones."""
    reason = fn.coalesce(fn.col(f"{_VALUE}.{REJECTION}"), _ahead(columns, declared))
    position = fn.to_json(fn.struct(*(fn.col(f"{RECORD_COLUMN}.{name}") for name in form.position)))
    if form.stops_at_unknown:
        stopping = fn.raise_error(fn.concat(reason, fn.lit(", at "), position)).cast("string")
        reason = fn.when(fn.startswith(reason, fn.lit(UNDECLARED)), stopping).otherwise(reason)
    rejected = fn.struct(reason.alias("reason"), position.alias("position"), _payload(form).alias("payload"))
    judged = tried.withColumn(REJECTED, fn.when(reason.isNotNull(), rejected))
    counts = [fn.col(f"{_VALUE}.{UNDECLARED_COUNTS}")] if form.counts_unknown else []
    observed = judged if metric is None else _observed(judged, metric, fn.col(f"{_VALUE}.{NUMBER}"), *counts)
    names = [fn.col(f"{_VALUE}.{quoted(column.name)}") for column in columns]
    return DecodedInput(
        rows=observed.where(fn.col(REJECTED).isNull()).select(*names, RECORD_COLUMN),
        rejected=rejected_of(judged),
        metric=metric,
    )


def _ahead(columns: Sequence[DeclaredColumn], declared: InputDeclaration) -> Column:
    """Why a decoded row is rejected by its event time, which may be a column of the value or of the record."""
    if declared.watermark is None:
        return fn.lit(None).cast("string")
    name = declared.watermark.column
    place = _VALUE if name in (column.name for column in columns) else RECORD_COLUMN
    return ahead_reason(declared, fn.col(f"{place}.{quoted(name)}"))


def rejected_of(judged: DataFrame) -> DataFrame:
    """The rejected records of an input, from the rows below its metric."""
    return judged.where(fn.col(REJECTED).isNotNull()).select(f"{REJECTED}.*")


def _undeclared() -> Column:
    """What is observed of the fields that no column takes."""
    return fn.collect_list(fn.col(f"{_VALUE}.{UNDECLARED_COUNTS}")).alias("undeclared")


def _observed(judged: DataFrame, metric: str, number: Column, *counts: Column) -> DataFrame:
    """The rows with the metric of the rejected records. number: of a record that is kept, null for all others.

    What is collected are columns of their own: Spark compiles the expressions of a projection, and interprets those
    within a collection, row by row.
    """
    record = fn.when(number.isNotNull(), fn.struct(number.alias("number"), f"{REJECTED}.*"))
    collected = [_COLLECTED.format(number) for number in range(1 + len(counts))]
    observed = judged.select("*", *(one.alias(name) for one, name in zip((record, *counts), collected, strict=True)))
    names = ("records", "undeclared")
    return observed.observe(
        metric,
        fn.count_if(fn.col(REJECTED).isNotNull()).alias("count"),
        *(fn.collect_list(fn.col(name)).alias(alias) for name, alias in zip(collected, names, strict=False)),
    ).drop(*collected)


def _tried(rows: DataFrame, schema: ValueSchema, form: _Form) -> DataFrame:
    """Every record with the result of decoding its value."""
    value = decoding_of(schema)(fn.col(form.content))
    return rows.select(fn.struct("*").alias(RECORD_COLUMN), value.alias(_VALUE))


def _payload(form: _Form) -> Column:
    """The bytes of a value as the quarantine shows them: as text, or in hexadecimal."""
    content = fn.col(f"{RECORD_COLUMN}.{form.content}")
    shown = fn.concat(fn.lit("0x"), fn.hex(content))
    if not form.is_text:
        return shown
    framed = fn.when(fn.startswith(content, fn.lit(MAGIC_BYTE)), fn.substr(content, fn.lit(PREFIX_BYTES + 1)))
    return fn.coalesce(fn.try_validate_utf8((framed if form.has_schema_id else content).cast("string")), shown)


def _json_lines(rows: DataFrame) -> DataFrame:
    """Lines as records, without blank lines, which Spark's reader of JSON skips as well."""
    lines = rows.select(fn.col("value").cast("binary").alias("value"), fn.col("_metadata.file_path").alias(_FILE))
    return lines.where(fn.trim(fn.col("value").cast("string")) != "")


def _failing(tried: DataFrame, columns: Sequence[DeclaredColumn]) -> DataFrame:
    """The decoded rows. A line that is rejected stops the stream with an error that names the file."""
    reason = fn.col(f"{_VALUE}.{REJECTION}")
    message = fn.concat(reason, fn.lit(", in "), fn.col(f"{RECORD_COLUMN}.{_FILE}"))
    is_sound = fn.when(reason.isNotNull(), fn.raise_error(message).cast("boolean")).otherwise(fn.lit(True))
    return tried.where(is_sound).select(*(fn.col(f"{_VALUE}.{quoted(column.name)}") for column in columns))
