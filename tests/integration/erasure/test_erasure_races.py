"""What others do while an erasure searches, which takes long, or right before it deletes: nothing of theirs is lost. No
Spark."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from tests.fixtures.erasing import ANN, Household, home

from sluice.erasure import erase_table
from sluice.erasure.row_test import condition_of
from sluice.erasure.searched_files import FileSearch, Found, listed_keys
from sluice.errors import LakehouseError, UnpublishableError
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, record_end, record_process
from sluice.ledger.table_writers import LONGEST_WRITE
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.maintenance.needed_files import OtherTable, other_tables
from sluice.operations import RefusalReason
from sluice.processes.host_processes import identity_of
from sluice.publication.crash_points import CrashPoint
from sluice.publication.data_files import Writer, folder_of
from sluice.publication.staging_table import load_staging_table

__all__ = ["home"]

OF_PASSING = 2
"""The search of an erasure after which it looks whether every reader has passed the cut; the first is the plan's."""


@dataclass(slots=True, kw_only=True)
class Interrupted(FileSearch):
    """A search during one of which something happens. at: which. does: what."""

    at: int
    does: Callable[[], object]
    searches: int = 0

    def look(self, table: Table, others: Iterable[Table] = (), *, afresh: bool = False) -> Found:
        """Search all files of a table."""
        found = FileSearch.look(self, table, others, afresh=afresh)
        self.searches += 1
        if self.searches == self.at:
            self.does()
        return found


def interrupted(home: Household, does: Callable[[], object], *, at: int = OF_PASSING) -> None:
    """Erase, while something is done during a search."""
    test = condition_of(f"kind = '{ANN.replace(chr(39), chr(39) * 2)}'", home.table().schema(), table=home.name)
    replace(home.erasure(), search=Interrupted(test=test, at=at, does=does)).erase()


def live(home: Household) -> tuple[DataFile, ...]:
    """The files of the newest snapshot."""
    return tuple(task.file for task in home.table().scan().plan_files())


@pytest.mark.full  # every run: one that comes right behind it
def test_a_tag_that_comes_during_the_last_search_before_expiry_stays(home: Household) -> None:
    home.declare()
    first = home.append(("Bob", 2))
    home.append((ANN, 1))
    with pytest.raises(CommitConflictError, match="seen may need a snapshot"):
        interrupted(home, lambda: home.tag("seen", first))
    assert home.table().metadata.refs["seen"].snapshot_id == first
    assert home.table().scan(snapshot_id=first).to_arrow().num_rows == 1
    home.erasure().erase()
    assert home.rows() == [("Bob", 2)]


def test_a_tag_that_comes_while_all_manifests_are_read_before_expiry_stays(
    home: Household, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.declare()
    first = home.append(("Bob", 2))
    home.append((ANN, 1))
    once = first_time(lambda: home.tag("seen", first))
    monkeypatch.setattr(erase_table, "listed_keys", lambda tables: (once(), listed_keys(tables))[1])
    with pytest.raises(CommitConflictError, match="seen may need a snapshot"):
        home.erasure().erase()
    assert home.table().scan(snapshot_id=home.table().metadata.refs["seen"].snapshot_id).to_arrow().num_rows == 1


@pytest.mark.full  # every run: before it (`test_erasure_needs.py`)
def test_a_file_that_the_table_gets_back_while_others_are_looked_at_is_not_deleted(
    home: Household, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    paths = [file.file_path for file in live(home)]
    once = first_time(lambda: home.table().add_files(paths, check_duplicate_files=False))

    def looked_at(catalog: Catalog, names: Collection[str], *, target: str) -> Iterator[OtherTable]:
        yield from other_tables(catalog, names, target=target)
        once()

    monkeypatch.setattr(erase_table, "other_tables", looked_at)
    with pytest.raises(LakehouseError, match="refers to a file with such rows again"):
        home.erasure().erase()
    assert (ANN, 1) in home.raw(tmp=tmp_path)


def first_time(does: Callable[[], object]) -> Callable[[], object]:
    """Does something when it is called for the first time."""
    left = [does]
    return lambda: left.pop()() if left else None


@pytest.mark.full  # every run: `test_needed_files.py`
def test_a_batch_that_is_staged_while_files_are_searched_is_no_sign_of_a_catalog_that_was_set_back(
    home: Household,
) -> None:
    """What is said then is to delete newer metadata, which is that of the batch."""
    home.declare()
    home.bench.begin()
    home.append((ANN, 1), ("Bob", 2))
    meant = home.erasure().search.test
    staging = Interrupted(test=meant, at=1, does=lambda: home.bench.stage(0, [3], kind="Carl"))
    plan = replace(home.erasure(), search=staging).plan()
    assert [one.reason for one in plan.refusals] == [RefusalReason.BATCH_HELD]


@pytest.mark.full  # main and a tag are in every run
def test_a_branch_that_gets_a_row_during_the_last_search_before_expiry_stays(home: Household) -> None:
    home.declare()
    home.append(("Bob", 2))
    home.branch("mine", home.append((ANN, 1)))

    def write() -> None:
        table = home.table()
        table.append(table.scan().to_arrow().slice(0, 1), branch="mine")

    with pytest.raises(CommitConflictError):
        interrupted(home, write)
    assert home.table().scan().use_ref("mine").to_arrow().num_rows == 3
    assert [one.reason for one in home.erasure().plan().refusals] == [RefusalReason.OTHER_WRITERS]


def test_a_row_that_comes_during_the_last_search_before_expiry_stays(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))

    def write() -> None:
        home.append(("Carl", 3))

    with pytest.raises(CommitConflictError, match="was written while its history was cut"):
        interrupted(home, write)
    assert ("Carl", 3) in home.rows()
    home.erasure().erase()
    assert home.rows() == [("Bob", 2), ("Carl", 3)]


@pytest.mark.full  # every run: another table (`test_erasure_refusals.py`)
@pytest.mark.parametrize("who", ["branch", "staging"])
def test_a_file_that_a_branch_or_a_staging_table_refers_to_meanwhile_is_not_deleted(
    home: Household, tmp_path: Path, who: str
) -> None:
    home.declare()
    if who == "staging":
        home.bench.begin()
        home.bench.publish(home.bench.stage(0, [5], kind="Eve"))
        home.bench.clear()
    home.append((ANN, 1), ("Bob", 2))
    files = live(home)

    def refer(point: CrashPoint) -> None:
        if point is CrashPoint.RECORDED:
            table = home.table() if who == "branch" else load_staging_table(home.bench.catalog, home.bench.output)
            if who == "branch":
                home.branch("mine", home.head())
                table = home.table()
            branch = "mine" if who == "branch" else "main"
            with table.transaction() as transaction, transaction.update_snapshot(branch=branch).fast_append() as append:
                for file in files:
                    append.append_data_file(file)

    with pytest.raises(LakehouseError, match=r"refers to .*file.* with such rows"):
        home.erasure(reached=refer).erase()
    assert (ANN, 1) in home.raw(tmp=tmp_path)


@pytest.mark.parametrize(
    ("state", "exit_code", "is_waited_for"),
    [
        pytest.param(RunState.FINISHED, 0, False, marks=pytest.mark.full),
        (RunState.FAILED, 1, False),
        (RunState.FAILED, None, True),  # its lease was ended by others
        pytest.param(RunState.LOST, None, True, marks=pytest.mark.full),
    ],
)
def test_a_run_has_ended_when_its_process_was_seen_to_end(
    home: Household, tmp_path: Path, state: RunState, exit_code: int | None, is_waited_for: bool
) -> None:
    home.declare()
    home.append(("Bob", 2))
    run = admit_run(home.ledger, stream=home.writer, mode="incremental", declaration_digest="d", launched_by="a test")
    left_by(home, run.token)
    record_end(home.ledger, run.run_id, state=state, exit_code=exit_code, reason="a test")
    plan = home.erasure(longest_commit=LONGEST_WRITE).plan()
    assert {one.reason for one in plan.refusals} == ({RefusalReason.NOT_AT_REST} if is_waited_for else set())
    assert any("are younger than a day" in one.sentence for one in plan.refusals) is is_waited_for
    assert home.raw(tmp=tmp_path) == [(ANN, 1), ("Bob", 2)]
    if not is_waited_for:
        home.erasure(longest_commit=LONGEST_WRITE).erase()
        assert home.raw(tmp=tmp_path) == [("Bob", 2)]


def test_a_driver_that_outlived_the_end_of_its_run_blocks(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    run = admit_run(home.ledger, stream=home.writer, mode="incremental", declaration_digest="d", launched_by="a test")
    record_process(home.ledger, run.run_id, identity_of(os.getpid()), None)
    record_end(home.ledger, run.run_id, state=RunState.LOST, exit_code=None, reason="its lease is over")
    (refusal,) = home.erasure().plan().refusals
    assert (refusal.reason, f"The driver of run {run.run_id}" in refusal.sentence) == (RefusalReason.NOT_AT_REST, True)
    assert "End its process" in (refusal.next_step or "")
    with pytest.raises(UnpublishableError, match="may still write"):
        home.erasure().erase()


def left_by(home: Household, token: int) -> None:
    """Leave a file in the folder of a run, as a merge does."""
    (left,) = home.leave((ANN, 1))
    table = home.table()
    with table.io.new_input(left.file_path).open() as source:
        content = source.read()
    with table.io.new_output(f"{folder_of(table.metadata, Writer.of_run(token))}/a.parquet").create() as sink:
        sink.write(content)
    table.io.delete(left.file_path)


@pytest.mark.full
def test_a_snapshot_that_another_program_has_staged_blocks_until_it_is_published(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    (file,) = home.leave(("Carl", 3))
    with home.table().transaction() as transaction:
        staged = transaction.update_snapshot(branch=None, snapshot_properties={"wap.id": "a"})
        with staged.fast_append() as append:
            append.append_data_file(file)
    (refusal,) = home.erasure().plan().refusals
    assert (refusal.reason, "is staged, has rows that main does not have" in refusal.sentence) == (
        RefusalReason.OTHER_WRITERS,
        True,
    )
    with home.table().transaction() as transaction:
        published = transaction.update_snapshot(snapshot_properties={"published-wap-id": "a"})
        with published.fast_append() as append:
            append.append_data_file(file)
    home.erasure().erase()
    assert home.rows() == [("Bob", 2), ("Carl", 3)]
