"""Files below a connection's folder as an input.

Source of the options: https://spark.apache.org/docs/4.1.0/streaming/apis-on-dataframes-and-datasets.html#input-sources
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal
from urllib.parse import unquote

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StructType

from sluice.declarations.source_declarations import FilesSource
from sluice.errors import ColumnDifference, SchemaError
from sluice.settings import FilesConnection, Settings
from sluice.sources.source_types import columns_in_the_path, undeclared_columns, unfit_columns
from sluice_spark.session.columns import quoted, spark_schema
from sluice_spark.sources.csv_lines import CSV_OPTIONS, csv_schema
from sluice_spark.sources.file_heads import FileHeads, UnreadableHeadError, read_heads

_ANY_AGE = "36500d"
"""Spark leaves out files that are seven days older than the newest, for example copies that keep their times."""

_EACH_ONCE = {"recursiveFileLookup": "true"}
"""Spark reads every file below the folder, and each file of a batch once.

Without it, a subfolder such as `day=5` becomes a column that the files of a batch do not have ("Index 0 out of
bounds"), or takes the place of the one that they have; files in other subfolders are left out, and all files of a batch
are read twice when the name of another one has a character of patterns (`DataSource.checkAndGlobPathIfNecessary` of
Spark 4.1 lists them a second time).
"""

_IN_PLACE = (
    ", which takes `on_changed: ignore`. A stream that has planned a batch with the file cannot continue without it: "
    "do not move it away."
)
_MOVED_AWAY = ", or move it out of the folder."

_GLOB_CHARACTERS = frozenset("*?[]{}\\")


def read_stream(spark: SparkSession, source: FilesSource, connection: FilesConnection) -> DataFrame:
    """Read files as they arrive, each once, those in subfolders too. `_metadata.file_path` names the file of a row.

    A folder that does not exist yet is an empty input. What becomes of a file that was read, is not left to Spark,
    which deletes by path (`sluice_spark.query.file_watch`).
    """
    options = {
        **_options(source),
        "latestFirst": str(source.latest_first).lower(),
        "maxFileAge": _ANY_AGE,
        **_EACH_ONCE,
    }
    if source.max_files_per_batch is not None:
        options["maxFilesPerTrigger"] = str(source.max_files_per_batch)
    reader = spark.readStream.format(_read_format(source)).options(**options)
    if (schema := _read_schema(source)) is not None:
        reader = reader.schema(schema)
    return _with_required_values(reader.load(_awaited(location_below(connection, source.path))), source)


def read_static(
    spark: SparkSession, source: FilesSource, settings: Settings, *, is_streamed: bool = False
) -> DataFrame:
    """Read all files that are below an existing folder, as a stream does; `stream_inputs` lists them again when needed.

    Parameters
    ----------
    is_streamed: whether a stream reads the folder, of which this is a look.

    Raises
    ------
    SettingsError: when the deployment does not have the connection.
    SchemaError, LakehouseError: as `require_declared_columns` raises them.
    """
    reader = spark.read.format(_read_format(source)).options(**_options(source), **_EACH_ONCE)
    if (schema := _read_schema(source)) is not None:
        reader = reader.schema(schema)
    connection = settings.connection(source.connection, FilesConnection)
    rows = reader.load(location_below(connection, source.path))
    require_declared_columns(FileHeads(spark, settings), source, rows.inputFiles(), is_streamed=is_streamed)
    return _with_required_values(rows, source)


def read_these(spark: SparkSession, source: FilesSource, settings: Settings, paths: Sequence[str]) -> DataFrame:
    """Read some files, by their URIs. It fails when one does not exist."""
    reader = spark.read.format(_read_format(source)).options(**_options(source))
    if (schema := _read_schema(source)) is not None:
        reader = reader.schema(schema)
    rows = reader.load([_escaped(path) for path in paths])
    require_declared_columns(FileHeads(spark, settings), source, rows.inputFiles())
    return _with_required_values(rows, source)


def require_declared_columns(
    heads: FileHeads,
    source: FilesSource,
    uris: Iterable[str],
    *,
    is_streamed: bool = True,
    see: Callable[[pa.Schema, bool], None] | None = None,
) -> None:
    """Require that files of parquet, orc or avro have the declared columns, with types that fit.

    Parameters
    ----------
    uris: of the files, percent-encoded.
    is_streamed: whether a stream reads the files, which needs those of its batches.
    see: takes the columns of each file, and whether they fit.

    Raises
    ------
    SchemaError: with the first file that has not, its columns, and both types of each.
    LakehouseError: when a file cannot be read.
    """
    way_out = _IN_PLACE if is_streamed else _MOVED_AWAY
    if source.format == "json" or source.format == "csv":
        return _require_no_columns_in_paths(heads, source, uris, file_format=source.format, way_out=way_out)
    if source.format == "text":
        return None
    for uri, found in read_heads(heads, uris, file_format=source.format):
        if isinstance(found, UnreadableHeadError):
            raise SchemaError(
                f"The file {unquote(uri)} cannot be read: {found}.",
                differences=(),
                next_step=f"Write the file again{way_out}",
            ) from found
        differences = unfit_columns(source.columns, found, file_format=source.format)
        differences = differences or columns_in_the_path(source.columns, found.names, unquote(uri))
        if see is not None:
            see(found, not differences)
        if differences:
            raise _unfit(uri, differences, others=undeclared_columns(source.columns, found), way_out=way_out)
    return None


def _require_no_columns_in_paths(
    heads: FileHeads, source: FilesSource, uris: Iterable[str], *, file_format: Literal["json", "csv"], way_out: str
) -> None:
    """Lines without a declared column have null there, and only what a folder is named after would say what is meant.
    So few files are below such a folder that they are looked at one by one."""
    for uri in uris:
        if not columns_in_the_path(source.columns, (), unquote(uri)):
            continue
        names = heads.first_names(uri, file_format=file_format)
        if names is not None and (differences := columns_in_the_path(source.columns, names, unquote(uri))):
            raise _unfit(uri, differences, others=(), way_out=way_out)


def _unfit(uri: str, differences: tuple[ColumnDifference, ...], *, others: Sequence[str], way_out: str) -> SchemaError:
    has = f" (it has {', '.join(others)}, not declared)" if others else ""
    return SchemaError(
        f"The file {unquote(uri)} does not have the declared columns{has}:",
        differences=differences,
        next_step="Declare the columns as the files have them, or write the file again with the declared columns"
        + way_out,
    )


def _escaped(path: str) -> str:
    """The pattern that matches a path alone. Spark's option to take no path for a pattern reads the other files twice
    when the name of one has a character of patterns."""
    return "".join(f"\\{one}" if one in _GLOB_CHARACTERS else one for one in path)


def location_below(connection: FilesConnection, path: str) -> str:
    """The URI of a path below a connection's folder."""
    return "/".join(part for part in (connection.root.rstrip("/"), path.strip("/")) if part)


def _read_format(source: FilesSource) -> str:
    # Lines of JSON are decoded like the values of records: Spark's reader rounds, cuts and converts what it reads.
    return "text" if source.format == "json" else source.format


def _read_schema(source: FilesSource) -> StructType | None:
    match source.format:
        case "json" | "text":
            return None
        case "csv":
            return csv_schema(source.columns)
    return spark_schema(source.columns) if source.columns else None


def _options(source: FilesSource) -> dict[str, str]:
    # A row of parquet, orc or avro that does not fit the declared columns stops the stream. Spark's default would read
    # it as nulls.
    return CSV_OPTIONS if source.format == "csv" else {"mode": "FAILFAST"}


def _awaited(location: str) -> str:
    """A pattern that matches exactly one folder, which may be created later.

    Spark does not start with a folder that does not exist, but evaluates a pattern whenever it plans a batch.
    """
    parent, _, folder = location.rpartition("/")
    if parent.endswith(":/") or not folder or _GLOB_CHARACTERS.intersection(location):
        return location  # a whole bucket, or a pattern already
    return f"{parent}/{{{folder}}}"


def _with_required_values(rows: DataFrame, source: FilesSource) -> DataFrame:
    """The same rows. A row without a required value stops the stream with an error that names the file. Lines of json
    and csv are checked when they are decoded.
    """
    required = [column.name for column in source.columns if column.required]
    if not required or source.format in ("json", "csv"):
        return rows
    absent = fn.concat_ws(", ", *(fn.when(fn.col(quoted(name)).isNull(), fn.lit(name)) for name in required))
    message = fn.concat(fn.lit("A row has no value for "), absent, fn.lit(" in "), fn.col("_metadata.file_path"))
    return rows.where(fn.when(absent != "", fn.raise_error(message).cast("boolean")).otherwise(fn.lit(True)))
