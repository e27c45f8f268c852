"""Continuations beside what waits in a former output, what was given up before, and marks that are gone.

Every test run continues a stream past a gap (`test_input_gaps.py`), and has a batch that was planned and is not
visible without Spark (`test_gap_commands.py`).
"""

from __future__ import annotations

import pytest
from tests.faults.ways_out.cells import AFTER, BEFORE
from tests.faults.ways_out.damages import set_back_afterwards
from tests.faults.ways_out.kinds import Kind, Subject
from tests.fixtures.continuations import expire, go_on, plan_of
from tests.fixtures.faulty_drivers import declare_lost
from tests.fixtures.refreshes import refresh
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_held_batches import choose
from tests.spark.runs.test_torn_records import uncommit
from tests.spark.runs.test_torn_staging import declare_outputs, run_with_two
from tests.spark.sources.test_unpublished_batches import hold_two

from sluice.errors import InputGapError, UsageError
from sluice.operations import OperationVerb
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import StagedOutput


@pytest.mark.full
def test_what_waits_for_a_former_output_is_not_left_behind_in_silence(workshop: Workshop) -> None:
    """Without the continuation, the start refuses until a person has decided about it."""
    stream = run_with_two(workshop)
    workshop.append("source", [{"id": 2}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.FIRST_OUTPUT_PUBLISHED))
    declare_lost(workshop, stream)
    found = {one: [row["id"] for row in workshop.rows(one)] for one in ("first", "second")}
    (behind,) = (one for one, there in found.items() if there == [1])
    (ahead,) = (one for one, there in found.items() if there == [1, 2])
    declare_outputs(workshop, ahead)
    for number in (3, 4):
        workshop.append("source", [{"id": number}])
    expire(workshop, workshop.table_name("source"))
    with pytest.raises(UsageError, match="which is not declared any more") as refused:
        go_on(workshop, stream)
    assert f"`sluice batch publish {stream} {behind}`" in (refused.value.next_step or "")


@pytest.mark.full
def test_what_was_given_up_once_is_not_to_be_given_up_again(workshop: Workshop) -> None:
    """No run has followed the first continuation, and the input was cut once more."""
    stream = hold_two(workshop)
    go_on(workshop, stream, leaves_out=True)
    for number in (6, 7):
        workshop.append("source", [{"id": number, "price": number}])
    expire(workshop, workshop.table_name("source"))

    said = " ".join(plan_of(workshop, stream, leaves_out=True).sentences())
    assert "Give up" not in said, said


@pytest.mark.full
def test_who_has_decided_is_not_told_to_decide(workshop: Workshop) -> None:
    stream = hold_two(workshop)
    choose(workshop, stream, OperationVerb.RELEASE_BATCH)
    with pytest.raises(UsageError, match="not visible") as refused:
        plan_of(workshop, stream)
    assert "Decide about" not in (refused.value.next_step or "")


@pytest.mark.full
def test_batches_are_counted_where_the_mark_was_removed(workshop: Workshop) -> None:
    """A visible batch that is still staged is no loss, and one that is neither staged nor visible is one."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    workshop.append("source", [{"id": 2}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.PUBLISHED))
    declare_lost(workshop, stream)
    assert [row["id"] for row in workshop.rows("first")] == [1, 2]
    names = StagedOutput(stream=stream, output="first", target=workshop.table_name("first"))
    with workshop.table("first").transaction() as changed:
        changed.remove_properties(names.mark_property)
    for number in (3, 4):
        workshop.append("source", [{"id": number}])
    expire(workshop, workshop.table_name("source"))

    assert plan_of(workshop, stream, leaves_out=True).evidence["rows_given_up"] == 0


def wait_together(workshop: Workshop) -> str:
    """A stream of which three batches wait to be published together, and whose driver died; its name."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_for(workshop, "first")
    for number in (1, 2, 3):
        workshop.append("source", [{"id": number}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.CHECKED))
    declare_lost(workshop, stream)
    for number in (4, 5):
        workshop.append("source", [{"id": number}])
    expire(workshop, workshop.table_name("source"))
    return stream


def declare_for(workshop: Workshop, table: str) -> str:
    """The stream with its output for a table."""
    stream = f"s{workshop.namespace}"
    workshop.declare_stream(
        stream,
        sql="SELECT * FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": workshop.table_name("source"), "max_rows_per_batch": 1}}}},
        outputs={"main": {"iceberg": {"table": workshop.table_name(table), "publish_every": "1 hour"}}},
    )
    return stream


@pytest.mark.full
def test_what_waits_for_the_former_table_of_an_output_is_not_left_behind(workshop: Workshop) -> None:
    """The new table is declared, and not created yet."""
    stream = wait_together(workshop)
    workshop.declare_table("other", {"id": "long"})
    declare_for(workshop, "other")
    workshop.catalog.drop_table(workshop.table_name("other"))
    with pytest.raises(UsageError, match="not visible"):
        go_on(workshop, stream)


@pytest.mark.full
def test_what_waits_for_another_table_is_decided_about_before(workshop: Workshop) -> None:
    """The output is declared for another table, which is there."""
    stream = wait_together(workshop)
    workshop.declare_table("other", {"id": "long"})
    declare_for(workshop, "other")
    workshop.create_tables()
    with pytest.raises(UsageError, match="or for another table") as refused:
        go_on(workshop, stream)
    assert f"`sluice batch publish {stream} main`" in (refused.value.next_step or "")


@pytest.mark.full
def test_what_was_given_up_does_not_refuse_a_move_to_a_new_input(workshop: Workshop) -> None:
    """No run has followed the first continuation, and the input was deleted and created again."""
    stream = hold_two(workshop)
    go_on(workshop, stream, leaves_out=True)
    source = workshop.table_name("source")
    workshop.catalog.drop_table(source)
    workshop.create_tables()
    workshop.append("source", [{"id": 8, "price": 8}])

    plan_of(workshop, stream)


@pytest.mark.full
def test_a_refresh_that_has_landed_leaves_nothing_that_is_not_visible(workshop: Workshop) -> None:
    """The ledger does not have its generation yet."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    for number in (1, 2):
        workshop.append("source", [{"id": number}])
    workshop.run(stream, is_recorded=True)
    with pytest.raises(OSError, match="dies here"):
        refresh(workshop, stream, reached=dying_at(CrashPoint.COMMITTED))
    for number in (3, 4):
        workshop.append("source", [{"id": number}])
    expire(workshop, workshop.table_name("source"))
    assert [row["id"] for row in workshop.rows("first")] == [1, 2]
    try:
        said = " ".join(plan_of(workshop, stream, leaves_out=True).sentences())
    except UsageError as refused:
        said = str(refused)
    assert "not visible" not in said, said


@pytest.mark.full  # every run: such a death without a gap (`test_delivery.py`)
def test_a_batch_that_one_of_two_tables_shows_is_in_each_of_them_once(workshop: Workshop) -> None:
    """The driver died between two tables, before Spark wrote the commit of the batch."""
    stream = run_with_two(workshop)
    workshop.append("source", [{"id": 2}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.FIRST_OUTPUT_PUBLISHED))
    declare_lost(workshop, stream)
    uncommit(workshop, stream, 1)
    for number in (3, 4):
        workshop.append("source", [{"id": number}])
    expire(workshop, workshop.table_name("source"))
    with pytest.raises(UsageError, match="and second does not"):
        go_on(workshop, stream)
    with pytest.raises(InputGapError):
        workshop.run(stream, is_recorded=True)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    found = {one: [row["id"] for row in workshop.rows(one)] for one in ("first", "second")}
    assert found == {"first": [1, 2, 3, 4], "second": [1, 2, 3, 4]}


@pytest.mark.full
def test_a_visible_batch_is_not_read_again_because_an_output_is_new(workshop: Workshop) -> None:
    """The only output shows the batch, the driver died before its commit, and another output is declared since."""
    for table in ("source", "first", "second"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    workshop.append("source", [{"id": 2}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.PUBLISHED))
    declare_lost(workshop, stream)
    uncommit(workshop, stream, 1)
    declare_outputs(workshop, "first", "second")
    for number in (3, 4):
        workshop.append("source", [{"id": number}])
    expire(workshop, workshop.table_name("source"))
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert [row["id"] for row in workshop.rows("first")] == [1, 2, 3, 4]


@pytest.mark.full
@pytest.mark.parametrize("then", [("first",), ("first", "second")])
def test_outputs_that_come_and_go_refuse_no_continuation(workshop: Workshop, then: tuple[str, ...]) -> None:
    """The second output was left for a batch, and nothing waits."""
    stream = run_with_two(workshop)
    declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 2}])
    workshop.run(stream, is_recorded=True)
    declare_outputs(workshop, *then)
    for number in (3, 4):
        workshop.append("source", [{"id": number}])
    expire(workshop, workshop.table_name("source"))
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert [row["id"] for row in workshop.rows("first")] == [1, 2, 3, 4]
    assert [row["id"] for row in workshop.rows("second")] == ([1, 3, 4] if len(then) > 1 else [1])


@pytest.mark.full
def test_what_a_table_that_was_set_back_lost_can_be_given_up_and_the_stream_runs(workshop: Workshop) -> None:
    """The way that is named leads out."""
    subject = Subject(workshop=workshop, kind=Kind.I)
    subject.declare()
    subject.feed(BEFORE[:2])
    subject.run()
    with set_back_afterwards(subject, subject.targets):
        subject.feed(BEFORE[2:])
        subject.run()
    before = len(subject.content())
    subject.feed(AFTER)
    expire(workshop, workshop.table_name("source"))
    go_on(workshop, subject.stream, leaves_out=True)
    subject.run()
    assert len(subject.content()) > before


@pytest.mark.full
def test_who_has_rejected_a_batch_gives_none_of_its_rows_up(workshop: Workshop) -> None:
    stream = hold_two(workshop)
    choose(workshop, stream, OperationVerb.REJECT_BATCH)
    plan = plan_of(workshop, stream, leaves_out=True)
    assert plan.evidence["rows_given_up"] == 1, "batch 2 alone: batch 1 was to stay invisible"


@pytest.mark.full
def test_a_visible_batch_is_not_read_again_because_its_mark_was_removed(workshop: Workshop) -> None:
    """A start restores the mark from the table's earlier metadata."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    for number in (1, 2):
        workshop.append("source", [{"id": number}])
        workshop.run(stream, is_recorded=True)
    uncommit(workshop, stream, 1)
    names = StagedOutput(stream=stream, output="first", target=workshop.table_name("first"))
    with workshop.table("first").transaction() as changed:
        changed.remove_properties(names.mark_property)
    for number in (3, 4):
        workshop.append("source", [{"id": number}])
    expire(workshop, workshop.table_name("source"))
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert [row["id"] for row in workshop.rows("first")] in ([1, 2], [1, 2, 3, 4])
