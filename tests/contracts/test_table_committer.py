"""What every committer keeps. The cases run on pyiceberg's, with a REST catalog and with a SQL catalog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from tests.fixtures.publication import Workbench, offsets
from tests.fixtures.publication_catalogs import CATALOGS

from sluice.errors import LakehouseError, StagedFilesMissingError
from sluice.publication.chain import MarkPosition
from sluice.publication.checked_commit import (
    Answer,
    Fate,
    PreparedCommit,
    TableChange,
    TableCommitter,
    decide_fate,
)
from sluice.publication.file_preparation import fit_files
from sluice.publication.marks import Mark
from sluice.publication.publish_batches import live_files
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staged_batch import offsets_digest
from sluice.publication.staging_table import load_staging_table, staged_files

pytestmark = pytest.mark.parametrize("catalog_place", CATALOGS, indirect=True)


@pytest.fixture
def committer(bench: Workbench) -> TableCommitter:
    """Each committer in turn."""
    return PyIcebergCommitter(bench.open_catalog())


def test_a_table_is_loaded_as_it_is_now(bench: Workbench, committer: TableCommitter) -> None:
    before = committer.load(bench.output.target)
    bench.write_as_another(1)
    after = committer.load(bench.output.target)
    assert after.metadata.current_snapshot_id == bench.target().metadata.current_snapshot_id
    assert before.metadata.current_snapshot_id != after.metadata.current_snapshot_id
    with pytest.raises(LakehouseError, match="does not exist"):
        committer.load(f"{bench.output.target}_missing")


def test_nothing_is_visible_before_a_commit_is_sent_and_all_of_it_at_once_then(
    bench: Workbench, committer: TableCommitter
) -> None:
    position = MarkPosition(generation=1, batch=0, token=1, end_offsets_digest=offsets_digest(offsets(10)))
    before = bench.target()
    change = replace(
        added(bench, [1, 2]), output=bench.output, mark=position, properties={"p": "1"}, summary={"who": "us"}
    )
    commit = committer.prepare(committer.load(bench.output.target), change)
    assert bench.target().metadata_location == before.metadata_location
    assert commit.send() is Answer.LANDED
    table = bench.target()
    head = table.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert (head.snapshot_id, head.sequence_number) == (commit.snapshot_id, commit.sequence_number)
    assert (head.parent_snapshot_id, head.summary["who"]) == (before.metadata.current_snapshot_id, "us")
    assert table.properties["p"] == "1"
    assert bench.mark() == Mark.set_to(position, snapshot_id=commit.snapshot_id, sequence_number=commit.sequence_number)
    assert bench.ids() == bench.ids_by_duckdb() == [1, 2]


def test_files_are_removed_and_snapshots_expired_by_the_same_commit(
    bench: Workbench, committer: TableCommitter
) -> None:
    bench.write_as_another(7, kind="a")
    bench.write_as_another(8, kind="b")
    table = committer.load(bench.output.target)
    old = [one.snapshot_id for one in table.snapshots() if one.snapshot_id != table.metadata.current_snapshot_id]
    gone = tuple(file for file in live_files(table) if file.partition[0] == "a")
    change = replace(added(bench, [1]), operation=Operation.OVERWRITE, removed=gone, expired=tuple(old))
    assert committer.prepare(table, change).send() is Answer.LANDED
    assert bench.ids() == bench.ids_by_duckdb() == [1, 8]
    assert not {one.snapshot_id for one in bench.target().snapshots()} & set(old)
    table = committer.load(bench.output.target)
    emptied = TableChange(operation=Operation.DELETE, removed=tuple(live_files(table)), summary={})
    assert committer.prepare(table, emptied).send() is Answer.LANDED
    assert bench.ids() == bench.ids_by_duckdb() == []


def test_a_snapshot_without_files_moves_main(bench: Workbench, committer: TableCommitter) -> None:
    for operation in (Operation.APPEND, Operation.DELETE):
        table = committer.load(bench.output.target)
        commit = committer.prepare(table, TableChange(operation=operation, summary={}))
        assert commit.send() is Answer.LANDED
        assert bench.target().metadata.current_snapshot_id == commit.snapshot_id


MOVES: dict[str, Callable[[Workbench], object]] = {
    "append": lambda bench: bench.write_as_another(100),
    "rollback": lambda bench: roll_back(bench),
}


@pytest.mark.parametrize("move", MOVES)
def test_a_commit_lands_only_where_it_was_checked(bench: Workbench, committer: TableCommitter, move: str) -> None:
    bench.write_as_another(50)
    table = committer.load(bench.output.target)
    commit = committer.prepare(table, added(bench, [1]))
    MOVES[move](bench)
    seen = bench.ids()
    assert commit.send() is Answer.REFUSED
    assert bench.ids() == bench.ids_by_duckdb() == seen


def test_a_refused_commit_leaves_nothing_behind(bench: Workbench, committer: TableCommitter) -> None:
    table = committer.load(bench.output.target)
    files = bench.metadata_files()
    commit = committer.prepare(table, added(bench, [1]))
    mine = bench.metadata_files() - files
    bench.write_as_another(100)
    assert commit.send() is Answer.REFUSED
    assert fate(commit, parent=table, now=committer.load(bench.output.target)) is Fate.NEVER
    commit.discard()
    assert mine
    assert not mine & bench.metadata_files()
    assert bench.ids() == bench.ids_by_duckdb() == [100]


def test_a_refused_commit_that_landed_is_seen(bench: Workbench, committer: TableCommitter) -> None:
    table = committer.load(bench.output.target)
    commit = committer.prepare(table, added(bench, [1]))
    assert commit.send() is Answer.LANDED
    assert commit.send() is Answer.REFUSED
    assert fate(commit, parent=table, now=committer.load(bench.output.target)) is Fate.LANDED
    bench.write_as_another(100)
    assert fate(commit, parent=table, now=committer.load(bench.output.target)) is Fate.LANDED
    bench.expire_all_but_the_newest()
    assert fate(commit, parent=table, now=committer.load(bench.output.target)) is Fate.OPEN
    assert bench.ids() == bench.ids_by_duckdb() == [1, 100]


def test_a_commit_that_was_not_sent_may_still_land(bench: Workbench, committer: TableCommitter) -> None:
    table = committer.load(bench.output.target)
    commit = committer.prepare(table, added(bench, [1]))
    assert fate(commit, parent=table, now=committer.load(bench.output.target)) is Fate.OPEN
    assert commit.send() is Answer.LANDED


@pytest.mark.parametrize("written", [None, timedelta(days=1)], ids=["unknown", "old"])
def test_a_commit_that_adds_a_file_that_is_gone_is_not_prepared(
    bench: Workbench, committer: TableCommitter, written: timedelta | None
) -> None:
    at = None if written is None else datetime.now(UTC) - written
    change = replace(added(bench, [1, 2]), added_at=at)
    gone = change.added[0].file_path
    bench.target().io.delete(gone)

    with pytest.raises(StagedFilesMissingError, match=f"1 of the 1 files .* with 2 rows, are gone: {gone}"):
        committer.prepare(committer.load(bench.output.target), change)

    assert bench.ids() == []


def test_a_commit_does_not_look_for_files_that_were_just_written(bench: Workbench, committer: TableCommitter) -> None:
    change = replace(added(bench, [1]), added_at=datetime.now(UTC))
    bench.target().io.delete(change.added[0].file_path)

    committer.prepare(committer.load(bench.output.target), change).discard()


def added(bench: Workbench, ids: list[int]) -> TableChange:
    """A change that adds the files of a batch that is staged for it."""
    batch = bench.stage(len(bench.staged()), ids)
    staging = load_staging_table(bench.catalog, bench.output)
    files = fit_files(staged_files(staging, [batch])[batch.snapshot_id], staging=staging, target=bench.target())
    return TableChange(operation=Operation.APPEND, added=files, summary={})


def roll_back(bench: Workbench) -> None:
    """Set main back by one snapshot."""
    head = bench.target().current_snapshot()
    assert head is not None
    assert head.parent_snapshot_id is not None
    bench.target().manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()


def fate(commit: PreparedCommit, *, parent: Table, now: Table) -> Fate:
    """What became of a commit that was prepared on one table and is looked for in a later one."""
    return decide_fate(
        snapshot_id=commit.snapshot_id,
        sequence_number=commit.sequence_number,
        parent_id=parent.metadata.current_snapshot_id,
        now=now.metadata,
    )
