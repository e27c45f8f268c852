"""Continuations of a stream whose driver died in a batch that only some of its outputs show: each has a way out.

Every test run continues a stream past a gap (`test_input_gaps.py`), and has a batch that was planned and is not
visible without Spark (`test_gap_commands.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.continuations import expire, go_on, plan_of
from tests.fixtures.faulty_drivers import declare_lost
from tests.fixtures.streams_of_tables import dying_at, writing
from tests.fixtures.workshop import Workshop
from tests.spark.runs.test_torn_records import uncommit
from tests.spark.runs.test_torn_staging import declare_outputs, repair, run_with_two, tear

from sluice.errors import InputGapError, UsageError
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import staging_name


def cut(workshop: Workshop, *ids: int) -> None:
    """More rows in the input, and its history cut behind what the stream has read."""
    for number in ids:
        workshop.append("source", [{"id": number}])
    expire(workshop, workshop.table_name("source"))


def die_in_a_batch(workshop: Workshop, stream: str, *, batch: int, at: CrashPoint = CrashPoint.PUBLISHED) -> None:
    """The driver of a stream dies in a batch, and Spark has not committed that."""
    workshop.append("source", [{"id": batch + 1}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(at))
    declare_lost(workshop, stream)
    if (workshop.checkpoint(stream) / "commits" / str(batch)).exists():
        uncommit(workshop, stream, batch)


def ids(workshop: Workshop, table: str) -> list[int]:
    """The ids in a table."""
    return [row["id"] for row in workshop.rows(table)]


def declare_beside(workshop: Workshop, **others: Mapping[str, Any]) -> str:
    """A stream with an Iceberg output `first` and others that show no batch; its name."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = f"s{workshop.namespace}"
    workshop.declare_stream(
        stream,
        python="def transform(r):\n    return {'first': r, 'other': r}\n\ndef note(rows, key):\n    rows.collect()\n",
        inputs={"r": {"stream": {"iceberg": {"table": workshop.table_name("source"), "max_rows_per_batch": 1}}}},
        outputs={"first": {"iceberg": {"table": workshop.table_name("first")}}, **others},
    )
    return stream


@pytest.mark.full
def test_an_output_that_shows_no_batch_leaves_a_way_past_the_gap(workshop: Workshop) -> None:
    """The table shows the batch, and nothing shows whether the other output has it."""
    stream = declare_beside(workshop, other={"python": {"function": f"s{workshop.namespace}.py:note"}})
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    die_in_a_batch(workshop, stream, batch=1)
    cut(workshop, 3, 4)

    with pytest.raises(UsageError, match="nothing shows whether other has it") as refused:
        plan_of(workshop, stream)
    assert f"`sluice stream continue {stream} --leave-out`" in (refused.value.next_step or "")
    plan = go_on(workshop, stream, leaves_out=True)
    assert "Batch 1 may be missing in other" in " ".join(plan.sentences())
    workshop.run(stream, is_recorded=True)

    found = ids(workshop, "first")
    assert len(found) == len(set(found)), found
    assert found[:2] == [1, 2]


@pytest.mark.full
def test_a_checkpoint_that_was_set_back_is_repaired_before(workshop: Workshop) -> None:
    """The table shows more than the checkpoint has planned."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    for number in (1, 2):
        workshop.append("source", [{"id": number}])
        workshop.run(stream, is_recorded=True)
    uncommit(workshop, stream, 1)
    for file in Path(workshop.checkpoint(stream) / "offsets").glob("*1*"):
        file.unlink()
    cut(workshop, 3, 4)

    for leaves_out in (False, True):
        with pytest.raises(UsageError, match="batch 1:1") as refused:
            plan_of(workshop, stream, leaves_out=leaves_out)
        assert f"`sluice stream repair {stream} --dry-run`" in (refused.value.next_step or "")


@pytest.mark.full
def test_an_output_that_the_stream_left_does_not_hide_a_visible_batch(workshop: Workshop) -> None:
    """The stream went without the second output; it is declared again, and no run has begun with it."""
    stream = run_with_two(workshop)
    declare_outputs(workshop, "first")
    die_in_a_batch(workshop, stream, batch=1)
    declare_outputs(workshop, "first", "second")
    cut(workshop, 3, 4)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first") == [1, 2, 3, 4]
    assert ids(workshop, "second") == [1, 3, 4]


@pytest.mark.full
def test_a_new_output_that_a_start_has_opened_leaves_a_way_past_the_gap(workshop: Workshop) -> None:
    """The start ended for the gap, before Spark could run the batch again for the new output."""
    for table in ("source", "first", "second"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    die_in_a_batch(workshop, stream, batch=1)
    declare_outputs(workshop, "first", "second")
    cut(workshop, 3, 4)
    with pytest.raises(InputGapError):
        workshop.run(stream, is_recorded=True)
    with pytest.raises(UsageError, match="batch 1:1") as refused:
        plan_of(workshop, stream)
    assert (refused.value.next_step or "").startswith(f"`sluice stream continue {stream} --leave-out` takes it for")
    go_on(workshop, stream, leaves_out=True)
    workshop.run(stream, is_recorded=True)
    found = ids(workshop, "first")
    assert len(found) == len(set(found)), found
    assert found[:2] == [1, 2]


@pytest.mark.full
def test_a_batch_that_nothing_stages_any_more_is_given_up_with_its_number(workshop: Workshop) -> None:
    """One of two tables shows it, the other was never given it, and the start cannot read it."""
    stream = run_with_two(workshop)
    die_in_a_batch(workshop, stream, batch=1, at=CrashPoint.FIRST_OUTPUT_PUBLISHED)
    staging = workshop.catalog.load_table(staging_name(stream, "second"))
    staging.delete("id = 2")
    cut(workshop, 3, 4)
    with pytest.raises(UsageError, match="batch 1:1"):
        plan_of(workshop, stream)
    plan = go_on(workshop, stream, leaves_out=True)
    assert "Give up" in " ".join(plan.sentences())
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first")[:2] == [1, 2]
    assert ids(workshop, "first").count(2) == 1


@pytest.mark.full  # `test_input_gaps.py` has the gap of staged outputs
def test_iceberg_s_own_sink_skips_no_row_behind_a_gap(workshop: Workshop) -> None:
    """It skips a batch when the table has one of its number, by the same query."""
    for table in ("source", "target"):
        workshop.declare_table(table, {"id": "long"})
    stream = f"s{workshop.namespace}"
    workshop.declare_stream(
        stream,
        sql="SELECT * FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": workshop.table_name("source"), "max_rows_per_batch": 1}}}},
        outputs=writing(workshop.table_name("target"), delivery="direct"),
        mode="continuous",
        trigger={"processing_time": "100 milliseconds"},
    )
    for number in (1, 2):
        workshop.append("source", [{"id": number}])
    workshop.run(stream, is_recorded=True, stop_after_batches=2)
    workshop.forget_last_commit(stream)
    cut(workshop, 3, 4)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True, stop_after_batches=2)
    assert ids(workshop, "target") == [1, 2, 3, 4]


@pytest.mark.full
def test_what_waits_in_a_torn_staging_table_is_not_published_by_a_start(workshop: Workshop) -> None:
    stream = run_with_two(workshop)
    workshop.append("source", [{"id": 2}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.FIRST_OUTPUT_PUBLISHED))
    declare_lost(workshop, stream)
    tear(workshop, stream, "second")
    cut(workshop, 3, 4)
    with pytest.raises(UsageError) as refused:
        plan_of(workshop, stream)
    assert "sluice stream start" not in (refused.value.next_step or "")
    plan = go_on(workshop, stream, leaves_out=True)
    assert "Give up 1 batch with 1 rows" in " ".join(plan.sentences())
    repair(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first") == [1, 2, 4]


@pytest.mark.full
def test_a_visible_batch_is_not_read_again_because_its_output_has_another_name(workshop: Workshop) -> None:
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = f"s{workshop.namespace}"

    def declare_as(output: str) -> None:
        workshop.declare_stream(
            stream,
            sql="SELECT * FROM r",
            inputs={"r": {"stream": {"iceberg": {"table": workshop.table_name("source"), "max_rows_per_batch": 1}}}},
            outputs={output: {"iceberg": {"table": workshop.table_name("first")}}},
        )

    declare_as("before")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    die_in_a_batch(workshop, stream, batch=1)
    declare_as("after")
    cut(workshop, 3, 4)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first") == [1, 2, 3, 4]
