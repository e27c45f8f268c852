"""A new driver publishes the chain of batches that earlier runs staged, in order, and abandons all other batches."""

from __future__ import annotations

import pytest
from tests.fixtures.publication import Workbench, offsets

from sluice.errors import DivergedError, MarkError, StagingError, StaleTokenError
from sluice.publication.chain import AbandonReason
from sluice.publication.mark_moves import open_generation, reject_batch, settle_merge, settle_merges_of_table


def test_everything_that_is_staged_is_published_in_order(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(5)]
    bench.publish(*batches[:2])
    new = bench.as_run(2)
    new.begin()
    assert new.plan().ready == tuple(batches[2:])
    assert new.plan().abandoned == ()
    assert new.recover() == tuple(batches), "those that were visible before are still staged"
    assert bench.ids() == [0, 1, 2, 3, 4]
    snapshots = len(bench.target().snapshots())
    assert new.recover() == tuple(batches)
    assert len(bench.target().snapshots()) == snapshots, "a second recovery finds nothing to publish"


def test_a_batch_that_is_not_published_keeps_ten_behind_it(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(12)]
    bench.publish(batches[0])
    bench.clear()
    assert bench.staged() == tuple(batches[1:])
    with pytest.raises(StagingError):
        bench.publish(batches[2])
    assert bench.recover() == tuple(batches[1:])
    assert bench.ids() == list(range(12))
    assert bench.mark().batch == 11


def test_a_batch_that_is_rejected_lets_the_others_pass(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(12)]
    bench.publish(batches[0])
    reject_batch(bench.catalog, bench.output, batches[1], token=1)
    bench.recover()
    assert bench.ids() == [0, *range(2, 12)]


def test_what_an_older_run_staged_after_it_was_replaced_is_abandoned(bench: Workbench) -> None:
    new = bench.as_run(2)
    new.begin()
    zombie = bench.stage(0, [666])
    assert new.plan().ready == (), "the newer run has staged nothing, and still the older one's batch does not count"
    own = new.stage(0, [0])
    plan = new.plan()
    assert plan.ready == (own,)
    assert [(lost.batch, lost.reason) for lost in plan.abandoned] == [(zombie, AbandonReason.STALE_TOKEN)]
    new.recover()
    new.clear()
    assert (new.ids(), new.staged()) == ([0], ())


def test_what_an_older_run_staged_before_it_was_replaced_counts(bench: Workbench) -> None:
    first = bench.stage(0, [0])
    new = bench.as_run(2)
    new.begin()
    second = new.stage(1, [1])
    assert new.plan().ready == (first, second)


def test_a_batch_that_was_staged_twice_is_published_once(bench: Workbench) -> None:
    first, twin = bench.stage(0, [0]), bench.stage(0, [0])
    follower = bench.stage(1, [1])
    plan = bench.plan()
    assert plan.ready == (first, follower)
    assert [(lost.batch, lost.reason) for lost in plan.abandoned] == [(twin, AbandonReason.STAGED_TWICE)]
    bench.recover()
    assert bench.ids() == [0, 1]


def test_a_batch_that_does_not_follow_is_abandoned(bench: Workbench) -> None:
    first = bench.stage(0, [0])
    stray = bench.stage(1, [1], start_offsets=offsets(7))
    gap = bench.stage(3, [3])
    plan = bench.plan()
    assert plan.ready == (first,)
    assert [lost.batch for lost in plan.abandoned] == [stray, gap]
    assert {lost.reason for lost in plan.abandoned} == {AbandonReason.OUT_OF_CHAIN}


def test_a_new_generation_goes_on_where_the_last_one_ended(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]), bench.stage(1, [1]))
    new = bench.as_run(2).in_generation(2)
    assert new.begin().position == (2, -1)
    assert new.begin().position == (2, -1)
    new.clear()
    new.publish(new.stage(0, [2], start_offsets=offsets(20), end_offsets=offsets(30)))
    assert bench.ids() == [0, 1, 2]
    with pytest.raises(MarkError, match="2 is open"):
        bench.as_run(3).begin()


def test_what_a_left_generation_has_staged_is_never_published_and_what_it_published_stays_known(
    bench: Workbench,
) -> None:
    visible = bench.stage(0, [0])
    bench.publish(visible)
    waiting = [bench.stage(1, [1]), bench.stage(2, [2])]
    new = bench.as_run(2).in_generation(2)
    left = new.leave_behind()
    assert [(lost.batch, lost.reason) for lost in left] == [(batch, AbandonReason.LEFT_BEHIND) for batch in waiting]
    assert new.leave_behind() == (), "doing it again finds nothing"
    assert new.begin().position == (2, -1)
    assert new.leave_behind() == ()
    assert new.plan().published == (visible,), "the ledger may not have it yet"
    new.clear()
    again = new.stage(0, [0])
    new.publish(again)
    assert bench.ids() == [0, 0], "what is read again is published again"


def test_a_driver_of_a_left_generation_stages_and_publishes_nothing_any_more(bench: Workbench) -> None:
    staged = bench.stage(0, [0])
    new = bench.as_run(2).in_generation(2)
    new.leave_behind()
    with pytest.raises(StaleTokenError):
        bench.publish(staged)
    bench.stage(1, [666])
    new.begin()
    assert new.staged() == (), "what it stages before the generation opens is abandoned and cleared"
    zombie = bench.stage(1, [666])
    assert [(lost.batch, lost.reason) for lost in new.plan().abandoned] == [(zombie, AbandonReason.OTHER_GENERATION)]
    assert new.plan().published == ()
    assert bench.ids() == []


def test_a_restored_older_checkpoint_does_not_publish_again_what_is_published(bench: Workbench) -> None:
    for number in range(4):
        bench.publish(bench.stage(number, [number]))
    bench.clear()
    restored = bench.as_run(2).in_generation(2)
    restored.begin(newest_committed=3)
    again = [restored.stage(number, [number]) for number in (2, 3)]
    assert restored.plan().published == tuple(again)
    assert restored.publish(*again).was_published_before
    restored.publish(restored.stage(4, [4]))
    assert bench.ids() == [0, 1, 2, 3, 4]


def test_what_an_old_generation_stages_after_the_new_one_opened_is_abandoned(bench: Workbench) -> None:
    new = bench.as_run(2).in_generation(2)
    new.begin()
    zombie = bench.stage(0, [666])
    assert [(lost.batch, lost.reason) for lost in new.plan().abandoned] == [(zombie, AbandonReason.OTHER_GENERATION)]


def test_a_merge_that_landed_without_its_mark_counts_as_published(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(3)]
    bench.merge_in(batches[0], [0])
    assert bench.mark().batch == -1
    assert bench.plan().published == (batches[0],)
    assert bench.publish(batches[0]).was_published_before
    assert settle_merge(bench.catalog, bench.output, token=1).batch == 0
    snapshots = len(bench.target().snapshots())
    settle_merge(bench.catalog, bench.output, token=1)
    assert len(bench.target().snapshots()) == snapshots
    bench.write_as_another(100)
    bench.expire_all_but_the_newest()
    assert bench.publish(batches[0]).was_published_before
    bench.recover()
    assert bench.ids() == [0, 1, 2, 100]


def test_expiry_settles_every_merge_of_a_table_first(bench: Workbench) -> None:
    batch = bench.stage(0, [0])
    bench.merge_in(batch, [0])
    assert settle_merges_of_table(bench.catalog, bench.target()) == (bench.output,)
    assert settle_merges_of_table(bench.catalog, bench.target()) == ()
    assert (bench.mark().batch, bench.mark().token) == (0, 1)
    bench.write_as_another(100)
    bench.expire_all_but_the_newest()
    assert bench.publish(batch).was_published_before


def test_taking_over_folds_a_merge_into_the_mark(bench: Workbench) -> None:
    bench.merge_in(bench.stage(0, [0]), [0])
    new = bench.as_run(2)
    mark = new.begin()
    assert (mark.batch, mark.token) == (0, 2)
    with pytest.raises(StaleTokenError):
        settle_merge(bench.catalog, bench.output, token=1)


def test_a_merge_of_an_old_generation_is_an_incident(bench: Workbench) -> None:
    late = bench.stage(0, [0])
    bench.as_run(2).begin()
    reject_batch(bench.catalog, bench.output, late, token=2)
    new = bench.as_run(3).in_generation(2)
    new.begin()
    bench.merge_in(late, [0])
    with pytest.raises(DivergedError, match="after generation 2 had opened"):
        new.plan()


def test_an_opening_needs_the_newest_token(bench: Workbench) -> None:
    bench.as_run(5).begin()
    with pytest.raises(StaleTokenError):
        open_generation(bench.catalog, bench.output, generation=1, token=4)
