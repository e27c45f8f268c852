"""Targets of Iceberg's own sink that were rolled back, and those that only look so.

Every run has one that a start, an adoption and a repair notice (`test_unmarked_ways_out.py`).
"""

from __future__ import annotations

import pytest
from sqlalchemy import text
from tests.fixtures.continuations import expire, go_on, plan_of
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_unmarked_outputs import declare_direct, feed
from tests.spark.runs.test_torn_staging import repair
from tests.spark.sources.test_unpublished_ways_out import cut, ids

from sluice.errors import RolledBackError, UnpublishableError
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState
from sluice.supervision.stream_reset import reset_stream


def roll_back(workshop: Workshop, stream: str) -> int:
    """A stream whose table was rolled back behind the first of three batches; the snapshot of the newest."""
    feed(workshop, stream, 1)
    first = workshop.table("target").current_snapshot()
    feed(workshop, stream, 2, 3)
    newest = workshop.table("target").current_snapshot()
    assert first is not None
    assert newest is not None
    workshop.table("target").manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    return newest.snapshot_id


@pytest.mark.full
@pytest.mark.parametrize("leaves_out", [True, False])
def test_a_target_that_was_rolled_back_is_not_continued(workshop: Workshop, *, leaves_out: bool) -> None:
    stream = declare_direct(workshop)
    newest = roll_back(workshop, stream)
    cut(workshop, 4, 5)
    with pytest.raises(RolledBackError, match="main does not lead to batch 2"):
        plan_of(workshop, stream, leaves_out=leaves_out)
    workshop.table("target").manage_snapshots().set_current_snapshot(newest).commit()
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "target") == [1, 2, 3, 4, 5]


@pytest.mark.full  # every run notices one without a continuation
def test_a_target_that_was_rolled_back_behind_a_continuation_is_noticed(workshop: Workshop) -> None:
    """The new generation has no batch yet that the ledger could know."""
    stream = declare_direct(workshop)
    feed(workshop, stream, 1)
    first = workshop.table("target").current_snapshot()
    assert first is not None
    feed(workshop, stream, 2, 3)
    cut(workshop, 4, 5)
    go_on(workshop, stream)
    workshop.table("target").manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(RolledBackError, match="main does not lead to batch 2"):
        workshop.run(stream, is_recorded=True)


@pytest.mark.full
def test_a_reset_of_a_target_that_was_rolled_back_begins_from_nothing(workshop: Workshop) -> None:
    """The ledger does not have its first batch: what it has of the generation before is of another query."""
    stream = declare_direct(workshop)
    roll_back(workshop, stream)
    set_desired_state(workshop.ledger, stream, DesiredState.STOPPED)
    reset_stream(workshop.ledger, workshop.stream(stream), workshop.settings, asked_by="a test")
    set_desired_state(workshop.ledger, stream, DesiredState.RUNNING)
    workshop.run(stream, is_recorded=True)
    with workshop.ledger.transaction() as connection:
        connection.execute(text("DELETE FROM batches WHERE stream = :stream AND generation = 2"), {"stream": stream})
    feed(workshop, stream, 4)
    assert ids(workshop, "target") == [1, 1, 2, 3, 4]


@pytest.mark.full
def test_a_continuation_is_begun_where_no_snapshot_of_the_sink_is_listed(workshop: Workshop) -> None:
    """Its first batch is planned with the time of the one before, and nothing of it was written then."""
    stream = declare_direct(workshop)
    feed(workshop, stream, 1, 2)
    for name in [name for name in workshop.table("target").refs() if name != "main"]:
        workshop.table("target").manage_snapshots().remove_tag(name).commit()
    workshop.append("target", [{"id": 50}])
    expire(workshop, workshop.table_name("target"))
    cut(workshop, 3, 4)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "target") == [1, 2, 3, 4, 50]


@pytest.mark.full
def test_a_repair_of_a_rolled_back_target_takes_nothing_from_its_checkpoint(workshop: Workshop) -> None:
    """The way that is named brings the stream on."""
    stream = declare_direct(workshop)
    newest = roll_back(workshop, stream)
    with pytest.raises(UnpublishableError, match="was rolled back: main does not lead to batch 2"):
        repair(workshop, stream)
    workshop.table("target").manage_snapshots().set_current_snapshot(newest).commit()
    feed(workshop, stream, 4)
    assert ids(workshop, "target") == [1, 2, 3, 4]


@pytest.mark.full  # every run notices what was rolled back
def test_a_snapshot_that_was_cherry_picked_is_no_batch_to_the_sink(workshop: Workshop) -> None:
    """The pick of the newest one alone would hide the batch before it."""
    stream = declare_direct(workshop)
    newest = roll_back(workshop, stream)
    workshop.append("target", [{"id": 50}])
    workshop.spark.sql(
        "CALL lakehouse.system.cherrypick_snapshot(table => {table}, snapshot_id => {snapshot})",
        table=workshop.table_name("target"),
        snapshot=newest,
    ).collect()
    with pytest.raises(RolledBackError, match="main does not lead to batch 2"):
        feed(workshop, stream, 4)


@pytest.mark.full
@pytest.mark.parametrize("is_first", [True, False])
def test_a_target_without_any_batch_of_the_stream_is_noticed(workshop: Workshop, *, is_first: bool) -> None:
    """It was rolled back to what another writer had in it, before or behind a continuation."""
    stream = declare_direct(workshop)
    workshop.append("target", [{"id": 50}])
    before = workshop.table("target").current_snapshot()
    assert before is not None

    def set_back_target() -> None:
        workshop.table("target").manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()

    feed(workshop, stream, 1, 2, 3)
    cut(workshop, 4, 5)
    if is_first:
        set_back_target()
        with pytest.raises(RolledBackError, match="main does not lead to batch 2"):
            plan_of(workshop, stream)
    else:
        go_on(workshop, stream)
        set_back_target()
        with pytest.raises(RolledBackError, match="main does not lead to batch 2"):
            workshop.run(stream, is_recorded=True)
