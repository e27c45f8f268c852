"""The files of both storages: the same answers to the same questions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.errors import LakehouseError
from sluice.maintenance.stored_files import AnyFiles, Place
from sluice.settings import ObjectStoreSettings
from sluice.tables.catalog import open_catalog

Write = Callable[[Place, bytes], None]


@pytest.fixture(params=["file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[AnyFiles, Place, Write]:
    """The files of a storage, an empty folder, and how a file is written there."""
    if request.param == "file":

        def write(place: Place, content: bytes) -> None:
            file = Path("/", place.path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

        return AnyFiles(ObjectStoreSettings()), Place.at(str(tmp_path)), write
    settings = request.getfixturevalue("services_stack").settings()
    client = s3_client(settings.object_store)
    catalog, namespace = open_catalog(settings), f"n{uuid4().hex[:12]}"
    catalog.create_namespace(namespace)
    table = catalog.create_table(f"{namespace}.rows", schema=Schema(NestedField(1, "id", LongType())))
    folder = Place.at(table.location()).below("data/a=b c%20é")
    files = AnyFiles(settings.object_store)
    return (
        files,
        folder,
        lambda place, content: client.put_object(Bucket=place.bucket, Key=place.path, Body=content) and None,
    )


def test_files_are_listed_copied_and_deleted(storage: tuple[AnyFiles, Place, Write]) -> None:
    files, folder, write = storage
    assert list(files.below(folder)) == []
    assert list(files.folders_in(folder)) == []
    for path in ("one", "deep/er/two", "deep_2/three"):
        write(folder.below(path), path.encode())
    assert {folder.relative(one.place) for one in files.below(folder)} == {"one", "deep/er/two", "deep_2/three"}
    assert {folder.relative(one.place) for one in files.below(folder.below("deep"))} == {"deep/er/two"}
    assert {one.name for one in files.folders_in(folder)} == {"deep", "deep_2"}
    (one,) = files.below(folder.below("deep"))
    assert one.size_bytes == len("deep/er/two")
    assert abs(one.modified_at - datetime.now(UTC)) < timedelta(minutes=5)

    assert files.copy(folder.below("one"), folder.below("_trash/x/one"))
    assert not files.copy(folder.below("none"), folder.below("_trash/x/none"))
    assert files.exists(folder.below("one"))
    files.delete(folder.below("one"))
    files.delete(folder.below("one"))
    assert not files.exists(folder.below("one"))
    assert {folder.relative(one.place) for one in files.below(folder.below("_trash"))} == {"_trash/x/one"}


def test_more_files_than_a_page(storage: tuple[AnyFiles, Place, Write]) -> None:
    files, folder, write = storage
    for number in range(1_001):
        write(folder.below(str(number)), b"")
    assert sum(1 for _ in files.below(folder)) == 1_001


@pytest.mark.parametrize(
    ("location", "place"),
    [
        ("s3a://b/a/b/", Place("s3", "b", "a/b")),
        ("S3://b", Place("s3", "b", "")),
        ("file:///x/../y", Place("file", "", "y")),
        ("file:/y", Place("file", "", "y")),
        ("/y/", Place("file", "", "y")),
        ("gs://b/a", Place("gs", "b", "a")),
    ],
)
def test_one_place_has_many_spellings(location: str, place: Place) -> None:
    assert Place.at(location) == place


def test_another_scheme_is_refused_by_name() -> None:
    with pytest.raises(LakehouseError, match="gs://b/a cannot be listed"):
        AnyFiles(ObjectStoreSettings()).below(Place.at("gs://b/a"))
