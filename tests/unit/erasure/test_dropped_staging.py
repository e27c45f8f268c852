"""What dropped staging tables have left, and what may be of another catalog."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from sluice.erasure.judged_metadata import DroppedStaging, dropped_staging, is_denied
from sluice.errors import LakehouseError
from sluice.stored_keys import STAGING_TARGET, STAGING_TARGET_UUID
from sluice.tables.stored_files import StoredFolder

NUMBERS = pa.schema([("id", pa.int64())])


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A catalog with files in a folder."""
    catalog = SqlCatalog("ours", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    for one in ("d", "staging"):
        catalog.create_namespace(one)
    yield catalog
    catalog.close()


def dropped(catalog: SqlCatalog, target: Table, properties: dict[str, str], *, is_beside: bool = False) -> str:
    """A table that the catalog does not know any more; its folder. is_beside: its data lies in the target's folder."""
    data = {"write.data.path": f"{target.location()}/data"} if is_beside else {}
    staging = catalog.create_table("staging.s__main", NUMBERS, properties=properties | data)
    staging.append(pa.table({"id": [1]}))
    place = f"{staging.location()}/metadata"
    catalog.drop_table("staging.s__main")
    return place


def found(catalog: SqlCatalog, target: Table) -> list[tuple[str, bool]]:
    """The folders of what was left, and whether it may be of another catalog."""
    warehouse = catalog.properties["warehouse"]
    every: tuple[DroppedStaging, ...] = dropped_staging(catalog, target, (), warehouse=warehouse)
    assert all(one.is_doubtful for one in every)
    return [(one.place, one.is_foreign) for one in every]


@pytest.mark.parametrize("is_beside", [False, True])
@pytest.mark.parametrize("has_id", [False, True])
def test_a_staging_table_is_known_by_its_target(catalog: SqlCatalog, is_beside: bool, has_id: bool) -> None:
    target = catalog.create_table("d.t", NUMBERS)
    known = {STAGING_TARGET_UUID: str(target.metadata.table_uuid)} if has_id else {}
    place = dropped(catalog, target, {STAGING_TARGET: "d.t"} | known, is_beside=is_beside)
    assert found(catalog, target) == [(place, False)]


def test_the_staging_table_of_a_target_of_the_same_name_is_not_taken_for_ours(catalog: SqlCatalog) -> None:
    target = catalog.create_table("d.t", NUMBERS)
    dropped(catalog, target, {STAGING_TARGET: "d.t", STAGING_TARGET_UUID: "another"})
    assert found(catalog, target) == []


@pytest.mark.parametrize("properties", [{}, {STAGING_TARGET: "d.t", STAGING_TARGET_UUID: "another"}])
def test_a_table_of_another_catalog_that_names_our_files_is_foreign(
    catalog: SqlCatalog, properties: dict[str, str]
) -> None:
    target = catalog.create_table("d.t", NUMBERS)
    place = dropped(catalog, target, properties, is_beside=True)
    assert found(catalog, target) == [(place, True)]


def test_manifests_that_are_left_without_metadata_files_are_ours_by_their_files(catalog: SqlCatalog) -> None:
    target = catalog.create_table("d.t", NUMBERS)
    place = dropped(catalog, target, {STAGING_TARGET: "d.t"}, is_beside=True)
    folder = StoredFolder.at(target.io, place)
    for file in list(folder.below()):
        if file.name.endswith(".json"):
            folder.delete(file.place)
    assert found(catalog, target) == [(place, False)]


def test_only_the_beginning_of_a_folder_is_the_namespace(catalog: SqlCatalog, tmp_path: Path) -> None:
    target = catalog.create_table("d.t", NUMBERS, location=f"{tmp_path.as_uri()}/other/d.db/t")
    properties = {STAGING_TARGET: "d.t"}
    staging = catalog.create_table(
        "staging.s__main", NUMBERS, location=f"{tmp_path.as_uri()}/other/staging.db/s", properties=properties
    )
    staging.append(pa.table({"id": [1]}))
    catalog.drop_table("staging.s__main")
    assert found(catalog, target) == [(f"{staging.location()}/metadata", False)]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (OSError("AWS Error ACCESS_DENIED during ListObjectsV2 operation: Access Denied."), True),
        (PermissionError("no"), True),
        (OSError("AWS Error NETWORK_CONNECTION during ListObjectsV2 operation"), False),
        (ValueError("ACCESS_DENIED"), False),
    ],
)
def test_a_store_that_does_not_answer_has_denied_nothing(cause: Exception, expected: bool) -> None:
    error = LakehouseError("Cannot list the files.")
    error.__cause__ = cause
    assert is_denied(error) is expected


@pytest.mark.skipif(os.geteuid() == 0, reason="root may look at every folder")
def test_a_folder_that_may_not_be_looked_at_is_named(catalog: SqlCatalog, tmp_path: Path) -> None:
    target = catalog.create_table("d.t", NUMBERS)
    (tmp_path / "quarantine").mkdir(mode=0)
    (only,) = dropped_staging(catalog, target, (), warehouse=tmp_path.as_uri())
    assert (only.is_denied, only.place) == (True, f"{tmp_path.as_uri()}/quarantine")


@pytest.mark.parametrize("content", [b"", b'{"format-version": 99, "location": "x"}', b"\xff"])
def test_metadata_that_cannot_be_read_may_be_of_a_table_of_another_catalog(catalog: SqlCatalog, content: bytes) -> None:
    target = catalog.create_table("d.t", NUMBERS)
    place = dropped(catalog, target, {STAGING_TARGET: "d.t"}, is_beside=True)
    folder = StoredFolder.at(target.io, place)
    folder.write("00009-later.metadata.json", content)
    assert found(catalog, target) == [(place, True)]
    for file in list(folder.below()):
        if not file.name.endswith(".avro"):
            folder.delete(file.place)
    folder.write("00009-later.metadata.json.gz" if content else "00009-later.gz.metadata.json", content)
    assert found(catalog, target) == [(place, True)]


def test_metadata_that_cannot_be_read_and_names_no_file_of_ours_is_passed_over(catalog: SqlCatalog) -> None:
    target = catalog.create_table("d.t", NUMBERS)
    place = dropped(catalog, target, {})
    StoredFolder.at(target.io, place).write("00009-later.metadata.json", b"no table")
    assert found(catalog, target) == []
