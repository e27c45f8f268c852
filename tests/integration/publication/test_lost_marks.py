"""A mark that somebody removed is restored from the table, and never opened from the checkpoint alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.fixtures.lost_marks import forget_mark, forget_previous_metadata, remove_mark
from tests.fixtures.publication import Workbench

from sluice.errors import MarkError, StaleTokenError
from sluice.publication.mark_moves import reject_batch
from sluice.publication.staged_batch import StagedOutput


@pytest.mark.parametrize("forgets", [False, True], ids=["from the metadata log", "from the history of main"])
def test_staged_batches_are_published_after_the_mark_was_removed(bench: Workbench, *, forgets: bool) -> None:
    bench.publish(bench.stage(0, [0]), bench.stage(1, [1]))
    waiting = bench.stage(2, [2])
    remove_mark(bench)
    if forgets:
        forget_previous_metadata(bench)
    new = bench.as_run(2)
    mark = new.begin(newest_committed=2)  # Spark has committed all of them
    assert (mark.generation, mark.batch, mark.token) == (1, 1, 2)
    assert new.plan().ready == (waiting,)
    new.recover(new.checkpoint(2, newest_committed=2))
    assert new.ids() == [0, 1, 2]


def test_the_metadata_log_has_the_mark_when_the_history_has_expired(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]), bench.stage(1, [1]))
    waiting = bench.stage(2, [2])
    bench.write_as_another(100)
    bench.expire_all_but_the_newest()
    remove_mark(bench)
    assert bench.begin_as(2).batch == 1
    assert bench.as_run(2).plan().ready == (waiting,)


def test_a_merge_whose_mark_was_removed_before_it_moved_is_found(bench: Workbench) -> None:
    batch = bench.stage(0, [0])
    bench.merge_in(batch, [0])
    remove_mark(bench)
    assert bench.begin_as(2).batch == 0
    assert bench.as_run(2).plan().published == (batch,)


def test_a_rejected_batch_stays_rejected(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    reject_batch(bench.catalog, bench.output, bench.stage(1, [1]), token=1)
    remove_mark(bench)
    forget_previous_metadata(bench)
    assert bench.begin_as(2).batch == 1


def test_a_zombie_does_not_restore_what_a_newer_run_has_taken(bench: Workbench) -> None:
    bench.begin_as(5)
    remove_mark(bench)
    with pytest.raises(StaleTokenError):
        bench.begin_as(4)


def test_nothing_is_guessed_when_neither_log_nor_history_has_the_mark(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    bench.stage(1, [1])
    forget_mark(bench)
    with pytest.raises(MarkError, match=r"2 batches are staged, .*:1:0 to .*:1:1, and it is unknown") as refusal:
        bench.begin_as(2)
    assert f"sluice batch abandon {bench.output}".replace(".", " ") in refusal.value.next_step


def test_a_reset_leaves_batches_of_a_lost_mark_behind(bench: Workbench) -> None:
    visible = bench.stage(0, [0])
    bench.publish(visible)
    bench.stage(1, [1])
    remove_mark(bench)
    new = bench.as_run(2).in_generation(2)
    assert new.begin().position == (2, -1)
    assert new.recover() == (visible,), "the one that waited is not taken for a visible one"


def test_a_new_output_opens_where_the_checkpoint_stands(new_bench: Callable[..., Workbench]) -> None:
    made = new_bench()
    made.declare()
    assert made.begin(newest_committed=7).batch == 7


def test_a_renamed_output_does_not_repeat_what_is_visible_under_its_former_name(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]), bench.stage(1, [1]))
    renamed = replace(
        bench, run=2, output=StagedOutput(stream=bench.output.stream, output="renamed", target=bench.output.target)
    )
    mark = renamed.begin(newest_committed=0)  # Spark runs batch 1 again
    assert (mark.batch, mark.end_offsets_digest) == (1, bench.mark().end_offsets_digest)
    assert renamed.publish(renamed.stage(1, [1])).was_published_before
    assert bench.ids() == [0, 1]
