"""Files below a connection's folder as an input.

Source of the options: https://spark.apache.org/docs/4.1.0/streaming/apis-on-dataframes-and-datasets.html#input-sources
"""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructType

from sluice.declarations.source_declarations import FilesSource
from sluice.settings import FilesConnection
from sluice_spark.session.identifiers import quoted
from sluice_spark.session.spark_types import spark_schema
from sluice_spark.sources.input_decoding import REJECTION

_GLOB_CHARACTERS = frozenset("*?[]{}\\")


def read_stream(spark: SparkSession, source: FilesSource, connection: FilesConnection) -> DataFrame:
    """The rows of the files that arrive; each file is read once. `_metadata.file_path` tells the file of a row.

    A folder that does not exist yet holds no files. Spark moves or deletes a file that was read when it plans the batch
    after the one that read it.
    """
    options = {**_options(source), "latestFirst": str(source.latest_first).lower()}
    if source.max_files_per_batch is not None:
        options["maxFilesPerTrigger"] = str(source.max_files_per_batch)
    if source.afterwards != "keep":
        options["cleanSource"] = source.afterwards
    if source.archive_path is not None:
        options["sourceArchiveDir"] = location_below(connection, source.archive_path)
    reader = spark.readStream.format(_read_format(source)).options(**options)
    if (schema := _read_schema(source)) is not None:
        reader = reader.schema(schema)
    return _with_required_values(reader.load(_awaited(location_below(connection, source.path))), source)


def read_static(spark: SparkSession, source: FilesSource, connection: FilesConnection) -> DataFrame:
    """The rows of all files of a folder that exists; `static_inputs` lists them anew."""
    reader = spark.read.format(_read_format(source)).options(**_options(source))
    if (schema := _read_schema(source)) is not None:
        reader = reader.schema(schema)
    return _with_required_values(reader.load(location_below(connection, source.path)), source)


def location_below(connection: FilesConnection, path: str) -> str:
    """The URI of a path below a connection's folder."""
    return "/".join(part for part in (connection.root.rstrip("/"), path.strip("/")) if part)


def _puts_aside(source: FilesSource) -> bool:
    return source.on_malformed == "quarantine"


def _read_format(source: FilesSource) -> str:
    # Lines of JSON are decoded as the values of records are: Spark's reader would not keep the text of a line that
    # only lacks a value. A line of csv needs Spark's reader, which knows the header.
    return "text" if _puts_aside(source) and source.format == "json" else source.format


def _read_schema(source: FilesSource) -> StructType | None:
    if not source.columns or _read_format(source) == "text":
        return None
    schema = spark_schema(source.columns)
    return schema.add(REJECTION, StringType()) if _puts_aside(source) else schema


def _options(source: FilesSource) -> dict[str, str]:
    if _puts_aside(source):
        return {"header": str(source.header).lower(), "mode": "PERMISSIVE", "columnNameOfCorruptRecord": REJECTION}
    # A line that does not fit the declared columns stops the stream and is named: Spark's default would make it nulls.
    return {"header": str(source.header).lower(), "mode": "FAILFAST"}


def _awaited(location: str) -> str:
    """A folder that may come later, as a pattern that matches exactly it: Spark refuses to begin with a folder that
    does not exist, and looks for what a pattern matches whenever it plans a batch."""
    parent, _, folder = location.rpartition("/")
    if parent.endswith(":/") or not folder or _GLOB_CHARACTERS.intersection(location):
        return location  # a whole bucket, or a pattern already
    return f"{parent}/{{{folder}}}"


def _with_required_values(rows: DataFrame, source: FilesSource) -> DataFrame:
    """The same rows; the first one without a required value stops the stream and names its file."""
    required = [column.name for column in source.columns if column.required]
    if not required or _puts_aside(source):
        return rows
    absent = fn.concat_ws(", ", *(fn.when(fn.col(quoted(name)).isNull(), fn.lit(name)) for name in required))
    message = fn.concat(fn.lit("A row has no value for "), absent, fn.lit(" in "), fn.col("_metadata.file_path"))
    return rows.where(fn.when(absent != "", fn.raise_error(message).cast("boolean")).otherwise(fn.lit(True)))
