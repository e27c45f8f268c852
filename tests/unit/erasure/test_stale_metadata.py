"""Which metadata files nothing needs: never one that a commit under way may still land with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.typedef import Identifier

from sluice.erasure.cut_history import commit_cut, expire_before_cut
from sluice.erasure.file_columns import key_of
from sluice.erasure.row_test import condition_of
from sluice.erasure.searched_files import (
    FileSearch,
    PlacedFile,
    folders_of,
    lies_within,
    listed_keys,
    metadata_folder,
    metadata_folders,
)
from sluice.erasure.stale_metadata import doubts_of, needed_by, needed_elsewhere, stale_metadata, unneeded_files
from sluice.errors import LakehouseError
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.stored_keys import ERASED
from sluice.tables.stored_files import StoredFolder

NOW = datetime.now(UTC) + timedelta(minutes=10)
DAY = timedelta(days=1)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A catalog with files in a folder."""
    catalog = SqlCatalog("stale", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    yield catalog
    catalog.close()


def cut(catalog: SqlCatalog) -> Table:
    """A table whose history begins at a cut, with what an erasure has to delete after that."""
    table = catalog.create_table("a.b", pa.schema([("id", pa.int64())]))
    for one in (1, 2):
        table.append(pa.table({"id": [one]}))
    commit_cut(PyIcebergCommitter(catalog), "a.b", entries=lambda _: {ERASED: "e" * 32})
    table = catalog.load_table("a.b")
    newest = table.current_snapshot()
    assert newest is not None
    expire_before_cut(catalog, table, (newest.snapshot_id,))
    return catalog.load_table("a.b")


def files_of(table: Table, *, cut_at: datetime = NOW) -> list[PlacedFile]:
    """The metadata files of a table, with its cut written at a time."""
    folder = StoredFolder.at(table.io, metadata_folder(table))
    (newest,) = table.snapshots()
    every = [PlacedFile(folder=folder, file=one) for one in folder.below()]
    return [
        replace(one, file=replace(one.file, modified_at=cut_at)) if one.key == key_of(newest.manifest_list) else one
        for one in every
    ]


def names_of(files: Iterator[PlacedFile] | tuple[PlacedFile, ...]) -> set[str]:
    """How they are called."""
    return {one.name for one in files}


def test_an_older_manifest_that_no_state_has_listed_stays_for_a_day(catalog: SqlCatalog) -> None:
    table = cut(catalog)
    folder = StoredFolder.at(table.io, metadata_folder(table))
    (newest,) = table.snapshots()
    folder.write("under-way-m0.avro", folder.read(newest.manifests(table.io)[0].manifest_path.rpartition("/")[2]))
    files, listed = files_of(table), listed_keys((table,))
    young = names_of(stale_metadata((table,), files, needed=(), listed=listed, before=NOW - DAY))
    old = names_of(stale_metadata((table,), files, needed=(), listed=listed, before=NOW + DAY))
    assert old - young == {"under-way-m0.avro"}
    assert len([one for one in young if one.endswith(".avro")]) == 2  # the lists of both appends, at once


def test_whatever_ends_a_deletion_the_rest_is_known_and_due(catalog: SqlCatalog) -> None:
    table = cut(catalog)
    stale = stale_metadata((table,), files_of(table), needed=(), listed=listed_keys((table,)), before=NOW - DAY)
    for number, one in enumerate(stale):
        left = stale_metadata((table,), files_of(table), needed=(), listed=listed_keys((table,)), before=NOW - DAY)
        assert left == stale[number:]
        named = any(it.name.endswith(".avro") for it in left)
        doubts = doubts_of((table,), files_of(table), listed_keys((table,)), folders=[table.location()])
        assert bool(doubts) or not named
        one.folder.delete(one.file.place)
    assert names_of(tuple(files_of(table))) - {table.metadata_location.rpartition("/")[2]} == {
        key.rpartition("/")[2] for key in listed_keys((table,)) if key.endswith(".avro")
    }


def test_data_files_of_earlier_states_are_listed_and_others_are_not(catalog: SqlCatalog) -> None:
    table = catalog.create_table("a.b", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    first = next(iter(table.scan().plan_files())).file.file_path
    table.delete()
    commit_cut(PyIcebergCommitter(catalog), "a.b", entries=lambda _: {ERASED: "e" * 32})
    table = catalog.load_table("a.b")
    newest = table.current_snapshot()
    assert newest is not None
    expire_before_cut(catalog, table, (newest.snapshot_id,))
    listed = listed_keys((catalog.load_table("a.b"),))
    assert key_of(first) in listed
    assert key_of(f"{table.location()}/data/under-way.parquet") not in listed


def test_metadata_of_another_table_in_the_same_folder_stays(catalog: SqlCatalog) -> None:
    table = cut(catalog)
    shared = {"write.metadata.path": metadata_folder(table)}
    other = catalog.create_table("a.c", pa.schema([("id", pa.int64())]), properties=shared)
    other.append(pa.table({"id": [1]}))
    folders = [one.location for one in folders_of(table)]
    assert lies_within(other, folders)
    assert not lies_within(catalog.create_table("a.d", pa.schema([("id", pa.int64())])), folders)
    needed = needed_by(catalog.load_table("a.c"))
    files, listed = files_of(table), listed_keys((table,))
    every = {one.key for one in stale_metadata((table,), files, needed=(), listed=listed, before=NOW + DAY)}
    some = {one.key for one in stale_metadata((table,), files, needed=needed, listed=listed, before=NOW + DAY)}
    assert every & needed
    assert some == every - needed


def test_metadata_of_the_time_before_another_folder_was_declared_is_ours(catalog: SqlCatalog) -> None:
    table = catalog.create_table("a.b", pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1]}))
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.path": f"{table.location()}/later"})
    table.append(pa.table({"id": [2]}))
    table = catalog.load_table("a.b")
    places = metadata_folders(table)
    every = [
        PlacedFile(folder=folder, file=one)
        for folder in folders_of(table)
        for one in folder.below()
        if not one.name.endswith(".parquet")
    ]
    assert {one.path.rpartition("/")[0] for one in every} == set(places)
    assert all(one.is_metadata_in(places) for one in every)
    test = condition_of("id = 3", table.schema(), table="a.b")
    assert FileSearch(test=test).look(table).unread == ()
    folder = StoredFolder.at(table.io, places[1])
    folder.write("dead-m0.avro", b"")
    (dead,) = (one for one in folder.below() if one.name == "dead-m0.avro")
    file = PlacedFile(folder=folder, file=dead)
    assert list(unneeded_files((table,), [file])) == [file]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"format-version": 99}'])
def test_an_earlier_metadata_file_that_cannot_be_read_may_name_any_snapshot(
    catalog: SqlCatalog, content: bytes
) -> None:
    table = cut(catalog)
    folder, harmless = StoredFolder.at(table.io, metadata_folder(table)), listed_keys((table,))
    for one in files_of(table):
        if one.key != key_of(table.metadata_location) and one.name.endswith(".json"):
            one.folder.delete(one.file.place)
    assert doubts_of((table,), files_of(table), harmless, folders=[table.location()]).earlier == ()
    earlier = table.metadata.metadata_log[0].metadata_file.rpartition("/")[2]
    folder.write(earlier, content)
    (doubtful,) = doubts_of((table,), files_of(table), harmless, folders=[table.location()]).earlier
    assert doubtful.name == earlier
    stale = stale_metadata((table,), files_of(table), needed=(), listed=listed_keys((table,)), before=NOW - DAY)
    assert earlier in names_of(stale)


def test_what_another_of_the_tables_needs_stays_where_their_metadata_lies_in_one_folder(catalog: SqlCatalog) -> None:
    table = cut(catalog)
    shared = {"write.metadata.path": metadata_folder(table)}
    other = catalog.create_table("a.c", pa.schema([("id", pa.int64())]), properties=shared)
    for one in range(4):
        other.append(pa.table({"id": [one]}))
    both, listed = (table, catalog.load_table("a.c")), listed_keys((table, other))
    stale = stale_metadata(both, files_of(table), needed=(), listed=listed, before=NOW + DAY)
    assert {one.key for one in stale}.isdisjoint(needed_by(table) | needed_by(both[1]))
    assert stale


def test_statistics_that_lie_elsewhere_are_named(catalog: SqlCatalog, tmp_path: Path) -> None:
    table = cut(catalog)
    (newest,) = table.snapshots()
    (tmp_path / "away.stats").write_bytes(b"PFA1")
    away = (tmp_path / "away.stats").as_uri()
    with table.update_statistics() as update:
        update.set_statistics(
            StatisticsFile(
                snapshot_id=newest.snapshot_id,
                statistics_path=away,
                file_size_in_bytes=4,
                file_footer_size_in_bytes=4,
                blob_metadata=[],
            )
        )
    table = catalog.load_table("a.b")
    doubts = doubts_of((table,), files_of(table), listed_keys((table,)), folders=[table.location()])
    assert doubts.outside == (away,)


class Clearing(SqlCatalog):
    """A catalog whose staging table is cleared as often as it is loaded, some times, by the stream that owns it."""

    left = 0

    def load_table(self, identifier: str | Identifier) -> Table:
        """The table, of which the metadata goes right after."""
        table = super().load_table(identifier)
        if table.name()[-1] == "s__main" and self.left:
            left, self.left = self.left - 1, 0  # an append loads the table, too
            super().load_table(identifier).append(pa.table({"id": [1]}))
            newest = super().load_table(identifier).current_snapshot()
            assert newest is not None
            expire_before_cut(self, super().load_table(identifier), (newest.snapshot_id,))
            for snapshot in table.snapshots():
                table.io.delete(snapshot.manifest_list)
            self.left = left
        return table


@pytest.mark.parametrize(("times", "is_read"), [(0, True), (3, True), (9, False)])
def test_a_table_that_is_cleared_meanwhile_is_read_again(tmp_path: Path, times: int, is_read: bool) -> None:
    catalog = Clearing("cleared", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    catalog.create_table("a.s__main", pa.schema([("id", pa.int64())])).append(pa.table({"id": [0]}))
    catalog.left = times
    if is_read:
        found = needed_elsewhere(catalog, "a.b")
        catalog.left = 0
        assert found == needed_by(catalog.load_table("a.s__main"))
    else:
        with pytest.raises(LakehouseError, match=r"manifests of a\.s__main"):
            needed_elsewhere(catalog, "a.b")
    catalog.close()
