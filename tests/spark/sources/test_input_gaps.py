"""Snapshots that a stream had not read were expired: what is missing is named, and the stream continues exactly."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from tests.fixtures.continuations import expire, go_on, plan_of, run_recorded
from tests.fixtures.workshop import Workshop

from sluice.errors import InputGapError, UsageError
from sluice.maintenance.continuation import ContinuationPlan, ContinuationWay
from sluice.maintenance.retention_plan import MIN_SNAPSHOTS
from sluice_spark.run.run_start import require_unbroken_input

COLUMNS: dict[str, Any] = {"id": "long", "word": "string"}

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector."""


class Copying:
    """A stream that copies a table into another; its source is written by pyiceberg and expired by a stranger."""

    def __init__(self, workshop: Workshop, **output: Any) -> None:
        self.workshop = workshop
        self.stream = f"s{workshop.namespace}"
        self.source = workshop.declare_table("source", COLUMNS)
        self.target = workshop.declare_table("target", COLUMNS)
        workshop.declare_stream(
            self.stream,
            sql="SELECT id, word FROM records",
            inputs={"records": {"stream": {"iceberg": {"table": self.source}}}},
            outputs={"copies": {"iceberg": {"table": self.target, **output}}},
        )
        workshop.create_tables()

    def append(self, first: int, last: int) -> list[int]:
        """Append a snapshot with two rows for each number; the ids of these snapshots."""
        added = []
        for number in range(first, last):
            table = self.workshop.table(self.source)
            rows = [{"id": number, "word": "a"}, {"id": number, "word": "b"}]
            table.append(pa.Table.from_pylist(rows, table.schema().as_arrow()))
            added.append(self.workshop.table(self.source).metadata.current_snapshot_id or 0)
        return added

    def run(self) -> None:
        """Run the stream over what is there, and record its batches as its driver does."""
        run_recorded(self.workshop, self.stream)

    def expire(self, *, retain_last: int | None = 1) -> None:
        """Expire the source's snapshots."""
        expire(self.workshop, self.source, retain_last=retain_last)

    def plan(self, *, leaves_out: bool = False) -> ContinuationPlan:
        """The plan of a continuation."""
        return plan_of(self.workshop, self.stream, leaves_out=leaves_out)

    def go_on(self, *, leaves_out: bool = False) -> None:
        """Carry out a continuation."""
        go_on(self.workshop, self.stream, leaves_out=leaves_out)

    def ids(self) -> list[int]:
        """The ids in the target, read without Spark."""
        return sorted(row["id"] for row in self.workshop.rows(self.target))


def each_twice(*numbers: int) -> list[int]:
    """What the target holds when it has both rows of each number once."""
    return sorted([*numbers, *numbers])


@pytest.fixture
def copying(workshop: Workshop) -> Copying:
    """A stream that appends what it reads."""
    return Copying(workshop)


def test_a_gap_is_named_and_the_stream_continues_with_exactly_the_missing_rows(copying: Copying) -> None:
    copying.append(0, 3)
    copying.run()
    copying.append(3, 5)
    copying.run()  # pins where it continues
    *missing, reachable = copying.append(5, 12)
    copying.expire()

    with pytest.raises(InputGapError) as gap:
        copying.run()

    assert "6 snapshots with 12 appended rows were expired before they were read" in gap.value.message
    assert str(missing[0]) in gap.value.message
    assert f"sluice stream continue {copying.stream} --dry-run" in gap.value.next_step
    plan = copying.plan()
    assert (plan.seen.way, plan.seen.rows_read, plan.seen.rows_left_out) == (ContinuationWay.EXACT, 14, 0)
    assert [step.snapshot_id for step in plan.seen.gaps[0].gap.missing] == missing
    assert plan.seen.gaps[0].gap.resumes_at.snapshot_id == reachable
    copying.append(12, 14)
    copying.go_on()
    copying.run()
    copying.append(14, 15)
    copying.run()
    assert copying.ids() == each_twice(*range(15))


@pytest.mark.full
def test_a_merged_output_gets_the_newest_row_of_each_key_of_the_gap(workshop: Workshop) -> None:
    copying = Copying(workshop, mode="merge", keys=["id"], ordering_column="word")
    copying.append(0, 3)
    copying.run()
    copying.append(1, 6)
    copying.expire()

    with pytest.raises(InputGapError):
        copying.run()
    copying.go_on()
    copying.run()

    assert [(row["id"], row["word"]) for row in workshop.rows(copying.target)] == [(number, "b") for number in range(6)]


@pytest.mark.full  # every run has the rules for gaps (`test_gap_files.py`)
def test_a_second_expiry_does_not_hide_the_first_one(copying: Copying) -> None:
    copying.append(0, 2)
    copying.run()
    copying.append(2, 6)
    copying.expire()
    copying.append(6, 9)
    copying.expire()

    with pytest.raises(InputGapError):
        copying.run()
    copying.go_on()
    copying.run()

    assert copying.ids() == each_twice(*range(9))


@pytest.mark.full
def test_an_expiry_before_the_next_start_does_not_cut_the_continuation(copying: Copying) -> None:
    """The range ends with the newest snapshot; the oldest that could be reached, which it reads too, is expired."""
    copying.append(0, 2)
    copying.run()
    copying.append(2, 6)
    copying.expire()
    copying.append(6, 9)

    plan = copying.plan()
    assert plan.seen.rows_read == 14
    assert "3 expired snapshots and of the 4 up to that one" in plan.steps[1].sentence
    copying.go_on()
    copying.expire()
    copying.run()
    copying.append(9, 10)
    copying.run()

    assert copying.ids() == each_twice(*range(10))


@pytest.mark.full  # every run has the rules for gaps (`test_gap_files.py`)
def test_a_rewrite_behind_the_gap_does_not_stop_the_continuation(copying: Copying) -> None:
    """What cannot be proved up to the newest snapshot can be proved up to the oldest that can be reached."""
    copying.append(0, 2)
    copying.run()
    copying.append(2, 6)
    copying.expire()
    copying.append(6, 8)
    copying.workshop.spark.sql(
        "CALL lakehouse.system.rewrite_data_files(table => {table}, options => map('rewrite-all', 'true'))",
        table=f"lakehouse.{copying.source}",
    ).collect()

    plan = copying.plan()
    assert plan.seen.rows_read == 8
    copying.go_on()
    copying.run()

    assert copying.ids() == each_twice(*range(8))


@pytest.mark.full  # every run has it without Spark (`test_gap_commands.py`)
def test_the_missing_rows_can_be_left_out(copying: Copying) -> None:
    """Behind batch 1: Spark reads the entry of batch 0 as well."""
    copying.append(0, 1)
    copying.run()
    copying.append(1, 2)
    copying.run()
    copying.append(2, 6)
    copying.expire()

    plan = copying.plan(leaves_out=True)

    assert (plan.seen.way, plan.seen.rows_read, plan.seen.rows_left_out) == (ContinuationWay.LEAVE_OUT, 0, 6)
    copying.go_on(leaves_out=True)
    copying.append(6, 7)
    copying.run()
    assert copying.ids() == each_twice(0, 1, 5, 6)


@pytest.mark.full  # every run continues with the missing rows
def test_what_was_rewritten_is_not_proved_and_the_choices_are_named(copying: Copying) -> None:
    copying.append(0, 2)
    copying.run()
    copying.append(2, 8)
    copying.workshop.spark.sql(
        "CALL lakehouse.system.rewrite_data_files(table => {table})", table=f"lakehouse.{copying.source}"
    ).collect()
    copying.append(8, 9)
    copying.expire()

    with pytest.raises(UsageError) as refusal:
        copying.plan()

    assert "did not only append: it is `replace`" in refusal.value.message
    assert "--leave-out" in refusal.value.next_step
    assert "sluice stream reset" in refusal.value.next_step


@pytest.mark.full  # every run has it without Spark (`test_gap_commands.py`)
def test_without_a_gap_there_is_nothing_to_continue(copying: Copying) -> None:
    copying.append(0, 2)
    copying.run()

    with pytest.raises(UsageError, match="there is no gap"):
        copying.plan()


@pytest.mark.full
def test_a_batch_that_is_visible_and_not_committed_is_not_read_again(copying: Copying) -> None:
    """The driver died between publishing its batch and committing it in the checkpoint."""
    copying.append(0, 3)
    copying.run()
    copying.append(3, 5)
    copying.run()
    copying.workshop.forget_last_commit(copying.stream)
    table = copying.workshop.table(copying.source)
    position = table.metadata.current_snapshot_id
    assert position is not None
    table.manage_snapshots().create_tag(position, "end_of_the_visible_batch").commit()
    copying.append(5, 9)
    copying.expire()

    with pytest.raises(InputGapError):
        copying.run()
    copying.go_on()
    copying.run()

    assert copying.ids() == each_twice(*range(9))


@pytest.mark.full
def test_an_expiry_that_gives_no_number_of_its_own_keeps_what_a_slow_reader_needs(copying: Copying) -> None:
    """The stream has the table ask for it; Spark's procedure takes the number from the table."""
    copying.append(0, 3)
    copying.run()
    copying.append(3, 30)
    copying.workshop.run(copying.stream, stop_after_batches=1)
    table = copying.workshop.table(copying.source)
    assert int(table.properties[MIN_SNAPSHOTS]) >= 28
    copying.append(30, 40)

    copying.expire(retain_last=None)
    copying.run()

    assert copying.ids() == each_twice(*range(40))


@pytest.mark.full  # every run names one at a start
def test_a_gap_that_opens_after_the_start_is_named_too(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    copying.append(0, 2)
    copying.run()
    copying.append(2, 6)
    looks = []

    def expires_after_the_first(*arguments: Any, **named: Any) -> None:
        require_unbroken_input(*arguments, **named)
        looks.append(arguments)
        if len(looks) == 1:
            copying.expire()

    monkeypatch.setattr("sluice_spark.run.run_start.require_unbroken_input", expires_after_the_first)

    with pytest.raises(InputGapError, match="were expired before they were read"):
        copying.run()

    assert len(looks) == 1  # the second look has raised


@pytest.mark.full  # what it shows of Iceberg changes with Iceberg's version alone
def test_icebergs_own_check_names_nothing(copying: Copying, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counterpart: without our check the stream fails as well, and its error does not name what is missing."""
    monkeypatch.setattr("sluice_spark.run.run_start.require_unbroken_input", lambda *_, **__: None)
    copying.append(0, 2)
    copying.run()
    copying.append(2, 6)
    copying.expire()

    with pytest.raises(PySparkException, match=r"Cannot find snapshot after|expired or removed"):
        copying.run()
