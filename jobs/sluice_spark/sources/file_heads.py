"""Reads the columns of parquet, orc and avro files from their heads and feet."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import fastavro
import pyarrow as pa
from fastavro.schema import SchemaParseException, expand_schema
from py4j.protocol import Py4JJavaError
from pyarrow import orc, parquet
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyspark.sql import SparkSession

from sluice.errors import LakehouseError
from sluice.settings import Settings
from sluice.sources.source_types import LEGACY_INSTANT, ORC_INSTANT, FileFormat
from sluice.tables.catalog import catalog_properties
from sluice_spark.session.jvm import first_line, jvm_of

_log = logging.getLogger(__name__)

_READ_AT_ONCE = 16
"""The processor is busy with fewer; the rest is for storages that answer late."""

_READ_WHOLE_BYTES = 64 * 1024
"""So much PyArrow reads of the end of a file of parquet at once. What is not longer is read without a call back."""

_OF_PYARROW = frozenset({"file", "s3", "s3a"})


class UnreadableHeadError(Exception):
    """The head or foot of a file is not one of its format. The message is half a sentence."""


class FileHeads:
    """Reads the heads of files, from any thread: those of this machine and of an S3 store through PyArrow."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._io = PyArrowFileIO(catalog_properties(settings))
        self._others = _HadoopFiles(spark)

    def read_columns(self, uri: str, *, file_format: FileFormat) -> pa.Schema:
        """The columns of a file.

        Parameters
        ----------
        uri: as Spark's log of files has it, percent-encoded.

        Raises
        ------
        UnreadableHeadError: when the file is damaged, or is none of its format.
        LakehouseError: when its storage does not answer, or the file is gone.
        """
        with self._open(uri) as file:
            try:
                match file_format:
                    case "parquet":
                        return _parquet_columns(parquet.ParquetFile(_for_arrow(file)))
                    case "orc":
                        return _orc_columns(orc.ORCFile(_for_arrow(file)).schema)
                return pa.schema([_avro_field(one) for one in _avro_fields(file)])
            except (pa.ArrowException, SchemaParseException, OSError, ValueError, EOFError, LookupError) as error:
                detail = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise UnreadableHeadError(f"it is no {file_format} file, or damaged: {detail}") from error

    def first_names(self, uri: str, *, file_format: Literal["json", "csv"]) -> Collection[str] | None:
        """The names of the columns of a file of json or csv, by its first line; none when that is no such line.

        Parameters
        ----------
        uri: as for `read_columns`.

        Raises
        ------
        LakehouseError: when its storage does not answer, or the file is gone.
        """
        with self._open(uri) as file:
            try:
                with _decompressed(file, uri) as content:
                    line = io.TextIOWrapper(content, encoding="utf-8-sig").readline()
                if file_format == "csv":
                    return next(csv.reader([line]), None) or None
                found = json.loads(line)
            except (pa.ArrowException, OSError, ValueError, csv.Error) as error:
                _log.debug("the first line of %s has no names: %s", uri, error)  # its rows are rejected one by one
                return None
            return found if isinstance(found, dict) else None

    def _open(self, uri: str) -> io.RawIOBase | io.BytesIO:
        place = urlsplit(uri)
        with _refusals(uri):
            if place.scheme not in _OF_PYARROW:
                return self._others.open(uri)
            files = self._io.fs_by_scheme(place.scheme, place.netloc)
            file = files.open_input_file(place.netloc + unquote(place.path))
            if (size_bytes := file.size()) <= _READ_WHOLE_BYTES:
                with file:
                    return io.BytesIO(file.read())

            def read_at(size_bytes: int, offset: int) -> bytes:
                file.seek(offset)
                return bytes(file.read(size_bytes))

            return _StoredFile(read_at, size_bytes=size_bytes, close=file.close, uri=uri)


def _for_arrow(file: io.RawIOBase | io.BytesIO) -> pa.NativeFile:
    return pa.BufferReader(file.getvalue()) if isinstance(file, io.BytesIO) else pa.PythonFile(file, "r")


def _decompressed(file: io.RawIOBase | io.BytesIO, uri: str) -> io.BufferedReader[Any] | gzip.GzipFile | bz2.BZ2File:
    """What a file holds. Source of the endings: Hadoop's `CompressionCodecFactory`."""
    opened: io.BufferedReader[Any] = io.BufferedReader(file)
    match PurePosixPath(urlsplit(uri).path).suffix:
        case ".gz":
            return gzip.open(opened)
        case ".bz2":
            return bz2.open(opened)
        case ".zst":
            stream: Any = pa.CompressedInputStream(pa.PythonFile(opened, "r"), "zstd")
            return io.BufferedReader(stream)
        case ".deflate" | ".lz4" | ".snappy" as ending:
            raise ValueError(f"{ending} is not looked into")
    return opened


def read_heads(
    heads: FileHeads, uris: Iterable[str], *, file_format: FileFormat
) -> Iterator[tuple[str, pa.Schema | UnreadableHeadError]]:
    """The columns of files in their order, or why the head of one cannot be read. Several are read at the same time:
    one waits for its storage most of the time.

    Raises
    ------
    LakehouseError: when the storage of one does not answer, or it is gone.
    """

    def read(uri: str) -> tuple[str, pa.Schema | UnreadableHeadError]:
        try:
            return uri, heads.read_columns(uri, file_format=file_format)
        except UnreadableHeadError as error:
            return uri, error

    pool = ThreadPoolExecutor(_READ_AT_ONCE, thread_name_prefix="file-heads")
    try:
        yield from pool.map(read, uris)
    finally:
        pool.shutdown(cancel_futures=True)


def _parquet_columns(file: parquet.ParquetFile) -> pa.Schema:
    leaves = iter([file.schema.column(index).physical_type for index in range(len(file.schema))])
    return pa.schema([_stored_field(one, leaves) for one in file.schema_arrow])


def _stored_field(field: pa.Field[Any], leaves: Iterator[str]) -> pa.Field[Any]:
    return field.with_type(_stored_type(field.type, leaves))


def _stored_type(kind: Any, leaves: Iterator[str]) -> pa.DataType:
    """A type as it is in the file. Arrow notes beside it as what its writer held the values in memory, such as the
    categories of pandas, and gives that as the type; Spark does not look there. It gives INT96 the type of a time
    without a zone; by its writers it is an instant.

    Parameters
    ----------
    leaves: the physical types of the columns without parts from here on, in their order.
    """
    if pa.types.is_dictionary(kind):
        return _stored_type(kind.value_type, leaves)
    if pa.types.is_struct(kind):
        return pa.struct([_stored_field(kind.field(index), leaves) for index in range(kind.num_fields)])
    if isinstance(kind, _LISTS):
        return pa.list_(_stored_field(kind.value_field, leaves))
    if pa.types.is_map(kind):
        return pa.map_(_stored_type(kind.key_type, leaves), _stored_type(kind.item_type, leaves))
    if isinstance(kind, pa.BaseExtensionType):
        stored = _stored_type(kind.storage_type, leaves)
        return stored if isinstance(kind, pa.JsonType) else kind
    if next(leaves) == "INT96":
        return LEGACY_INSTANT
    if isinstance(kind, pa.Decimal32Type | pa.Decimal64Type):
        return pa.decimal128(kind.precision, kind.scale)
    return _VIEWS.get(kind, kind)


_LISTS = (pa.ListType, pa.LargeListType, pa.FixedSizeListType, pa.ListViewType, pa.LargeListViewType)
_VIEWS: Mapping[Any, pa.DataType] = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


_ORC_ATTRIBUTE, _LOCAL = b"spark.sql.catalyst.type", b"timestamp_ntz"


def _orc_columns(found: pa.Schema) -> pa.Schema:
    """The columns with their times as Spark reads them: it writes a local time as a number with a mark."""
    return pa.schema([_orc_field(found.field(index)) for index in range(len(found.names))])


def _orc_field(field: pa.Field[Any]) -> pa.Field[Any]:
    if (field.metadata or {}).get(_ORC_ATTRIBUTE) == _LOCAL:
        return field.with_type(pa.timestamp("us"))
    return field.with_type(_orc_type(field.type))


def _orc_type(kind: Any) -> pa.DataType:
    if pa.types.is_timestamp(kind):
        return ORC_INSTANT if kind.tz is not None else pa.timestamp(kind.unit, tz="UTC")
    if pa.types.is_struct(kind):
        return pa.struct([_orc_field(kind.field(index)) for index in range(kind.num_fields)])
    if pa.types.is_list(kind):
        return pa.list_(_orc_field(kind.value_field).type)
    if pa.types.is_map(kind):
        return pa.map_(_orc_field(kind.key_field).type, _orc_field(kind.item_field).type)
    other: pa.DataType = kind
    return other


def _avro_fields(file: io.RawIOBase | io.BytesIO) -> list[Mapping[str, Any]]:
    # A type is described once in a file; expanded, a field with its name has the whole type.
    schema = expand_schema(fastavro.reader(io.BufferedReader(file)).writer_schema)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("its schema is no record")
    fields: list[Mapping[str, Any]] = schema["fields"]
    return fields


def _avro_field(field: Mapping[str, Any]) -> pa.Field[Any]:
    kind = field["type"]
    return pa.field(
        str(field["name"]), _avro_type(kind), nullable=kind == "null" or (isinstance(kind, list) and "null" in kind)
    )


_AVRO_PRIMITIVES: Mapping[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_AVRO_LOGICAL: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    "time-millis": pa.time32("ms"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "timestamp-nanos": pa.timestamp("ns", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "local-timestamp-nanos": pa.timestamp("ns"),
}


def _avro_type(kind: Any) -> pa.DataType:
    if isinstance(kind, list):
        others = [one for one in kind if one != "null"]
        return _avro_type(others[0]) if len(others) == 1 else pa.dense_union([pa.field("a union", pa.null())])
    if isinstance(kind, str):
        return _AVRO_PRIMITIVES.get(kind, pa.struct([]))  # a record within itself keeps its name
    logical = kind.get("logicalType")
    if logical == "decimal":
        precision, scale = int(kind["precision"]), int(kind.get("scale", 0))
        return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)
    if logical in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical]
    match kind["type"]:
        case "record":
            return pa.struct([_avro_field(field) for field in kind["fields"]])
        case "array":
            return pa.list_(_avro_type(kind["items"]))
        case "map":
            return pa.map_(pa.string(), _avro_type(kind["values"]))
        case "fixed":
            return pa.binary(int(kind["size"]))
        case inner:
            return _avro_type(inner)


ReadAt = Callable[[int, int], bytes]
"""Reads bytes of a file: how many at most, and from which of them."""


class _StoredFile(io.RawIOBase):
    """A file of a storage, for readers of Python. It is read in a few pieces."""

    def __init__(self, read_at: ReadAt, *, size_bytes: int, close: Callable[[], object], uri: str) -> None:
        self._read_at, self._size_bytes, self._close = read_at, size_bytes, close
        self._uri, self._at = uri, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self._size_bytes - self._at)
        if wanted <= 0:
            return 0
        with _refusals(self._uri):
            piece = self._read_at(wanted, self._at)
        buffer[: len(piece)] = piece
        self._at += len(piece)
        return len(piece)

    def close(self) -> None:
        if not self.closed:
            self._close()
        super().close()


class _HadoopFiles:
    """The file systems of Spark, which read more kinds of storages than PyArrow, and each file ten times as slowly. It
    keeps what would cost again for each: py4j looks a class up by each part of its name, and Hadoop copies its
    configuration."""

    def __init__(self, spark: SparkSession) -> None:
        jvm = jvm_of(spark)
        self._path, self._uri = jvm.org.apache.hadoop.fs.Path, jvm.java.net.URI
        # Text of Latin-1 has a character for each byte; py4j takes bytes apart one by one.
        self._read_text = jvm.org.apache.commons.io.IOUtils.toString
        self._limited = jvm.org.apache.hadoop.util.LimitInputStream
        self._conf = spark._jsparkSession.sessionState().newHadoopConf()

    def open(self, uri: str) -> _StoredFile:
        path = self._path(self._uri(uri))
        files = path.getFileSystem(self._conf)
        status = files.getFileStatus(path)
        # With its status a storage is not asked for it a second time.
        stream = files.openFile(path).withFileStatus(status).build().get()

        def read_at(size_bytes: int, offset: int) -> bytes:
            stream.seek(offset)
            return str(self._read_text(self._limited(stream, size_bytes), "ISO-8859-1")).encode("latin-1")

        return _StoredFile(read_at, size_bytes=int(status.getLen()), close=stream.close, uri=uri)


@contextmanager
def _refusals(uri: str) -> Iterator[None]:
    """Names the file in what a storage raises."""
    try:
        yield
    except Py4JJavaError as error:
        raise LakehouseError(f"The file {uri} cannot be read: {first_line(error)}") from error
    except OSError as error:
        raise LakehouseError(f"The file {uri} cannot be read: {str(error).splitlines()[0]}") from error
