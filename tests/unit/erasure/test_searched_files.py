"""Which files below the folders of a table are Iceberg's own, and which have rows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from sluice.erasure.file_columns import key_of
from sluice.erasure.row_test import condition_of
from sluice.erasure.searched_files import FileSearch, PlacedFile, folders_of, is_within, spoken
from sluice.erasure.stale_metadata import unneeded_files
from sluice.tables.stored_files import StoredFile, StoredFolder


def placed(folder: Path, place: str) -> PlacedFile:
    """A file below a folder."""
    file = StoredFile(place=place, size=1, modified_at=datetime(2026, 1, 1, tzinfo=UTC))
    return PlacedFile(folder=StoredFolder.at(PyArrowFileIO(), folder.as_uri()), file=file)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("metadata/v1.metadata.json", True),
        ("metadata/a-m0.avro", True),
        ("metadata/snap-1-a.avro", True),
        ("metadata/1-a.stats", True),
        ("metadata/partition-stats-1-a.parquet", True),
        ("metadata/a.parquet", False),
        ("data/a.avro", False),
        ("data/a.parquet", False),
        ("data/partition-stats-1-a.parquet", False),
        ("metadata-of-others/a.avro", False),
    ],
)
def test_only_in_the_folder_of_metadata_is_a_file_without_rows(tmp_path: Path, place: str, expected: bool) -> None:
    assert placed(tmp_path, place).is_metadata_in([f"{tmp_path.as_uri()}/metadata"]) is expected


def test_the_trash_is_known_by_its_folder(tmp_path: Path) -> None:
    assert placed(tmp_path, "data/_sluice_trash_x/r/0-a.parquet").is_in_trash
    assert not placed(tmp_path, "data/a_sluice_trash_x/0-a.parquet").is_in_trash


@pytest.mark.parametrize(
    ("place", "folder", "expected"),
    [("s3://a/b", "s3://a/b", True), ("s3://a/b/c", "s3://a/b", True), ("s3://a/bc", "s3://a/b", False)],
)
def test_a_folder_lies_in_another_by_its_whole_name(place: str, folder: str, expected: bool) -> None:
    assert is_within(place, folder) is expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("s3://a/b=c/d.parquet", "/a/b=c/d.parquet"),
        ("s3a://a/b=c/d.parquet", "/a/b=c/d.parquet"),
        ("file:///a/d.parquet", "/a/d.parquet"),
        ("file:/a/d.parquet", "/a/d.parquet"),
        ("/a/d.parquet", "/a/d.parquet"),
    ],
)
def test_a_file_has_one_key_however_engines_spell_it(path: str, expected: str) -> None:
    assert key_of(path) == expected


def test_files_of_one_name_in_two_partitions_are_two(tmp_path: Path) -> None:
    one, other = placed(tmp_path, "data/x=1/part-0.parquet"), placed(tmp_path, "data/x=2/part-0.parquet")
    assert one.name == other.name
    assert one.key != other.key


def test_what_is_said_of_a_file_holds_no_value_of_a_partition(tmp_path: Path) -> None:
    assert "ann" not in placed(tmp_path, "data/mail=ann%40x.org/part-0.parquet").spoken
    assert spoken("s3://a/t/data/mail=ann%40x.org/day=1/p.parquet") == "s3://a/t/data/p.parquet"


def test_checksums_of_hadoop_have_no_rows_and_another_file_may(tmp_path: Path) -> None:
    catalog = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    table = catalog.create_table("a.b", pa.schema([("id", pa.int64())]))
    folder = StoredFolder.at(table.io, table.location())
    for one in (".a.parquet.crc", "b.crc"):
        folder.write(f"data/{one}", b"crc")
    test = condition_of("id = 3", table.schema(), table="a.b")
    assert [one.name for one, _ in FileSearch(test=test).look(table).unread] == ["b.crc"]
    catalog.close()


def test_a_folder_that_is_spelled_in_two_ways_is_searched_once(tmp_path: Path) -> None:
    catalog = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    place = f"file:{tmp_path}/a/b"
    spelled = {"write.data.path": f"{place}/data", "write.metadata.path": f"{place}/metadata"}
    table = catalog.create_table("a.b", pa.schema([("id", pa.int64())]), properties=spelled)
    table.append(pa.table({"id": [3, 4]}))
    assert table.location().startswith("file://")
    found = FileSearch(test=condition_of("id = 3", table.schema(), table="a.b")).look(table)
    assert [rows for _, rows in found.meant] == [1]
    assert len(found.metadata) == len({one.key for one in found.metadata}) == 4
    assert not list(unneeded_files((table,), [one for one in found.metadata if one.name.endswith(".avro")]))
    catalog.close()


def test_each_folder_is_looked_at_with_the_credentials_of_its_own_table(tmp_path: Path) -> None:
    catalog = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    table, staging = (catalog.create_table(f"a.{one}", pa.schema([("id", pa.int64())])) for one in ("b", "s"))
    assert isinstance(table.io, PyArrowFileIO)
    assert isinstance(staging.io, PyArrowFileIO)
    found = {one.location: one.files for one in folders_of(table, [staging])}
    assert list(found) == [table.location(), staging.location()]
    assert found[table.location()] is table.io.fs_by_scheme("file", "")
    assert found[staging.location()] is staging.io.fs_by_scheme("file", "")
    catalog.close()
