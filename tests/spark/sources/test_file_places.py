"""Files of parquet, orc and avro where they lie and as they are compressed: read whole, or refused by their place."""

from __future__ import annotations

import bz2
import gzip
import io
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc, parquet
from pyspark.sql import SparkSession
from tests.fixtures.drill import first_of

from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.declarations.source_declarations import FilesSource
from sluice.errors import LakehouseError, SchemaError
from sluice.settings import FilesConnection, Settings
from sluice_spark.sources import files
from sluice_spark.sources.file_heads import FileHeads

CODECS = {
    "parquet": ("none", "snappy", "gzip", "zstd", "lz4"),
    "orc": ("uncompressed", "snappy", "zlib", "zstd", "lz4"),
    "avro": ("null", "deflate", "bzip2", "xz"),
}
COLUMNS = [{"name": "id", "type": "double"}, {"name": "day", "type": "double"}]


def content(file_format: str, rows: dict[str, list[float]], *, codec: str) -> bytes:
    """A file with these columns."""
    sink = io.BytesIO()
    if file_format == "avro":
        fields = [{"name": name, "type": ["null", "double"]} for name in rows]
        values = [dict(zip(rows, row, strict=True)) for row in zip(*rows.values(), strict=True)]
        fastavro.writer(sink, {"type": "record", "name": "r", "fields": fields}, values, codec=codec)
    else:
        writer: Any = parquet if file_format == "parquet" else orc
        writer.write_table(pa.table(rows), sink, compression=codec)
    return sink.getvalue()


def source_of(file_format: str, **more: Any) -> FilesSource:
    return FilesSource.model_validate({"connection": "here", "format": file_format, "columns": COLUMNS, **more})


@pytest.mark.parametrize("file_format", CODECS)
def test_files_are_read_whole_however_their_parts_are_compressed(
    spark: SparkSession, settings: Settings, tmp_path: Path, file_format: str
) -> None:
    uris = []
    for number, codec in enumerate(CODECS[file_format]):
        file = tmp_path / f"{codec}.{file_format}"
        ids = [100.0 * number + one for one in range(100)]
        file.write_bytes(content(file_format, {"id": ids, "day": ids}, codec=codec))
        uris.append(file.as_uri())

    rows = files.read_these(spark, source_of(file_format), settings, uris).collect()

    assert sorted(tuple(row) for row in rows) == [(float(one), float(one)) for one in range(100 * len(uris))]


@pytest.mark.parametrize("file_format", first_of(*CODECS))
def test_files_of_an_object_store_are_held_to_what_is_declared_too(
    spark: SparkSession, settings: Settings, tmp_path: Path, file_format: str
) -> None:
    store, folder = s3_client(settings.object_store), f"file_places/{tmp_path.name}"
    codec = CODECS[file_format][0]
    long = [float(one) for one in range(20_000)]
    for name, rows in (
        ("fits", {"id": [1.0], "day": [2.0]}),
        ("renamed", {"id": [1.0], "date": [2.0]}),
        ("long", {"id": long, "day": long}),
        ("long and renamed", {"id": long, "date": long}),
    ):
        body = content(file_format, rows, codec=codec)
        assert (len(body) > 64 * 1024) is name.startswith("long")
        store.put_object(Bucket="landing", Key=f"{folder}/{name} ü.{file_format}", Body=body)
    fits, renamed, long_one, long_and_renamed = (
        f"s3a://landing/{folder}/{name} ü.{file_format}" for name in ("fits", "renamed", "long", "long and renamed")
    )

    assert [tuple(row) for row in files.read_these(spark, source_of(file_format), settings, [fits]).collect()] == [
        (1.0, 2.0)
    ]
    with pytest.raises(SchemaError, match=rf"s3a://.*/renamed ü\.{file_format} does not have .* day: declared double"):
        files.read_these(spark, source_of(file_format), settings, [fits, renamed])
    assert files.read_these(spark, source_of(file_format), settings, [long_one]).count() == len(long)
    with pytest.raises(SchemaError, match=r"long and renamed ü.* does not have .* day: declared double"):
        files.read_these(spark, source_of(file_format), settings, [long_and_renamed])


@pytest.mark.parametrize("file_format", CODECS)
def test_files_of_another_storage_are_read_through_the_file_systems_of_spark(
    spark: SparkSession, settings: Settings, tmp_path: Path, file_format: str
) -> None:
    spark.conf.set(f"fs.viewfs.mounttable.{file_format}.link./in", tmp_path.as_uri())
    for name, rows in (("fits", {"id": [1.0], "day": [2.0]}), ("renamed", {"id": [1.0], "date": [2.0]})):
        (tmp_path / f"{name}.{file_format}").write_bytes(content(file_format, rows, codec=CODECS[file_format][0]))
    (tmp_path / f"cut.{file_format}").write_bytes(b"none")
    heads = FileHeads(spark, settings)

    def look(name: str) -> None:
        uri = f"viewfs://{file_format}/in/{name}.{file_format}"
        files.require_declared_columns(heads, source_of(file_format), [uri])

    look("fits")
    with pytest.raises(SchemaError, match=r"renamed.* does not have .* day: declared double"):
        look("renamed")
    with pytest.raises(SchemaError, match=rf"cut.* cannot be read: it is no {file_format} file, or damaged"):
        look("cut")
    with pytest.raises(LakehouseError, match=r"absent.* cannot be read"):
        look("absent")


@pytest.mark.parametrize("file_format", CODECS)
@pytest.mark.parametrize("place", ["file", "s3a"])
def test_a_file_that_is_gone_is_not_called_damaged(
    spark: SparkSession, settings: Settings, tmp_path: Path, file_format: str, place: str
) -> None:
    root = tmp_path.as_uri() if place == "file" else f"s3a://landing/{tmp_path.name}"

    with pytest.raises(LakehouseError, match=rf"The file {root}/absent%20one cannot be read: "):
        files.require_declared_columns(FileHeads(spark, settings), source_of(file_format), [f"{root}/absent%20one"])


@pytest.mark.parametrize("file_format", CODECS)
def test_a_column_that_is_only_in_the_path_is_refused_and_not_null(
    spark: SparkSession, settings: Settings, tmp_path: Path, file_format: str
) -> None:
    file = tmp_path / "day=5" / f"a.{file_format}"
    file.parent.mkdir()
    file.write_bytes(content(file_format, {"id": [1.0]}, codec=CODECS[file_format][0]))

    with pytest.raises(SchemaError, match="day: declared double, got the name of a folder, which is no column"):
        files.read_these(spark, source_of(file_format), settings, [f"file://{file}"])
    file.rename(tmp_path / file.name)
    older = files.read_these(spark, source_of(file_format), settings, [(tmp_path / file.name).as_uri()])
    assert [tuple(row) for row in older.collect()] == [(1.0, None)]


LINES = {"json": '{"id": 1.0}', "csv": "id\n1.0"}
WITH_DAY = {"json": '{"id": 1.0, "day": 2.0}', "csv": "id,Day\n1.0,2.0"}
COMPRESSED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda text: pa.compress(text, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize("file_format", LINES)
@pytest.mark.parametrize("ending", COMPRESSED)
def test_lines_without_a_column_that_is_in_the_path_are_refused(
    spark: SparkSession, settings: Settings, tmp_path: Path, file_format: str, ending: str
) -> None:
    """As Spark writes them, for example with `partitionBy`."""
    heads, source = FileHeads(spark, settings), source_of(file_format)

    def look(folder: str, text: str) -> None:
        file = tmp_path / folder / f"a.{file_format}{ending}"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(COMPRESSED[ending](f"{text}\n".encode()))
        files.require_declared_columns(heads, source, [file.as_uri()])

    with pytest.raises(SchemaError, match="day: declared double, got the name of a folder, which is no column"):
        look("Day=5", LINES[file_format])
    look("Day=5", WITH_DAY[file_format])
    look("other=5", LINES[file_format])
    look("Day=5", "" if file_format == "csv" else "{no json")  # which is rejected where it is decoded


def test_a_folder_that_is_read_whole_has_the_rows_that_a_stream_has(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    """A static input and a preview: files in subfolders too, with the values that are in the files."""
    here = settings.model_copy(update={"connections": {"here": FilesConnection(kind="files", root=tmp_path.as_uri())}})
    for place, day in (("a.parquet", 6.0), ("2026/11/b.parquet", 7.0), ("day=5/c.parquet", 8.0)):
        file = tmp_path / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content("parquet", {"id": [1.0], "day": [day]}, codec="none"))

    rows = files.read_static(spark, source_of("parquet"), here)

    assert sorted(tuple(row) for row in rows.collect()) == [(1.0, 6.0), (1.0, 7.0), (1.0, 8.0)]
    (tmp_path / "d.parquet").write_bytes(b"PAR1")
    with pytest.raises(SchemaError) as refused:
        files.read_static(spark, source_of("parquet"), here)
    assert refused.value.next_step == "Write the file again, or move it out of the folder."


ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "a", "type": "string"}]}
SIZE = {"type": "enum", "name": "Size", "symbols": ["S", "L"]}


def test_a_type_that_avro_describes_once_is_that_of_each_field(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "a.avro"
    given = {"one": ADDRESS, "two": ["null", "Address"], "three": SIZE, "four": {"type": "array", "items": "Size"}}
    fields = [{"name": name, "type": kind} for name, kind in given.items()]
    row: dict[str, Any] = {"one": {"a": "x"}, "two": {"a": "y"}, "three": "S", "four": ["L"]}
    with file.open("wb") as opened:
        fastavro.writer(opened, {"type": "record", "name": "r", "fields": fields}, [row])
    kinds = {"one": "struct<a: string>", "two": "struct<a: string>", "three": "string", "four": "list<string>"}
    columns = [{"name": name, "type": kind} for name, kind in kinds.items()]

    (read,) = files.read_these(spark, source_of("avro", columns=columns), settings, [file.as_uri()]).collect()

    assert read.asDict(recursive=True) == row


def test_how_arrow_held_values_in_memory_is_not_the_type_of_a_file(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    """Parquet keeps it in a note, for example for the categories of pandas."""
    file = tmp_path / "a.parquet"
    words = pa.dictionary(pa.int32(), pa.string())
    held: dict[str, tuple[pa.DataType, str, Any]] = {
        "category": (words, "string", "x"),
        "nested": (pa.struct([("a", pa.list_(words))]), "struct<a: list<string>>", {"a": ["x"]}),
        "view": (pa.string_view(), "string", "x"),
        "vector": (pa.list_(pa.float32(), 2), "list<float>", [0.5, 1.5]),
        "price": (pa.decimal64(12, 2), "decimal(12, 2)", Decimal("1.50")),
        "document": (pa.json_(), "string", "{}"),
    }
    arrays = {name: pa.array([value], kind) for name, (kind, _, value) in held.items()}
    parquet.write_table(pa.table(arrays), file)
    columns = [{"name": name, "type": kind} for name, (_, kind, _) in held.items()]

    (read,) = files.read_these(spark, source_of("parquet", columns=columns), settings, [file.as_uri()]).collect()

    assert read.asDict(recursive=True) == {name: value for name, (_, _, value) in held.items()}
