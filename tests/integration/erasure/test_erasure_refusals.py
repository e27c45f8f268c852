"""What blocks an erasure, and what lifts that; and what must not be touched meanwhile. No Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFileContent
from tests.fixtures.delete_files import add_delete_file
from tests.fixtures.erasing import ANN, Died, Dying, Household, home

from sluice.errors import LakehouseError, UnhealthyError, UnpublishableError, UsageError
from sluice.ledger.locks import maintenance_lock
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import admit_run
from sluice.ledger.table_writers import LONGEST_WRITE
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.operations import RefusalReason
from sluice.publication.crash_points import CrashPoint
from sluice.publication.data_files import data_folder
from sluice.publication.mark_moves import reject_batch
from sluice.tables.stored_files import StoredFolder

__all__ = ["home"]


def refused(home: Household) -> list[RefusalReason]:
    """Why nothing is erased now; each refusal has a next step, and nothing was changed."""
    before = home.table().metadata_location
    plan = home.erasure().plan()
    if plan.refusals:
        with pytest.raises(UnpublishableError):
            home.erasure().erase()
    assert all(one.next_step for one in plan.refusals)
    assert home.table().metadata_location == before
    return [one.reason for one in plan.refusals]


def test_a_writer_that_runs_or_is_to_run(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    assert refused(home) == []
    home.ask(home.writer, DesiredState.RUNNING)
    assert refused(home) == [RefusalReason.NOT_AT_REST]
    home.ask(home.writer, DesiredState.STOPPED)
    admit_run(home.ledger, stream=home.writer, mode="incremental", declaration_digest="d", launched_by="a test")
    assert refused(home) == [RefusalReason.NOT_AT_REST]


@pytest.mark.full  # test_erased_metadata has one that is staged meanwhile
def test_a_staged_batch_until_it_is_decided(home: Household, tmp_path: Path) -> None:
    home.declare()
    driver = home.bench
    driver.begin()
    batch = driver.stage(0, [1], kind=ANN)
    home.append(("Bob", 2))
    assert refused(home) == [RefusalReason.BATCH_HELD]
    reject_batch(driver.catalog, driver.output, batch, token=driver.run)
    driver.clear()
    home.erasure().erase()
    assert home.raw(tmp=tmp_path) == [("Bob", 2)]


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_rows_hidden_by_delete_files(home: Household) -> None:
    home.declare(partitioning=[{"column": "kind"}])
    home.append((ANN, 1), ("Bob", 2))
    add_delete_file(home.table())
    assert refused(home) == [RefusalReason.DELETE_FILES]
    (refusal,) = home.erasure().plan().refusals
    assert "rewrite_data_files" in refusal.next_step


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_equality_deletes(home: Household) -> None:
    home.declare(partitioning=[{"column": "kind"}])
    home.append((ANN, 1), ("Bob", 2))
    add_delete_file(home.table(), kind=DataFileContent.EQUALITY_DELETES)
    assert RefusalReason.DELETE_FILES in refused(home)


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_a_reader_that_stops_at_an_overwrite(home: Household) -> None:
    home.declare(reads="fail")
    home.append((ANN, 1), ("Bob", 2))
    home.read_up_to(home.head(), files=1)
    assert refused(home) == [RefusalReason.READER_STOPS]
    home.declare(reads="skip")
    assert refused(home) == []


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_a_reader_whose_position_is_unknown(home: Household) -> None:
    home.declare(reads="skip")
    home.append((ANN, 1), ("Bob", 2))
    home.read_up_to(home.head(), files=1)
    (home.folder / "ck").rename(home.folder / "away")
    (home.folder / "ck").write_text("no folder")
    assert refused(home) == [RefusalReason.NOT_PROVABLE]


def test_a_stream_whose_declaration_cannot_be_read(home: Household) -> None:
    home.declare(reads="skip")
    home.append((ANN, 1), ("Bob", 2))
    (home.folder / f"{home.reader}.stream.yaml").write_text(f"stream: {home.reader}\nmode: sometimes\n")
    assert refused(home) == [RefusalReason.NOT_AT_REST]


@pytest.mark.full  # every run: one where no row is found
def test_a_file_that_cannot_be_searched(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    folder = StoredFolder.at(home.table().io, data_folder(home.table().metadata))
    folder.write("torn.parquet", b"PAR1 half a file")
    assert refused(home) == [RefusalReason.NOT_PROVABLE]
    folder.delete("torn.parquet")
    assert refused(home) == []


def test_a_torn_file_also_where_no_row_is_found(home: Household) -> None:
    home.declare()
    home.append(("Bob", 2))
    folder = StoredFolder.at(home.table().io, data_folder(home.table().metadata))
    folder.write("torn.parquet", b"PAR1 half a file")
    assert refused(home) == [RefusalReason.NOT_PROVABLE]


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_a_branch_with_commits_of_its_own(home: Household) -> None:
    home.declare()
    home.append(("Bob", 2))
    home.branch("mine", home.append((ANN, 1)))
    assert refused(home) == []
    table = home.table()
    table.append(table.scan().to_arrow(), branch="mine")
    assert refused(home) == [RefusalReason.OTHER_WRITERS]


@pytest.mark.full  # every run: one that does so meanwhile
def test_another_table_that_refers_to_such_a_file(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    other = home.bench.catalog.load_table(f"{home.writer}.copies")
    other.add_files([task.file.file_path for task in home.table().scan().plan_files()], check_duplicate_files=False)
    assert refused(home) == [RefusalReason.OTHER_WRITERS]


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_every_row_only_with_a_word_for_it(home: Household, tmp_path: Path) -> None:
    home.declare()
    home.append((ANN, 1), (ANN, 2))
    assert refused(home) == [RefusalReason.EVERY_ROW]
    home.erasure(every_row=True).erase()
    assert home.rows() == []
    assert home.raw(tmp=tmp_path) == []


def test_another_plan_than_was_shown(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    shown = home.erasure().plan().digest
    home.append((ANN, 3))
    with pytest.raises(UsageError, match="out of date"):
        home.erasure().erase(planned=shown)
    assert len(home.rows()) == 3


def test_a_table_under_maintenance(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    with maintenance_lock(home.ledger, home.name), pytest.raises(Exception, match="maintenance"):
        home.erasure().erase()
    assert len(home.rows()) == 2


@pytest.mark.full  # every run: one that comes later (`test_erasure_races.py`)
def test_a_writer_that_comes_in_between_wins(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))

    def write(point: CrashPoint) -> None:
        if point is CrashPoint.COMPUTED:
            home.append((ANN, 3))

    with pytest.raises(CommitConflictError, match="was written while rows were taken out"):
        home.erasure(reached=write).erase()
    assert len(home.rows()) == 3
    home.erasure().erase()
    assert home.rows() == [("Bob", 2)]


def test_a_table_that_refers_to_a_file_meanwhile_keeps_it(home: Household, tmp_path: Path) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    paths = [task.file.file_path for task in home.table().scan().plan_files()]

    def take(point: CrashPoint) -> None:
        if point is CrashPoint.RECORDED:
            other = home.bench.open_catalog().load_table(f"{home.writer}.copies")
            other.add_files(paths, check_duplicate_files=False)

    with pytest.raises(LakehouseError, match=r"Meanwhile .*copies refers to 1 files"):
        home.erasure(reached=take).erase()
    assert (ANN, 1) in home.raw(tmp=tmp_path)


def test_a_file_that_is_written_meanwhile_is_found_at_the_end(home: Household, tmp_path: Path) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))

    def leave(point: CrashPoint) -> None:
        if point is CrashPoint.RECORDED:
            home.leave((ANN, 9))

    with pytest.raises(UnhealthyError, match=r"1 files are left.*holds 1 such rows"):
        home.erasure(reached=leave).erase()
    home.erasure().erase()
    assert home.raw(tmp=tmp_path) == [("Bob", 2)]


@pytest.mark.full  # every run: `test_stale_metadata.py`
@pytest.mark.parametrize("is_known", [True, False])
def test_what_a_commit_under_way_has_written_stays(home: Household, is_known: bool) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    folder = StoredFolder.at(home.table().io, f"{home.table().location()}/metadata")

    def prepare(point: CrashPoint) -> None:
        newest = home.table().current_snapshot()
        if point is CrashPoint.RECORDED and newest is not None:
            manifest = newest.manifests(home.table().io)[0].manifest_path.rpartition("/")[2]
            folder.write("of-a-commit-under-way-m0.avro", folder.read(manifest) if is_known else b"Obj\x01")

    if is_known:
        home.erasure(reached=prepare).erase()
    else:
        with pytest.raises(UnhealthyError, match=r"1 manifests of .* may name values of such rows"):
            home.erasure(reached=prepare).erase()
    assert folder.size_of("of-a-commit-under-way-m0.avro")


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_rows_that_a_commit_under_way_may_list_are_not_deleted(home: Household, tmp_path: Path) -> None:
    home.declare()
    home.append(("Bob", 2))
    home.leave((ANN, 1))
    plan = home.erasure(longest_commit=LONGEST_WRITE).plan()
    assert [one.reason for one in plan.refusals] == [RefusalReason.NOT_AT_REST]
    assert home.raw(tmp=tmp_path) == [(ANN, 1), ("Bob", 2)]
    assert refused(home) == []


def test_a_catalog_that_was_set_back(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    table = home.table()
    folder = StoredFolder.at(table.io, f"{table.location()}/metadata")
    newest = table.metadata_location.rpartition("/")[2]
    later = re.sub(r"\d+", lambda number: f"{int(number[0]) + 5:0{len(number[0])}d}", newest, count=1)
    folder.write(later, folder.read(newest))
    assert refused(home) == [RefusalReason.CATALOG_BEHIND]


def test_nothing_is_done_where_nothing_is_found(home: Household) -> None:
    home.declare()
    home.append(("Bob", 2))
    before = home.table().metadata_location
    done = home.erasure().erase()
    assert (done.deleted_files, done.rows["live"], done.searched) == (0, 0, 1)
    assert home.table().metadata_location == before


@pytest.mark.full  # every run: a later one (`test_erasures.py`)
def test_a_death_before_anything_leaves_everything(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    with pytest.raises(Died):
        home.erasure(reached=Dying(CrashPoint.BEGUN)).erase()
    assert len(home.rows()) == 2
