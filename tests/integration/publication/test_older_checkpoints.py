"""A checkpoint that is older than the tables of its stream: what it would plan again under known numbers is lost."""

from __future__ import annotations

import logging

import pytest
from tests.fixtures.drill import first_of
from tests.fixtures.publication import Workbench, offsets

from sluice.errors import DivergedError
from sluice.publication.chain import AbandonReason
from sluice.publication.mark_moves import plan_output


@pytest.mark.parametrize("back", first_of(2, 1, 5))
def test_a_checkpoint_from_a_backup_is_refused_before_anything_is_published(bench: Workbench, back: int) -> None:
    visible = [bench.stage(number, [number]) for number in range(6)]
    bench.publish(*visible)
    new = bench.as_run(2)
    new.begin()
    batches = "1 batch" if back == 1 else f"{back} batches"
    with pytest.raises(DivergedError, match=rf"{batches} more, up to 5, with \d+ rows?, from"):
        new.recover(new.checkpoint(5 - back))
    assert bench.ids() == [0, 1, 2, 3, 4, 5]


def test_the_difference_is_told_without_the_history_too(bench: Workbench) -> None:
    for number in range(3):
        bench.publish(bench.stage(number, [number]))
    bench.write_as_another(100)
    bench.expire_all_but_the_newest()
    with pytest.raises(
        DivergedError, match="2 batches more, up to 2, whose rows and offsets its history no longer lists"
    ):
        bench.recover(bench.checkpoint(0))


def test_a_staged_batch_that_the_checkpoint_has_lost_is_read_again_and_becomes_visible_once(
    bench: Workbench, caplog: pytest.LogCaptureFixture
) -> None:
    """A power failure took the newest offsets, which were not synced; the staged rows were in the object store."""
    caplog.set_level(logging.WARNING)
    bench.publish(bench.stage(0, [0]))
    lost = bench.stage(1, [1])
    new = bench.as_run(2)
    new.begin()
    older = new.checkpoint(0, newest_committed=0)
    new.recover(older)
    assert new.ids() == [0], "the checkpoint plans the number again, with other offsets"
    assert f"batch {lost.summary.key}, output main: never published: {AbandonReason.NOT_PLANNED}" in caplog.text
    again = new.stage(1, [1, 2], end_offsets=offsets(30))
    planned = new.checkpoint(1, newest_committed=0, batch_1=30)
    assert plan_output(new.catalog, new.output, checkpoint=planned).ready == (again,)
    new.recover(planned)
    assert new.ids() == [0, 1, 2]
    new.clear()
    assert new.staged() == ()


def test_a_chain_with_other_offsets_than_the_checkpoints_is_not_published(bench: Workbench) -> None:
    bench.stage(0, [0])
    other = bench.checkpoint(0, batch_0=77)
    bench.recover(other)
    assert bench.ids() == []


def test_a_mark_at_the_same_number_with_other_offsets_is_refused(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]), bench.stage(1, [1]))
    with pytest.raises(DivergedError, match=r"already holds another batch .*:1:1: its end offsets differ"):
        bench.recover(bench.checkpoint(4, batch_1=77))


def test_committed_batches_of_a_dropped_staging_table_are_missed(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    bench.stage(1, [1])
    bench.catalog.drop_table(bench.output.staging)
    bench.begin()
    with pytest.raises(DivergedError, match="1 batch is missing, 1 to 1, from"):
        bench.recover(bench.checkpoint(1, newest_committed=1))


def test_a_crash_between_publication_and_sparks_commit_goes_on(bench: Workbench) -> None:
    batch = bench.stage(0, [0])
    bench.publish(batch)
    assert bench.recover(bench.checkpoint(0, newest_committed=-1)) == (batch,)
    assert bench.ids() == [0]
