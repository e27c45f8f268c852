"""Which files below the folders of a table are Iceberg's own, and which have rows."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from sluice.erasure.searched_files import PlacedFile, is_within
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
