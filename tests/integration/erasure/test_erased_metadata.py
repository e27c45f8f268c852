"""Manifests that tell of rows that are gone keep an erasure due until they are gone, too. No Spark."""

from __future__ import annotations

from copy import deepcopy
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from tests.fixtures.drill import sampled
from tests.fixtures.erasing import ANN, Died, Dying, Household, home
from tests.integration.erasure.test_erasure_refusals import refused

from sluice.erasure import judged_metadata
from sluice.errors import LakehouseError, UnhealthyError
from sluice.ledger.table_writers import LONGEST_WRITE
from sluice.operations import RefusalReason
from sluice.publication.crash_points import CrashPoint
from sluice.publication.data_files import Writer, data_folder
from sluice.publication.staging_layout import (
    BACKFILL_NAMESPACE,
    create_staging_copy,
    drop_staging_copy,
    empty_staging_table,
)
from sluice.publication.staging_table import load_staging_table
from sluice.tables.stored_files import StoredFolder

__all__ = ["home"]


def places_with_ann(home: Household, *places: str) -> set[str]:
    """The files below the folders of the table, and below others, in which her name stands."""
    found = {path for path, content in home.files(home.name) if holds_ann(content, path)}
    for place in places:
        folder = StoredFolder.at(home.table().io, place)
        found |= {file.place for file in folder.below() if holds_ann(folder.read(file.place), file.place)}
    return found


def holds_ann(content: bytes, path: str) -> bool:
    """Whether her name stands in a file; manifests are compressed."""
    if not path.endswith(".avro"):
        return ANN.encode()[:8] in content
    return ANN.encode()[:8].decode() in str(list(fastavro.reader(BytesIO(content))))


def delete_and_expire(home: Household) -> None:
    """Her rows are deleted as SQL does it, and the old snapshots and files are gone, as by any other engine."""
    old = home.table()
    files = [task.file.file_path for task in old.scan().plan_files()]
    old.delete("id = 1")
    home.bench.expire_all_but_the_newest()
    live = {task.file.file_path for task in home.table().scan().plan_files()}
    for path in set(files) - live:
        home.table().io.delete(path)


def manifest(table: Table) -> Any:
    """The newest manifest of a table."""
    newest = table.current_snapshot()
    assert newest is not None
    return newest.manifests(table.io)[0]


@pytest.mark.parametrize("times", sampled(range(1, 9), [5], full=range(1, 9)))
@pytest.mark.full  # test_erasures has a killed erasure
def test_a_death_between_deletions_leaves_something_to_do(home: Household, times: int) -> None:
    """The bounds of a removed file are still listed."""
    home.declare()
    home.append((ANN, 1))
    home.append(("Bob", 2))
    delete_and_expire(home)
    seen = home.erasure().plan().seen
    assert (seen.meant, seen.is_due) == ((), True)
    try:
        home.erasure(reached=Dying(CrashPoint.CLEARED, times), longest_commit=LONGEST_WRITE).erase()
    except Died:
        home.erasure(longest_commit=LONGEST_WRITE).erase()
    table = home.table()
    folder = StoredFolder.at(table.io, f"{table.location()}/metadata")
    assert sorted(file.name.rpartition(".")[2] for file in folder.below()) == ["avro", "avro", "json"]
    assert not home.erasure().plan().seen.is_due
    assert (home.rows(), len(table.snapshots())) == ([("Bob", 2)], 1)


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_a_finished_erasure_and_a_commit_are_no_reason_for_another(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    home.erasure().erase()
    home.append(("Carl", 3))
    home.append(("Eve", 4))
    home.bench.compact()
    assert not home.erasure().plan().seen.is_due
    before = home.table().metadata_location
    home.erasure("kind = 'Frank'").erase()
    assert home.table().metadata_location == before


@pytest.mark.full  # every run: a file whose bounds are still listed
def test_a_manifest_of_a_dead_writer_that_is_younger_than_the_cut(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    home.erasure().erase()
    first = home.head()
    home.append((ANN, 3))
    folder = StoredFolder.at(home.table().io, f"{home.table().location()}/metadata")
    of_dead = manifest(home.table()).manifest_path.rpartition("/")[2]
    kept = folder.read(of_dead)
    home.erasure().erase()
    second = home.head()
    assert second != first
    folder.write("dead-m0.avro", kept)
    assert home.erasure().plan().seen.is_due
    home.erasure().erase()
    assert folder.size_of("dead-m0.avro") is None
    assert home.head() != second
    assert not home.erasure().plan().seen.is_due


@pytest.mark.full  # every run: `test_stale_metadata.py`
def test_metadata_between_the_cut_and_now_that_is_on_no_list_any_more(home: Household) -> None:
    home.declare()
    table = home.table()
    with table.transaction() as transaction:
        transaction.set_properties({"write.metadata.previous-versions-max": "1"})
    home.append((ANN, 1), ("Bob", 2))
    for one in range(3, 6):
        home.append(("Bob", one))
    folder = StoredFolder.at(home.table().io, f"{home.table().location()}/metadata")

    def write(point: CrashPoint) -> None:
        if point is CrashPoint.COMMITTED:
            for one in range(3):
                with home.table().transaction() as transaction:
                    transaction.set_properties({"a": str(one)})

    home.erasure(reached=write).erase()
    assert [file.name for file in folder.below() if file.name.endswith(".json")] == [
        home.table().metadata_location.rpartition("/")[2]
    ]


@pytest.mark.full  # every run cuts one with batches (`test_erasures.py`)
def test_a_staging_table_without_snapshots(home: Household) -> None:
    home.declare()
    home.bench.begin()
    home.bench.publish(home.bench.stage(0, [1], kind=ANN))
    home.append(("Bob", 2))
    empty_staging_table(home.bench.catalog, home.bench.output.staging)
    home.erasure().erase()
    assert places_with_ann(home) == set()
    assert not home.erasure().plan().seen.is_due
    assert home.bench.as_run(2).begin().batch == 0


def test_a_batch_that_is_staged_meanwhile_stays(home: Household) -> None:
    home.declare()
    home.bench.begin()
    home.bench.publish(home.bench.stage(0, [1], kind=ANN), home.bench.stage(1, [2], kind="Bob"))
    home.bench.clear()

    def stage(point: CrashPoint) -> None:
        if point is CrashPoint.PUBLISHED:
            home.bench.stage(2, [3], kind="Carl")

    with pytest.raises(LakehouseError, match="was written while its history was cut"):
        home.erasure(reached=stage).erase()
    assert [one.summary.key.batch for one in home.bench.staged()] == [2]
    assert len(load_staging_table(home.bench.catalog, home.bench.output).snapshots()) > 1


def elsewhere(home: Household) -> str:
    """The folder of another table: some stores take files for no other place."""
    return data_folder(home.bench.catalog.load_table(f"{home.writer}.copies").metadata)


@pytest.mark.full  # other files of the folders are in every run
def test_a_live_file_outside_of_the_folders(home: Household, tmp_path: Path) -> None:
    home.declare()
    home.append(("Bob", 2))
    table = home.table()
    assert isinstance(table.io, PyArrowFileIO)
    away = f"{elsewhere(home)}/a.parquet"
    pq.write_table(pa.table({"kind": [ANN], "id": [1]}), tmp_path / "a.parquet")
    with table.io.new_output(away).create() as sink:
        sink.write((tmp_path / "a.parquet").read_bytes())
    table.add_files([away])
    assert refused(home) == [RefusalReason.NOT_PROVABLE]
    home.table().delete("id = 1")
    assert refused(home) == [RefusalReason.NOT_PROVABLE]


def replaced(file: DataFile, path: str) -> DataFile:
    """The entry of a copy of a file."""
    copy = deepcopy(file)
    copy[1] = path
    return copy


@pytest.mark.full  # test_erasure_refusals has a file that is written meanwhile
def test_a_file_that_comes_to_lie_outside_meanwhile_is_noticed(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    copy = f"{elsewhere(home)}/a.parquet"
    io = home.table().io

    def add(point: CrashPoint) -> None:
        if point is CrashPoint.CLEARED and not io.new_input(copy).exists():
            live = next(iter(home.table().scan().plan_files())).file.file_path
            with io.new_output(copy).create() as sink, io.new_input(live).open() as source:
                sink.write(source.read())
            with home.table().transaction() as transaction, transaction.update_snapshot().fast_append() as append:
                append.append_data_file(replaced(next(iter(home.table().scan().plan_files())).file, copy))

    with pytest.raises(UnhealthyError, match="lies where nothing was searched"):
        home.erasure(reached=add).erase()


def dropped(home: Household) -> str:
    """A staging table of a backfill with her rows, dropped as backfills do it; its folder."""
    name = f"{BACKFILL_NAMESPACE}.{home.writer}"
    writer = Writer.of_run(7)
    create_staging_copy(home.bench.catalog, name, target=home.name, writer=writer)
    staging = home.bench.catalog.load_table(name)
    staging.append(pa.Table.from_pylist([{"kind": ANN, "id": 9}], staging.schema().as_arrow()))
    place = staging.location()
    for task in staging.refresh().scan().plan_files():
        staging.io.delete(task.file.file_path)
    drop_staging_copy(home.bench.catalog, name)
    return place


def test_metadata_of_a_dropped_staging_table(home: Household, monkeypatch: pytest.MonkeyPatch) -> None:
    home.declare()
    home.append(("Bob", 2))
    place = dropped(home)
    if not list(StoredFolder.at(home.table().io, place).below()):  # a catalog that deletes what it drops
        assert refused(home) == []
        return
    assert refused(home) == [RefusalReason.NOT_AT_REST]
    monkeypatch.setattr(judged_metadata, "_BEING_CREATED", timedelta(0))
    assert places_with_ann(home, place)
    home.erasure().erase()
    assert places_with_ann(home, place) == set()
    assert list(StoredFolder.at(home.table().io, place).below()) == []
    assert home.rows() == [("Bob", 2)]


@pytest.mark.full  # every run: `test_stale_metadata.py`
def test_metadata_of_a_staging_table_that_is_there_again_stays(
    home: Household, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judged_metadata, "_BEING_CREATED", timedelta(0))
    home.declare()
    home.append(("Bob", 2))
    dropped(home)
    name = f"{BACKFILL_NAMESPACE}.{home.writer}"

    def again(point: CrashPoint) -> None:
        if point is CrashPoint.RECORDED:
            create_staging_copy(home.bench.catalog, name, target=home.name, writer=Writer.of_run(8))

    home.erasure(f"kind = '{ANN}' or id = 2".replace("O'B", "O''B"), every_row=True, reached=again).erase()
    assert home.bench.open_catalog().load_table(name).schema().fields


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_a_live_file_that_cannot_be_written_again_is_refused_before_anything(home: Household, tmp_path: Path) -> None:
    home.declare()
    home.append(("Bob", 2))
    table = home.table()
    inside = f"{data_folder(table.metadata)}/a.parquet"
    pq.write_table(pa.table({"kind": [ANN], "id": [1]}), tmp_path / "a.parquet")
    with table.io.new_output(inside).create() as sink:
        sink.write((tmp_path / "a.parquet").read_bytes())
    table.add_files([inside])
    assert refused(home) == [RefusalReason.NOT_YET]
    (refusal,) = home.erasure().plan().refusals
    assert "rewrite_data_files" in (refusal.next_step or "")


@pytest.mark.full  # every run: `test_searched_files.py`
def test_a_file_of_the_same_name_in_another_table_is_another_file(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    live = next(iter(home.table().scan().plan_files())).file
    other = home.bench.catalog.load_table(f"{home.writer}.copies")
    copy = f"{elsewhere(home)}/{live.file_path.rpartition('/')[2]}"
    with other.io.new_output(copy).create() as sink, home.table().io.new_input(live.file_path).open() as source:
        sink.write(source.read())
    with other.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        append.append_data_file(replaced(live, copy))
    assert refused(home) == []
    home.erasure().erase()
    assert home.bench.open_catalog().load_table(f"{home.writer}.copies").scan().to_arrow().num_rows == 2
