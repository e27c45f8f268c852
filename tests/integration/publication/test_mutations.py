"""Each guard of a publication, taken out: the same test that it passes must then see rows twice, or rows come back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal

import pytest
from pyiceberg.table.update import AssertRefSnapshotId, SetPropertiesUpdate
from tests.fixtures.publication import Workbench
from tests.fixtures.tampering import tampered, without_requirement, without_update

from sluice.errors import DeliveryError
from sluice.publication.chain import batches_to_publish, position_after
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.publication.mark_moves import take_over
from sluice.publication.marks import Mark, load_target_state
from sluice.publication.staged_batch import StagedBatch, StagedOutput, publication_summary
from sluice.publication.staging_table import load_staging_table, staged_files

Guard = Literal["guarded", "unguarded"]
BOTH = pytest.mark.parametrize("guard", ["guarded", "unguarded"])


@BOTH
def test_without_the_comparison_of_main_a_rollback_is_undone(bench: Workbench, guard: Guard) -> None:
    first = bench.publish(bench.stage(0, [1]))
    bench.publish(bench.stage(1, [2]))
    late = bench.stage(2, [3])
    publisher = bench
    if guard == "unguarded":
        publisher = replace(bench, catalog=tampered(bench.catalog, change=without_requirement(AssertRefSnapshotId)))

    def roll_back() -> None:
        assert first.snapshot_id is not None
        bench.target().manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()

    with refused(guard):
        publisher.publish(late, reached=at_check(roll_back))
    assert bench.ids() == ([1] if guard == "guarded" else [1, 2, 3])


@BOTH
def test_without_the_mark_a_batch_whose_snapshot_expired_is_published_again(bench: Workbench, guard: Guard) -> None:
    batch = bench.stage(0, [1])
    publisher = bench
    if guard == "unguarded":
        publisher = replace(bench, catalog=tampered(bench.catalog, change=without_update(SetPropertiesUpdate)))
    publisher.publish(batch)
    bench.write_as_another(100)
    bench.expire_all_but_the_newest()
    publisher.publish(batch)
    assert bench.ids() == ([1, 100] if guard == "guarded" else [1, 1, 100])


@BOTH
def test_a_mark_that_is_raised_as_a_bare_property_fences_no_one(bench: Workbench, guard: Guard) -> None:
    batch, new = bench.stage(0, [1]), bench.as_run(2)

    def take_the_stream_over() -> None:
        if guard == "guarded":
            take_over(new.catalog, new.output, token=2)
        else:
            raised = bench.mark().model_copy(update={"token": 2, "batch": 0})
            with bench.target().transaction() as transaction:
                transaction.set_properties({bench.output.mark_property: raised.text()})

    with refused(guard):
        bench.publish(batch, reached=at_check(take_the_stream_over))
    assert bench.ids() == ([] if guard == "guarded" else [1])
    assert bench.mark().token == (2 if guard == "guarded" else 1)


@BOTH
def test_pyicebergs_own_retry_publishes_twice(bench: Workbench, guard: Guard) -> None:
    batch, other = bench.stage(0, [1]), bench.as_run(1)
    reached = at_check(lambda: other.publish(batch))
    if guard == "guarded":
        bench.publish(batch, reached=reached)
    else:
        publish_with_pyicebergs_retry(bench, bench.output, batch, reached)
    assert bench.ids() == ([1] if guard == "guarded" else [1, 1])


def publish_with_pyicebergs_retry(bench: Workbench, output: StagedOutput, batch: StagedBatch, reached: Reached) -> None:
    """The same check, the same files, the same mark; sent by `commit_transaction`."""
    state = load_target_state(bench.catalog, output)
    todo = batches_to_publish(state.position(output), [batch], token=bench.run, target=output.target)
    staged = staged_files(load_staging_table(bench.catalog, output), todo)
    transaction = state.table.transaction()
    append = transaction.update_snapshot(publication_summary([batch.summary])).fast_append()
    for file in staged[batch.snapshot_id]:
        append.append_data_file(file)
    append.commit()
    position = position_after(batch.summary, token=bench.run)
    mark = Mark.set_to(position, snapshot_id=append.snapshot_id, sequence_number=99)
    transaction.set_properties({output.mark_property: mark.text()})
    reached(CrashPoint.CHECKED)
    transaction.commit_transaction()


def at_check(action: Callable[[], object]) -> Reached:
    """Do something between check and commit, once."""
    pending = [action]

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.CHECKED and pending:
            pending.pop()()

    return reached


@contextlib.contextmanager
def refused(guard: Guard) -> Iterator[None]:
    """With the guard the block is refused by name; without it nobody notices."""
    if guard == "unguarded":
        yield
        return
    with pytest.raises(DeliveryError):
        yield
