"""What others do to the tables between publications: expiry, compaction, rollback, replacement, orphan removal."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from tests.fixtures.publication import Workbench

from sluice.errors import (
    DeliveryError,
    LakehouseError,
    RolledBackError,
    StagedFilesMissingError,
    StagingError,
)
from sluice.publication.file_preparation import find_missing_files, old_batches, refuse_missing_files
from sluice.publication.mark_moves import reject_batch
from sluice.publication.staging_layout import ensure_staging_table
from sluice.publication.staging_table import load_staging_table, staged_files


def test_a_replay_after_the_history_was_expired(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(3)]
    bench.publish(*batches)
    bench.write_as_another(100)
    bench.expire_all_but_the_newest()
    assert bench.publish(*batches).was_published_before
    bench.publish(bench.stage(3, [3]))
    assert bench.ids() == [0, 1, 2, 3, 100]


def test_a_replay_after_a_compaction(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(3)]
    bench.publish(*batches)
    bench.compact()
    bench.expire_all_but_the_newest()
    assert bench.publish(*batches).was_published_before
    assert bench.ids() == [0, 1, 2]


def test_a_table_that_was_rolled_back(bench: Workbench) -> None:
    first = bench.publish(bench.stage(0, [0]))
    bench.publish(bench.stage(1, [1]))
    roll_back(bench, first.snapshot_id)
    with pytest.raises(RolledBackError, match="Nothing is published"):
        bench.publish(bench.stage(2, [2]))
    assert bench.ids() == [0]


def test_a_table_that_was_rolled_back_and_written_since(bench: Workbench) -> None:
    first = bench.publish(bench.stage(0, [0]))
    bench.publish(bench.stage(1, [1]))
    roll_back(bench, first.snapshot_id)
    for value in (100, 101):
        bench.write_as_another(value)
    late = bench.stage(2, [2])
    with pytest.raises(RolledBackError):
        bench.publish(late)
    # The marked snapshot is expired: main alone tells, because it passes by the snapshot that it should hold.
    table = bench.target()
    table.maintenance.expire_snapshots().by_id(bench.mark().snapshot_id).commit()
    with pytest.raises(RolledBackError):
        bench.publish(late)
    assert bench.ids() == [0, 100, 101]


def test_a_history_that_was_expired_behind_a_tag_is_no_rollback(bench: Workbench) -> None:
    """A reader has pinned the snapshot that set the mark; others wrote since, and a stranger expired between."""
    marked = bench.publish(bench.stage(0, [0])).snapshot_id
    assert marked is not None
    bench.target().manage_snapshots().create_tag(marked, "sluice_pin__silver__rows__position").commit()
    for value in (100, 101, 102):
        bench.write_as_another(value)
    table = bench.target()
    between = [entry.snapshot_id for entry in table.history()][-3:-1]
    table.maintenance.expire_snapshots().by_ids(between).commit()

    bench.publish(bench.stage(1, [1]))

    assert bench.ids() == [0, 1, 100, 101, 102]


def test_a_rollback_that_was_taken_back(bench: Workbench) -> None:
    first, second = bench.publish(bench.stage(0, [0])), bench.publish(bench.stage(1, [1]))
    late = bench.stage(2, [2])
    roll_back(bench, first.snapshot_id)
    with pytest.raises(RolledBackError):
        bench.publish(late)
    assert second.snapshot_id is not None
    bench.target().manage_snapshots().set_current_snapshot(second.snapshot_id).commit()
    bench.publish(late)
    assert bench.ids() == [0, 1, 2]


def test_a_table_that_was_dropped_and_recreated(bench: Workbench) -> None:
    bench.stage(0, [0])
    bench.catalog.drop_table(bench.output.target)
    with pytest.raises(LakehouseError, match="does not exist"):
        bench.publish(*bench.staged())
    bench.declare()
    with pytest.raises(DeliveryError, match=r"dropped and created again|has no mark of .* 1 batches are staged"):
        bench.begin()


def test_a_recreated_table_takes_the_old_staging_table_when_nothing_is_staged(bench: Workbench) -> None:
    bench.catalog.drop_table(bench.output.target)
    bench.declare()
    bench.begin()
    bench.publish(bench.stage(0, [0]))
    assert bench.ids() == [0]


def test_a_staged_file_that_an_orphan_removal_took(bench: Workbench) -> None:
    bench.stage(0, [0])
    batches = bench.staged()
    staging = load_staging_table(bench.catalog, bench.output)
    assert find_missing_files(staging, batches) == ()
    for file in staged_files(staging, batches)[batches[0].snapshot_id]:
        staging.io.delete(file.file_path)
    now = datetime.now(UTC)
    assert old_batches(batches, now=now) == ()
    assert old_batches(batches, now=now + timedelta(days=1)) == batches
    with pytest.raises(StagedFilesMissingError, match="1 staged rows cannot be published: 1 files of the batches"):
        refuse_missing_files(find_missing_files(staging, batches))


@pytest.mark.parametrize("lost", [0, 1])
def test_a_restart_publishes_no_batch_whose_files_are_gone(bench: Workbench, lost: int) -> None:
    batches = [bench.stage(number, [10 * number, 10 * number + 1]) for number in range(3)]
    staging = load_staging_table(bench.catalog, bench.output)
    for file in staged_files(staging, batches)[batches[lost].snapshot_id]:
        staging.io.delete(file.file_path)
    new = bench.as_run(2)
    new.begin()
    with pytest.raises(StagedFilesMissingError, match=f"2 staged rows .* {batches[lost].summary.key} ") as refusal:
        new.recover()
    assert f"sluice batch reject {bench.output.stream} {lost}" in refusal.value.next_step
    assert bench.ids() == [id for number in range(lost) for id in (10 * number, 10 * number + 1)]
    reject_batch(new.catalog, new.output, batches[lost], token=2)
    new.recover()
    assert bench.ids() == [id for number in range(3) if number != lost for id in (10 * number, 10 * number + 1)]


def test_a_staging_table_that_somebody_emptied(bench: Workbench) -> None:
    batch = bench.stage(0, [0])
    load_staging_table(bench.catalog, bench.output).delete()
    with pytest.raises(StagingError, match="staged with 1 files"):
        bench.publish(batch)
    assert bench.ids() == []


def test_a_staging_table_that_somebody_expired(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    bench.stage(1, [1])
    bench.stage(2, [2])
    staging = load_staging_table(bench.catalog, bench.output)
    newest = staging.metadata.current_snapshot_id
    old = [snapshot.snapshot_id for snapshot in staging.snapshots() if snapshot.snapshot_id != newest]
    staging.maintenance.expire_snapshots().by_ids(old).commit()
    plan = bench.plan()
    assert plan.ready == ()
    assert [lost.batch.summary.key.batch for lost in plan.abandoned] == [2]
    with pytest.raises(StagingError, match="not staged"):
        bench.publish(*bench.staged())


def test_rows_that_somebody_wrote_into_a_staging_table_are_never_published(bench: Workbench) -> None:
    staging = load_staging_table(bench.catalog, bench.output)
    staging.append(pa.Table.from_pylist([{"kind": "a", "id": 666}], staging.schema().as_arrow()))
    bench.publish(bench.stage(0, [0]))
    assert bench.ids() == [0]


def test_a_batch_of_another_stream_in_a_staging_table_is_an_incident(bench: Workbench) -> None:
    key = bench.stage(0, [0]).summary.key
    other = type(key)(stream="somebody", generation=1, batch=1)
    bench_staged = pytest.raises(StagingError, match="holds batch somebody:1:1")
    with bench_staged:
        bench.stage(1, [1], key=other)


def test_the_staging_tables_are_made_equal_to_a_target_that_was_changed_by_hand(bench: Workbench) -> None:
    with bench.target().transaction() as transaction:
        transaction.set_properties({"write.target-file-size-bytes": "1000"})
    names = bench.output
    ensure_staging_table(bench.catalog, stream=names.stream, output=names.output, target=names.target, token=1)
    staging = bench.open_catalog().load_table(names.staging)
    assert staging.properties["write.target-file-size-bytes"] == "1000"
    assert staging.properties["gc.enabled"] == "false"


def roll_back(bench: Workbench, snapshot_id: int | None) -> None:
    assert snapshot_id is not None
    bench.target().manage_snapshots().rollback_to_snapshot(snapshot_id).commit()
