"""A position within a snapshot: files that a continuation has planned to read, and that no run has read yet, or a
snapshot that was read in part.

Every test run continues with such files (`test_input_gaps.py`), and knows what is planned without Spark
(`test_planned_scans.py`, `test_gap_files.py`).
"""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest
from tests.fixtures.continuations import expire, go_on, plan_of
from tests.fixtures.faulty_drivers import declare_lost
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_unmarked_outputs import feed, with_files
from tests.spark.runs.test_torn_staging import declare_outputs, repair
from tests.spark.sources.test_unpublished_ways_out import cut, ids

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import CheckpointError, UsageError
from sluice.positions.rewind_stream import rewind_stream
from sluice.publication.crash_points import CrashPoint


def start(workshop: Workshop) -> str:
    """A stream with a row; its name."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    feed(workshop, stream, 1)
    return stream


@pytest.mark.full
def test_an_input_that_was_rolled_back_into_a_planned_read_is_not_followed(workshop: Workshop) -> None:
    stream = start(workshop)
    for number in (2, 3, 4):
        workshop.append("source", [{"id": number}])
    *_, third, fourth = (one.snapshot_id for one in workshop.table("source").history())
    expire(workshop, workshop.table_name("source"), retain_last=2)
    go_on(workshop, stream)
    workshop.table("source").manage_snapshots().rollback_to_snapshot(third).commit()
    for leaves_out in (False, True):
        with pytest.raises(UsageError, match="would never be read") as refused:
            plan_of(workshop, stream, leaves_out=leaves_out)
        assert f"to snapshot {fourth}, and `sluice stream start {stream}`" in (refused.value.next_step or "")
    workshop.spark.sql(
        "CALL lakehouse.system.set_current_snapshot(table => {table}, snapshot_id => {id})",
        table=f"lakehouse.{workshop.table_name('source')}",
        id=fourth,
    ).collect()
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first") == [1, 2, 3, 4]


@pytest.mark.full
@pytest.mark.parametrize("is_beside_files", [False, True])
def test_a_planned_read_that_is_cut_off_is_left_out_with_its_rows(
    workshop: Workshop, tmp_path: Path, *, is_beside_files: bool
) -> None:
    """No output has the batch that the first continuation has planned: nothing is unknown of it."""
    if is_beside_files:
        workshop, stream = with_files(workshop, tmp_path / "lake", with_table=True)
        feed(workshop, stream, 1)
    else:
        stream = start(workshop)
    cut(workshop, 2, 3)
    go_on(workshop, stream)
    cut(workshop, 4, 5)
    plan = go_on(workshop, stream, leaves_out=True)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first") == [1, 5]
    assert plan.seen.rows_left_out == 3
    said = " ".join(plan.sentences())
    assert "Leave out 1 rows of 1 expired snapshots and 2 rows of snapshot" in said
    assert "may be missing" not in said


@pytest.mark.full  # every run counts them without Spark (`test_gap_files.py`)
def test_a_snapshot_that_was_read_in_part_is_left_out_with_the_rest_of_its_rows(workshop: Workshop) -> None:
    stream = start(workshop)
    rows = workshop.spark.createDataFrame([(2,), (3,), (4,)], "id long").repartition(3, "id")
    rows.writeTo(f"lakehouse.{workshop.table_name('source')}").append()
    begun = []

    def dying_in_the_second(here: CrashPoint) -> None:
        begun.extend([here] if here is CrashPoint.BATCH_BEGUN else [])
        if len(begun) == 2:
            raise OSError("the driver dies here")

    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_in_the_second)
    declare_lost(workshop, stream)
    cut(workshop, 5, 6)
    plan = go_on(workshop, stream, leaves_out=True)
    workshop.run(stream, is_recorded=True)
    shown = ids(workshop, "first")
    assert 1 < len(shown) < 5
    assert plan.seen.rows_left_out == 6 - len(shown)


@pytest.mark.full
def test_a_planned_read_is_kept_by_a_continuation_for_another_reason(workshop: Workshop) -> None:
    """Planned by Spark, the batch would read row 1 again: it is in a file of the snapshot that is read."""
    stream = start(workshop)
    cut(workshop, 2, 3)
    go_on(workshop, stream)
    workshop.catalog.drop_table(workshop.table_name("first"))
    workshop.create_tables(only=workshop.table_name("first"))
    plan = go_on(workshop, stream, leaves_out=True)
    assert "read the 2 rows that its next batch is planned to read" in " ".join(plan.sentences())
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first") == [2, 3]


@pytest.mark.full
def test_a_planned_read_that_is_lost_is_not_planned_by_spark(workshop: Workshop) -> None:
    """The plan was torn when the driver died in it, and a repair has removed it."""
    stream = start(workshop)
    cut(workshop, 2, 3)
    go_on(workshop, stream)
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.BATCH_BEGUN))
    declare_lost(workshop, stream)
    (workshop.checkpoint(stream) / "offsets" / "1").write_text("")
    repair(workshop, stream)
    with pytest.raises(CheckpointError, match="has lost which files of snapshot") as refused:
        workshop.run(stream, is_recorded=True)
    assert f"`sluice stream reset {stream} --dry-run`" in (refused.value.next_step or "")
    assert ids(workshop, "first") == [1]


def rewind(workshop: Workshop, stream: str, *, batch: int, dies_at: int = 0) -> None:
    """A rewind that dies at a step of it; 0: at none."""
    steps = count(1)

    def reached(_: CrashPoint) -> None:
        if next(steps) == dies_at:
            raise OSError("the rewind dies here")

    rewind_stream(
        workshop.ledger,
        workshop.catalog,
        load_declarations(workshop.folder),
        workshop.settings,
        stream=stream,
        batch=batch,
        asked_by="a test",
        reached=reached,
    )


@pytest.mark.full
def test_a_rewind_to_where_a_continuation_began_is_completed_over_a_log_that_spark_has_purged(
    workshop: Workshop,
) -> None:
    """Each try dies one step further. What only later batches know of the log is written before they are forgotten."""
    stream = start(workshop)
    cut(workshop, 2, 3)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    feed(workshop, stream, 4, 5)
    for purged in ("offsets/0", "offsets/1", "commits/0", "commits/1"):
        (workshop.checkpoint(stream) / purged).unlink()

    for step in count(1):
        try:
            rewind(workshop, stream, batch=0, dies_at=step)
        except OSError:
            continue
        break

    assert step > 5
    assert ids(workshop, "first") == [1]
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first") == [1, 2, 3, 4, 5]
