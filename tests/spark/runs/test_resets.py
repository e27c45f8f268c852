"""A reset stream reads anew into a new checkpoint; the old one stays, and so does what was published and recorded."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
from tests.fixtures.workshop import Workshop

from sluice.errors import RolledBackError
from sluice.ledger.batches import recent_batches
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.generations import find_generation
from sluice.ledger.run_values import DesiredState
from sluice.publication.crash_points import CrashPoint
from sluice.supervision.stream_reset import plan_reset, reset_stream

ROWS = [{"id": number, "word": f"w{number}"} for number in range(4)]


def declare(workshop: Workshop, name: str, **output: Any) -> None:
    """A stream that copies a table into another one."""
    for table in ("source", "target"):
        workshop.declare_table(table, {"id": "long", "word": "string"})
    workshop.declare_stream(
        name,
        sql="SELECT id, word FROM rows",
        inputs={"rows": {"stream": {"iceberg": {"table": workshop.table_name("source")}}}},
        outputs={"main": {"iceberg": {"table": workshop.table_name("target"), **output}}},
    )


def leave_behind(workshop: Workshop, name: str) -> tuple[str, ...]:
    """Stop and reset the stream as a person does; the sentences of the plan."""
    set_desired_state(workshop.ledger, name, DesiredState.STOPPED)
    stream = workshop.stream(name)
    plan = plan_reset(workshop.ledger, stream, workshop.settings)
    reset_stream(workshop.ledger, stream, workshop.settings, planned=plan.digest, asked_by="ann")
    set_desired_state(workshop.ledger, name, DesiredState.RUNNING)
    return tuple(step.sentence for step in plan.steps)


@pytest.mark.parametrize(
    ("output", "times"),
    [
        ({"mode": "append"}, 2),
        pytest.param({"mode": "merge", "keys": ["id"]}, 1, marks=pytest.mark.full),  # a reset does not look at the mode
        pytest.param({"mode": "append", "delivery": "direct"}, 2, marks=pytest.mark.full),  # as above
    ],
    ids=["append", "merge", "direct"],
)
def test_a_reset_stream_reads_again_into_a_new_checkpoint(
    output: dict[str, Any], times: int, workshop: Workshop
) -> None:
    name = f"s{workshop.namespace}"
    declare(workshop, name, **output)
    workshop.append("source", ROWS)
    workshop.run_supervised(name)
    before = workshop.checkpoint(name)
    files = sorted(before.rglob("*"))
    steps = leave_behind(workshop, name)
    assert any("every row of" in step and "; now these are 4 rows in " in step for step in steps)
    after = workshop.checkpoint(name)
    assert (after, after.exists()) == (before.parent / "2", False)

    workshop.run_supervised(name)

    assert workshop.rows("target") == sorted(ROWS * times, key=lambda row: int(str(row["id"])))
    assert sorted(before.rglob("*")) == files, "the old checkpoint is kept"
    assert (after / "commits" / "0").exists()
    keys = [str(batch.key) for batch in recent_batches(workshop.ledger, name, limit=9)]
    assert keys == [f"{name}:2:0", f"{name}:1:0"]
    workshop.append("source", [{"id": 9, "word": "new"}])
    workshop.run_supervised(name)
    assert len(workshop.rows("target")) == len(ROWS) * times + 1, "and it goes on from there"


def test_a_batch_that_waited_staged_is_abandoned_and_the_visible_one_before_it_is_recorded(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    declare(workshop, name)
    workshop.append("source", ROWS)
    _crash(workshop, name, at=CrashPoint.PUBLISHED)
    assert recent_batches(workshop.ledger, name, limit=9) == (), "it is visible, and nobody has recorded it"
    steps = leave_behind(workshop, name)
    assert "No batch is staged." in steps
    workshop.append("source", [{"id": 9, "word": "new"}])
    _crash(workshop, name, at=CrashPoint.STAGED)
    steps = leave_behind(workshop, name)
    assert any(step.startswith("1 staged batches with 5 rows are never published.") for step in steps)

    workshop.run_supervised(name)

    generation = find_generation(workshop.ledger, name)
    assert generation is not None
    assert generation.generation == 3
    assert len(workshop.rows("target")) == len(ROWS) + len(ROWS) + 1, "of generations 1 and 3; 2 published nothing"
    keys = [str(batch.key) for batch in recent_batches(workshop.ledger, name, limit=9)]
    assert keys == [f"{name}:3:0", f"{name}:1:0"]


def _crash(workshop: Workshop, name: str, *, at: CrashPoint) -> None:
    """Let a run end at a place, as a crash would."""

    def reached(point: CrashPoint) -> None:
        if point is at:
            raise RuntimeError("crash")

    with pytest.raises(Exception, match="crash"):
        workshop.run(name, reached=reached)


def test_a_reset_that_could_not_start_is_refused_and_a_deleted_checkpoint_is_not_called_kept(
    workshop: Workshop,
) -> None:
    name = f"s{workshop.namespace}"
    declare(workshop, name)
    workshop.append("source", ROWS)
    workshop.run_supervised(name)
    first = workshop.table("target").metadata.current_snapshot_id
    assert first is not None
    workshop.append("source", [{"id": 9, "word": "new"}])
    workshop.run_supervised(name)
    newest = workshop.table("target").metadata.current_snapshot_id
    set_desired_state(workshop.ledger, name, DesiredState.STOPPED)
    shutil.rmtree(workshop.checkpoint(name))
    workshop.table("target").manage_snapshots().rollback_to_snapshot(first).commit()

    with pytest.raises(RolledBackError, match="A reset would not help") as refusal:
        plan_reset(workshop.ledger, workshop.stream(name), workshop.settings)

    assert f"`sluice table adopt {workshop.table_name('target')} --undo`" in refusal.value.next_step
    workshop.spark.sql(f"CALL lakehouse.system.set_current_snapshot('{workshop.table_name('target')}', {newest})")
    plan = plan_reset(workshop.ledger, workshop.stream(name), workshop.settings)
    assert "is not there any more." in plan.steps[0].sentence
