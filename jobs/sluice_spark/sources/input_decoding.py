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
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from sluice.declarations.input_declaration import InputDeclaration, SourceDeclaration
from sluice.declarations.source_declarations import RECORD_TIME, FilesSource, IcebergSource
from sluice.declarations.value_declaration import RECORD_COLUMN
from sluice.declarations.value_declaration import Column as DeclaredColumn
from sluice.errors import ColumnDifference, SchemaError
from sluice.record_values.registry import resolve_values
from sluice.record_values.rejection import RejectionKind
from sluice.record_values.schemas import MAGIC_BYTE, PREFIX_BYTES, ValueSchema
from sluice.settings import Settings
from sluice_spark.session.columns import REJECTION_ROW, quoted, rejected_row, rejection_in, rejection_of
from sluice_spark.session.valid_text import KNOWN_VALID
from sluice_spark.sources.csv_lines import decoded_csv
from sluice_spark.sources.value_decoding import BLOCK_FACTS, NUMBER, REJECTION, decoding_of

DECODED = "_sluice_value"
"""The column of a value while it is decoded: a struct."""

_VALUE, _FILE = DECODED, "file"
REJECTED = "_sluice_rejected"
"""The column of a rejected record as a row of the quarantine; null for a decoded one."""

_REASON, _KEPT, _FACTS = "_sluice_reason", "_sluice_kept", "_sluice_block_facts"
_OF_FILE = "_sluice_of_file"

INPUT_METRIC = "sluice.input."
"""The prefix of the observed metric that counts an input's rows, as `rows`. Spark's own `numInputRows` counts a source
once for each place in the plan where it is read, which is each output; where it is read once, a second count of every
row would only cost time. An input with a metric of rejected records has this count in that one."""

REJECTED_METRIC = "sluice.rejected."
"""The prefix of the observed metric of an input's rejected records: `count`, and as `records` those that are kept; with
`facts` as below, if its values are decoded, and with `rows`, if the rows are counted."""

REJECTED_FILES, GOOD_FILES, FILE_HASH = "rejected_files", "good_files", "hash"
"""What the metric of an input of lines has besides: the files with a rejected record, each with the hash of its name,
and the hashes of those with a good one. A set that gets a text from each row costs a twentieth of a batch."""

TOMBSTONES_METRIC = "sluice.tombstones."
"""The prefix of the observed metric that counts the records of an input, as `rows`, that are left out because they have
no value. They are below what counts its rows."""

FACTS_METRIC = "sluice.facts."
"""The prefix of the observed metric of an input that rejects nothing: as `facts` what is known of each block of values
beside its columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What is decoded.

    position: the fields of a record that identify it in its source; none where nothing does.
    content: the field with its bytes.
    has_schema_id: whether the bytes begin with the id of a schema.
    is_text: whether the bytes are text, which the quarantine then shows as such.
    stops_at_unknown: whether a field that no column takes stops the stream.
    is_of_files: whether the records are lines of files, which are then judged file by file.
    """

    position: tuple[str, ...]
    content: str = "value"
    has_schema_id: bool = False
    is_text: bool = True
    stops_at_unknown: bool = False
    is_of_files: bool = False


_VALUES = _Form(position=("topic", "partition", "offset"))
_STORED_PLACES = (
    ("topic", "partition", "offset", RECORD_TIME),
    ("stream", "shard", "sequence_number", "arrived_at"),
)
"""Where a stored record stood, with its time: a topic that was created again gives an offset twice."""

_NESTED = (ArrayType, MapType, StructType)
_LINES = _Form(position=(_FILE,), is_of_files=True)
_RECORDS = {
    "kafka": _VALUES,
    "kinesis": replace(_VALUES, position=("stream", "shard", "sequence_number"), content="data"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Metric:
    """The observed metric of an input's rejected records. counts_rows: whether it counts all rows as well."""

    name: str
    counts_rows: bool

    def of(self, judged: DataFrame) -> DataFrame:
        """The rows with this metric."""
        counts = [_facts(fn.col(_FACTS))] if _FACTS in judged.columns else []
        if _OF_FILE in judged.columns:
            counts += [
                fn.collect_set(fn.col(f"{_OF_FILE}.{name}")).alias(name) for name in (REJECTED_FILES, GOOD_FILES)
            ]
        return judged.observe(
            self.name,
            fn.count(fn.col(_REASON)).alias("count"),
            fn.collect_list(fn.col(_KEPT)).alias("records"),
            *counts,
            *([fn.count(fn.lit(1)).alias("rows")] if self.counts_rows else []),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedInput:
    """The rows of an input after decoding.

    rows: the decoded rows; all rows of an input without decoding.
    rejected: the rejected records, each as a `REJECTED_ROW`. None without decoding.
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
    if files is not None:
        rows = _lines_of(rows, files, declared)
    counts_rows = is_counted and observed_as is not None and rows.isStreaming
    metric = None if observed_as is None else _Metric(name=f"{REJECTED_METRIC}{observed_as}", counts_rows=counts_rows)
    if source.value is not None:
        schema = resolve_values(source.value, folder=folder, settings=settings)
        form = _form_of_records(source, schema, rows)
        if observed_as is not None and rows.isStreaming and source.value.tombstones == "ignore":
            tombstones = fn.count_if(fn.col(quoted(form.content)).isNull())
            rows = rows.observe(f"{TOMBSTONES_METRIC}{observed_as}", tombstones.alias("rows"))
        rows = without_tombstones(rows, source)
        return _split(_tried(rows, schema, form), schema.columns, form, declared, metric)
    of_lines = files if files is not None and files.format in ("json", "csv") else None
    if of_lines is not None and of_lines.on_malformed == "quarantine":
        split = _split(_tried_lines(rows, of_lines), of_lines.columns, _form_of_lines(of_lines), declared, metric)
        return replace(split, rows=split.rows.drop(RECORD_COLUMN))
    if counts_rows:
        rows = rows.observe(f"{INPUT_METRIC}{observed_as}", fn.count(fn.lit(1)).alias("rows"))
    if of_lines is not None:
        lines = _tried_lines(rows, of_lines)
        if observed_as is not None:
            counts = fn.col(f"{_VALUE}.{BLOCK_FACTS}")
            lines = lines.observe(f"{FACTS_METRIC}{observed_as}", _facts(counts))
        rows = _failing(lines, of_lines.columns)
    if declared.watermark is None:
        return DecodedInput(rows=rows)
    if not quarantines:
        return DecodedInput(rows=_stopping_ahead(rows, declared))
    return _bounded(rows, declared, None if metric is None else replace(metric, counts_rows=False))


def without_tombstones(rows: DataFrame, source: SourceDeclaration) -> DataFrame:
    """The rows of a source before they are decoded, without those that have no value where these are left out."""
    if source.value is None or source.value.tombstones != "ignore":
        return rows
    content = _RECORDS[source.kind].content if source.iceberg is None else source.iceberg.value_column
    return rows.where(fn.col(quoted(content)).isNotNull())


def _form_of_records(source: SourceDeclaration, schema: ValueSchema, rows: DataFrame) -> _Form:
    return replace(
        _RECORDS[source.kind] if source.iceberg is None else _form_of_table(source.iceberg, schema, rows),
        has_schema_id=schema.registry is not None,
        is_text=schema.format == "json",
        stops_at_unknown=schema.on_unknown_field == "fail",
    )


def _form_of_table(source: IcebergSource, schema: ValueSchema, rows: DataFrame) -> _Form:
    """Values in a column of a table. What says where one stood is the place that its record had where the table was
    filled from, or else the rest of its row, but for nested columns: by it a replay finds the row again.

    Raises
    ------
    SchemaError: when the table has no such column, or one of another type.
    """
    kinds = {field.name: field.dataType for field in rows.schema}
    fit = (BinaryType, StringType) if schema.format == "json" else (BinaryType,)
    if not isinstance(kind := kinds.get(source.value_column), fit):
        wanted = "binary or string" if schema.format == "json" else "binary"
        got = "" if kind is None else kind.simpleString()
        raise SchemaError(
            f"The values of {source.table} cannot be decoded:",
            differences=(ColumnDifference(column=source.value_column, declared=wanted, got=got),),
            next_step=f"Name the column with the {schema.format} in `value_column`.",
        )
    others = [name for name, one in kinds.items() if not isinstance(one, _NESTED) and name != source.value_column]
    place = next((place for place in _STORED_PLACES if set(place) <= set(others)), others)
    return _Form(position=tuple(place), content=source.value_column)


def _form_of_lines(source: FilesSource) -> _Form:
    return replace(_LINES, stops_at_unknown=source.on_unknown_field == "fail")


def _lines_of(rows: DataFrame, source: FilesSource, declared: InputDeclaration) -> DataFrame:
    """The lines of files with the name of their file, those of csv decoded; the rows of other files as they are."""
    if source.format == "json":
        return _json_lines(rows)
    if source.format == "csv":
        return decoded_csv(rows, source, value=_VALUE, is_whole=declared.watermark is not None)
    return rows


def _bounded(rows: DataFrame, declared: InputDeclaration, metric: _Metric | None) -> DecodedInput:
    """Separate rows of an input that is not decoded from those that are too far ahead of the clock."""
    column = declared.watermark.column if declared.watermark is not None else ""
    rejection = _ahead(declared, fn.col(quoted(column)))
    position, payload = fn.lit(None).cast("string"), fn.to_json(fn.struct("*"))
    rejected = fn.struct(*rejected_row(rejection_in(rejection), position=position, payload=payload).values())
    none_kept, reason = fn.lit(None).cast("long"), rejection.getField("reason")
    judged = rows.withColumns({REJECTED: fn.when(reason.isNotNull(), rejected), _REASON: reason, _KEPT: none_kept})
    observed = judged if metric is None else metric.of(judged)
    return DecodedInput(
        rows=observed.where(fn.col(_REASON).isNull()).drop(REJECTED, _REASON, _KEPT),
        rejected=rejected_of(judged),
        metric=None if metric is None else metric.name,
    )


def _line_schema(source: FilesSource) -> ValueSchema:
    return ValueSchema(format="json", columns=source.columns, on_unknown_field=source.on_unknown_field)


def _split(
    tried: DataFrame,
    columns: Sequence[DeclaredColumn],
    form: _Form,
    declared: InputDeclaration,
    metric: _Metric | None,
) -> DecodedInput:
    """Separate decoded rows from rejected ones.

    One projection has all that is collected: Spark compiles its expressions and interprets those within a collection,
    row by row, and each further projection takes time to plan in every batch.
    """
    rejection, position = fn.col(f"{_VALUE}.{REJECTION}"), _position(form)
    if declared.watermark is not None:
        rejection = fn.coalesce(rejection, _ahead(declared, _event_time(declared.watermark.column, columns)))
    reason = rejection.getField("reason")
    if form.stops_at_unknown:
        place = fn.coalesce(fn.concat(fn.lit(", at "), position), fn.lit(""))  # `concat` with a null is null
        stopping = fn.raise_error(fn.concat(reason, place)).cast("string")
        is_undeclared = rejection.getField("kind") == str(RejectionKind.UNDECLARED)
        reason = fn.when(is_undeclared, stopping).otherwise(reason)
    shown = rejected_row(rejection_in(rejection), position=position, payload=_payload(form)).values()
    number = fn.col(f"{_VALUE}.{NUMBER}")
    judged = tried.select(
        fn.struct(*(quoted(name) for name in tried.columns if name != _VALUE)).alias(RECORD_COLUMN),
        _VALUE,
        reason.alias(_REASON),
        fn.when(reason.isNotNull(), fn.struct(*shown)).alias(REJECTED),
        fn.when(number.isNotNull(), fn.struct(number.alias("number"), *shown)).alias(_KEPT),
        fn.col(f"{_VALUE}.{BLOCK_FACTS}").alias(_FACTS),
        *([_of_file(reason).alias(_OF_FILE)] if form.is_of_files else []),
    )
    observed = judged if metric is None else metric.of(judged)
    return DecodedInput(
        rows=observed.where(fn.col(_REASON).isNull()).select(*_columns(tried, columns), RECORD_COLUMN),
        rejected=rejected_of(judged),
        metric=None if metric is None else metric.name,
    )


def _of_file(reason: Column) -> Column:
    """The file of a row, for the one of the two sets that it is of. Not every good row names its file."""
    numbered = fn.xxhash64(_FILE)
    rejected = fn.when(reason.isNotNull(), fn.struct(fn.col(_FILE), numbered.alias(FILE_HASH)))
    good = fn.when(reason.isNull() & fn.col(_FILE).isNotNull(), numbered)
    return fn.struct(rejected.alias(REJECTED_FILES), good.alias(GOOD_FILES))


def _position(form: _Form) -> Column:
    """The place of a record, as text."""
    if not form.position:
        return fn.lit(None).cast("string")
    return fn.to_json(fn.struct(*map(quoted, form.position)))


def _event_time(name: str, columns: Sequence[DeclaredColumn]) -> Column:
    """The event time of a decoded row, which may be a column of the value or of the record."""
    is_of_value = name in (column.name for column in columns)
    return fn.col(f"{_VALUE}.{quoted(name)}" if is_of_value else quoted(name))


def _ahead(declared: InputDeclaration, event_time: Column) -> Column:
    """Why a row is rejected by its event time, which would make every later row late, for good; null for a row within
    the bound, and for one without a time.

    The clock is that of the batch, which Spark keeps with the batch's offsets: a batch that runs again rejects the same
    rows.
    """
    watermark = declared.watermark
    if watermark is None:
        return fn.lit(None).cast(REJECTION_ROW)
    seconds = watermark.max_ahead.total_seconds()
    latest = fn.expr(f"current_timestamp() + make_dt_interval(0, 0, 0, {seconds:.6f})")
    detail = fn.concat(event_time.cast("string"), fn.lit(f" is more than {watermark.max_ahead} ahead"))
    rejection = rejection_of(RejectionKind.EVENT_TIME_AHEAD, path=watermark.column, detail=detail)
    return fn.when(event_time.cast("timestamp") > latest, fn.struct(*rejection.values()))


def _stopping_ahead(rows: DataFrame, declared: InputDeclaration) -> DataFrame:
    """The same rows; one that is too far ahead stops a stream without a quarantine, if the bound is declared."""
    if declared.watermark is None or "max_ahead" not in declared.watermark.model_fields_set:
        return rows
    reason = _ahead(declared, fn.col(declared.watermark.column)).getField("reason")
    is_sound = fn.when(reason.isNotNull(), fn.raise_error(reason).cast("boolean")).otherwise(fn.lit(True))
    return rows.where(is_sound)


def rejected_of(judged: DataFrame) -> DataFrame:
    """The rejected records of an input, from the rows below its metric."""
    return judged.where(fn.col(REJECTED).isNotNull()).select(f"{REJECTED}.*")


def _facts(facts: Column) -> Column:
    """What is observed of values beside their columns. facts: those of each block of values."""
    return fn.collect_list(facts).alias("facts")


def _tried(rows: DataFrame, schema: ValueSchema, form: _Form) -> DataFrame:
    """Every record with the result of decoding its value."""
    return rows.withColumn(_VALUE, decoding_of(schema)(fn.col(quoted(form.content)).cast("binary")))


def _tried_lines(rows: DataFrame, source: FilesSource) -> DataFrame:
    """Every line of json with the result of decoding it; those of csv have it already."""
    return _tried(rows, _line_schema(source), _LINES) if source.format == "json" else rows


def _payload(form: _Form) -> Column:
    """The bytes of a value as the quarantine shows them: as text, or in hexadecimal."""
    content = fn.col(quoted(form.content)).cast("binary")
    shown = fn.concat(fn.lit("0x"), fn.hex(content))
    if not form.is_text:
        return shown
    framed = fn.when(fn.startswith(content, fn.lit(MAGIC_BYTE)), fn.substr(content, fn.lit(PREFIX_BYTES + 1)))
    return fn.coalesce(fn.try_validate_utf8((framed if form.has_schema_id else content).cast("string")), shown)


def _json_lines(rows: DataFrame) -> DataFrame:
    """Lines as records, without blank lines, which Spark's reader of JSON skips as well."""
    lines = rows.where(fn.trim("value") != "")
    return lines.select(fn.col("value").cast("binary").alias("value"), fn.col("_metadata.file_path").alias(_FILE))


def _failing(tried: DataFrame, columns: Sequence[DeclaredColumn]) -> DataFrame:
    """The decoded rows. A line that is rejected stops the stream with an error that names the file."""
    reason = fn.col(f"{_VALUE}.{REJECTION}.reason")
    message = fn.concat(reason, fn.lit(", in "), fn.col(_FILE))
    is_sound = fn.when(reason.isNotNull(), fn.raise_error(message).cast("boolean")).otherwise(fn.lit(True))
    return tried.where(is_sound).select(*_columns(tried, columns))


def _columns(tried: DataFrame, columns: Sequence[DeclaredColumn]) -> list[Column]:
    """The columns of decoded values. Their text is UTF-8; the columns of a stream say so."""
    known = dict(KNOWN_VALID) if tried.isStreaming else {}  # what is kept of a static input goes by its schema
    return [fn.col(f"{_VALUE}.{quoted(column.name)}").alias(column.name, metadata=known) for column in columns]
