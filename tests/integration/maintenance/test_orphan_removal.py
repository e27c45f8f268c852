"""Files that nothing refers to: each way in which they are left behind, found, moved, restored once, and deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.table.snapshots import Operation
from tests.fixtures.orphans import NAME, Yard, open_yard, rows

from sluice.errors import LakehouseError, UnpublishableError, UsageError
from sluice.ledger.connection import Ledger
from sluice.maintenance.file_rewrite import rewrite_small_files
from sluice.operations import RefusalReason
from sluice.publication.checked_commit import TableChange
from sluice.publication.crash_points import CrashPoint
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staging_layout import drop_staging_copy

WEEK = timedelta(days=7)


@pytest.fixture
def yard(ledger: Ledger, tmp_path: Path) -> Iterator[Yard]:
    """A table of three files."""
    made = open_yard(tmp_path, ledger)
    yield made
    made.catalog.close()


class _StoppedError(Exception):
    """The process ends here."""


def _stop(point: CrashPoint) -> None:
    if point is CrashPoint.COMPUTED:
        raise _StoppedError


def failed_compaction(yard: Yard) -> None:
    """The process ends before its commit."""
    with pytest.raises(_StoppedError):
        rewrite_small_files(
            PyIcebergCommitter(yard.catalog),
            NAME,
            partitions=[""],
            small_file_bytes=10**8,
            compared_bytes=0,
            now=datetime.now(UTC),
            reached=_stop,
        )


def killed_stage(yard: Yard) -> None:
    """A task of Spark is killed before the batch is staged."""
    yard.leave("data/day=1/00000-1-0b9c-00001.parquet")


def dead_attempt(yard: Yard) -> None:
    """The attempt of a backfill dies, and the next one drops its copy."""
    drop_staging_copy(yard.catalog, yard.copy("backfill_staging.s__main__20261101", 100))


def abandoned_refresh(yard: Yard) -> None:
    """A refresh is given up."""
    drop_staging_copy(yard.catalog, yard.copy("refresh_staging.refresh_1_ab_of_s", 100, 101))


def dropped_stream(yard: Yard) -> None:
    """The staging table of a stream that is no more is dropped."""
    drop_staging_copy(yard.catalog, yard.stage("gone", 100))


def expired_elsewhere(yard: Yard) -> None:
    """Another tool expires snapshots and deletes no files."""
    yard.table().overwrite(rows(0, 1, 2))
    yard.table().maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()


def refused_commit(yard: Yard) -> None:
    """The manifests of a commit that was refused."""
    table = yard.table()
    commit = PyIcebergCommitter(yard.catalog).prepare(table, TableChange(operation=Operation.APPEND, summary={}))
    yard.append()
    assert commit.sequence_number < yard.table().metadata.next_sequence_number()


WAYS: tuple[Callable[[Yard], None], ...] = (
    failed_compaction,
    killed_stage,
    dead_attempt,
    abandoned_refresh,
    dropped_stream,
    expired_elsewhere,
    refused_commit,
)


@pytest.mark.parametrize("leave", WAYS)
def test_what_is_left_behind_is_found_moved_restored_once_and_deleted(
    yard: Yard, leave: Callable[[Yard], None]
) -> None:
    leave(yard)
    kept = yard.stored()
    yard.age()

    orphans = yard.found()
    assert orphans, "it is found"

    done = yard.remove()
    assert (done.moved, done.spared, done.deleted) == (len(orphans), 0, 0)
    assert yard.trashed() == orphans
    assert {file.name for file in kept - yard.stored()} == orphans
    assert yard.ids() == [0, 1, 2]

    assert yard.restore() == len(orphans)
    assert (yard.stored(), yard.trashed(), yard.restore()) == (kept, set(), 0)
    assert yard.found() == set(), "what was restored counts as new"

    yard.age()
    assert yard.remove(after=timedelta(seconds=1)).moved == len(orphans)
    assert yard.remove(after=WEEK).deleted == 0
    assert yard.remove(after=WEEK + timedelta(seconds=2)).deleted == len(orphans)
    assert yard.trashed() == set()
    assert yard.ids() == [0, 1, 2]


def test_what_a_table_refers_to_in_any_way_stays(yard: Yard) -> None:
    """By an old snapshot, a branch, a tag, a staging table, the copy of a backfill, or a shadow."""
    yard.append(3)
    first = yard.table().metadata.snapshots[0]
    yard.table().manage_snapshots().create_branch(first.snapshot_id, "side").create_tag(first.snapshot_id, "t").commit()
    yard.table().overwrite(rows(7))
    yard.stage("s", 100)
    yard.copy("backfill_staging.s__main__20261101", 101)
    yard.copy("refresh_staging.refresh_1_ab_of_s", 102)
    yard.age()
    left = yard.leave("data/left.parquet")
    yard.age()
    before = yard.stored()

    assert yard.found() == {left.name}
    yard.remove()
    assert before - yard.stored() == {left}
    assert yard.ids() == [7]
    assert yard.ids("staging.s__main") == [100]
    assert yard.ids("backfill_staging.s__main__20261101") == [101]


def test_a_young_file_is_no_orphan(yard: Yard) -> None:
    yard.age()
    yard.leave("data/young.parquet")
    plan = yard.plan()
    assert (plan.seen.orphans, plan.seen.young) == ((), 1)
    assert "1 files that nothing refers to are younger." in [step.sentence for step in plan.steps]
    assert yard.remove().moved == 0


@pytest.mark.parametrize("path", ["_SUCCESS", "data/.x.parquet.crc", "metadata/version-hint.text", "_ck/offsets/0"])
def test_files_that_are_not_of_a_table_stay(yard: Yard, path: str) -> None:
    yard.leave(path)
    yard.age()
    assert yard.found() == set()


def test_a_partition_that_begins_with_an_underscore_is_of_the_table(yard: Yard) -> None:
    with yard.table().update_spec() as spec:
        spec.add_field("day", "identity", "_day")
    left = yard.leave("data/_day=1/left.parquet")
    yard.leave("data/_other=1/x.parquet")
    yard.age()
    assert yard.found() == {left.name}


def test_a_commit_that_may_still_land_keeps_its_files(yard: Yard) -> None:
    """Its answer was lost, and the request may still be on its way."""
    change = TableChange(operation=Operation.APPEND, added=yard.written(999), summary={}, added_at=datetime.now(UTC))
    yard.age()
    commit = PyIcebergCommitter(yard.catalog).prepare(yard.table(), change)

    plan = yard.plan()
    assert plan.seen.orphans == ()
    assert f"1 commits to {NAME} may still land: what they refer to stays" in plan.seen.notes
    commit.send()
    assert yard.ids() == [0, 1, 2, 999]


def test_after_the_catalog_was_restored_from_a_backup_its_newer_state_stays(yard: Yard) -> None:
    """The newer metadata may come back: a person may find the newest backup."""
    backup = (yard.folder / "catalog.db").read_bytes()
    yard.append(3)
    yard.append(4)
    newest = yard.table().metadata_location
    yard.catalog.close()
    (yard.folder / "catalog.db").write_bytes(backup)
    yard.age()
    assert yard.ids() == [0, 1, 2]

    plan = yard.plan()
    assert plan.seen.orphans == ()
    assert any("2 metadata files of silver.rows are newer than the catalog's" in note for note in plan.seen.notes)
    yard.catalog.drop_table(NAME)
    yard.catalog.register_table(NAME, newest)
    assert yard.ids() == [0, 1, 2, 3, 4]


def test_the_newer_state_comes_back_from_the_trash_after_many_commits_on_a_backup(yard: Yard) -> None:
    yard.append(3)
    newest = yard.table().metadata_location
    _roll_back_the_catalog(yard)
    yard.age()
    assert Path(newest).name in yard.found()
    yard.remove()

    yard.restore()
    yard.catalog.drop_table(NAME)
    yard.catalog.register_table(NAME, newest)
    assert yard.ids() == [0, 1, 2, 3]


def _roll_back_the_catalog(yard: Yard) -> None:
    """As after a restore, and many commits since: the newer state is none any more."""
    before = yard.table().metadata.metadata_log[-1].metadata_file
    yard.catalog.drop_table(NAME)
    yard.catalog.register_table(NAME, before)
    yard.append()
    yard.append()


def test_a_data_file_that_is_in_the_trash_returns_when_a_commit_refers_to_it(yard: Yard) -> None:
    added = yard.written(999)
    yard.age()
    assert yard.remove().moved == 1
    change = TableChange(operation=Operation.APPEND, added=added, summary={}, added_at=datetime.now(UTC))
    PyIcebergCommitter(yard.catalog).prepare(yard.table(), change).send()

    assert "1 files back from the trash" in yard.plan().steps[0].sentence
    assert yard.remove().returned == 1
    assert yard.ids() == [0, 1, 2, 999]
    assert yard.trashed() == set()


def test_unreadable_references_keep_every_file(yard: Yard) -> None:
    yard.leave("data/left.parquet")
    (newest,) = [one for one in yard.table().metadata.snapshots if one.parent_snapshot_id is None]
    yard.table().io.delete(newest.manifests(yard.table().io)[0].manifest_path)
    yard.age()
    with pytest.raises(LakehouseError, match="read the manifests of silver"):
        yard.plan()


def test_folders_of_others_are_left_alone(yard: Yard) -> None:
    yard.leave("data/left.parquet")
    inner = f"{yard.table().location()}/data/inner"
    yard.catalog.create_table("silver.inner", schema=rows().schema, location=inner)
    yard.age()
    plan = yard.plan()
    (refusal,) = plan.refusals
    assert refusal.reason is RefusalReason.SHARED_FOLDER
    assert "silver.rows" in refusal.sentence
    assert "silver.inner" in refusal.sentence
    with pytest.raises(UnpublishableError, match="hold one another"):
        yard.removal.carry_out(plan, now=yard.now)


def test_a_table_whose_folder_has_a_name_that_begins_alike_is_no_neighbour(yard: Yard) -> None:
    yard.leave("data/left.parquet")
    yard.catalog.create_table("silver.beside", schema=rows().schema, location=f"{yard.table().location()}_2")
    yard.append(50, name="silver.beside")
    yard.age()
    assert yard.remove().moved == 1
    assert yard.ids("silver.beside") == [50]


def test_a_table_in_the_folder_of_checkpoints_is_left_alone(yard: Yard) -> None:
    location = (yard.folder / "checkpoints" / "t").as_uri()
    yard.catalog.drop_table(NAME)
    yard.catalog.create_table(NAME, schema=rows().schema, location=location)
    yard.leave("data/left.parquet")
    (yard.folder / "warehouse").rename(yard.folder / "elsewhere")
    (yard.folder / "warehouse").symlink_to(yard.folder / "checkpoints")
    yard.age()
    refusal = yard.plan().refusals[0]
    assert refusal.reason is RefusalReason.SHARED_FOLDER
    assert "checkpoints of the checkpoint file://" in refusal.sentence


def test_a_table_whose_files_may_belong_to_others_is_left_alone(yard: Yard) -> None:
    yard.leave("data/left.parquet")
    with yard.table().transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    yard.age()
    (refusal,) = yard.plan().refusals
    assert refusal.reason is RefusalReason.FILES_OF_OTHERS


def test_a_table_that_refers_to_files_of_another_keeps_them(yard: Yard) -> None:
    """As the procedure `snapshot` of Spark makes one."""
    location = yard.folder.joinpath("warehouse", "copy").as_uri()
    yard.catalog.create_table(
        "silver.copy", schema=rows().schema, location=location, properties={"gc.enabled": "false"}
    )
    left = yard.leave("data/shared.parquet")
    yard.catalog.load_table("silver.copy").add_files([left.as_uri()])
    yard.age()
    assert yard.found() == set()


def test_a_table_that_was_created_again_is_not_the_one_that_was_planned(yard: Yard) -> None:
    yard.leave("data/left.parquet")
    yard.age()
    plan = yard.plan()
    yard.catalog.drop_table(NAME)
    yard.catalog.create_table(NAME, schema=rows().schema)
    with pytest.raises(LakehouseError, match="another table now"):
        yard.removal.carry_out(plan, now=yard.now)
    assert (yard.home / "data/left.parquet").exists()


def test_only_what_one_run_has_moved_is_restored(yard: Yard) -> None:
    yard.leave("data/first.parquet")
    yard.age()
    yard.remove()
    yard.leave("data/second.parquet")
    yard.age()
    yard.remove(after=timedelta(seconds=5))
    (first, second) = sorted(yard.removal.plan_restore(NAME).evidence["moved_at"])
    plan = yard.removal.plan_restore(NAME, moved_at=second)
    assert yard.removal.restore(plan) == 1
    assert yard.trashed() == {"first.parquet"}
    assert first < second
    with pytest.raises(UsageError, match="was moved there at"):
        yard.removal.plan_restore(NAME, moved_at="../..")
