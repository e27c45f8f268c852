"""A stream is taken past a gap while batches of it are staged and not visible: none is left behind in silence.

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
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_held_batches import BAD, GOOD, choose, declare, ids

from sluice.errors import InputGapError, UsageError
from sluice.ledger.held_batches import find_held
from sluice.operations import OperationVerb
from sluice.publication.crash_points import CrashPoint


def hold_two(workshop: Workshop) -> str:
    """A stream with a held batch and one behind it, whose input was cut behind these; its name."""
    stream = declare(workshop)
    for row in (GOOD, BAD, {"id": 3, "price": 7}):
        workshop.append("source", [row])
    workshop.run(stream, is_recorded=True)
    for number in (4, 5):
        workshop.append("source", [{"id": number, "price": number}])
    expire(workshop, workshop.table_name("source"))
    return stream


@pytest.mark.full
def test_batches_that_wait_for_a_person_are_decided_about_before(workshop: Workshop) -> None:
    stream = hold_two(workshop)
    with pytest.raises(UsageError, match=r"has 2 batches with 2 rows that are not visible") as refused:
        plan_of(workshop, stream)
    assert (
        f"`sluice batch list {stream}`. Then `sluice stream start {stream}` publishes them" in refused.value.next_step
    )

    choose(workshop, stream, OperationVerb.RELEASE_BATCH)
    with pytest.raises(InputGapError):
        workshop.run(stream, is_recorded=True)
    assert go_on(workshop, stream).evidence["rows_given_up"] == 0
    workshop.run(stream, is_recorded=True)

    assert ids(workshop) == [1, 2, 3, 4, 5]


@pytest.mark.full
def test_who_leaves_them_out_is_shown_how_many_rows_are_given_up(workshop: Workshop) -> None:
    stream = hold_two(workshop)
    plan = go_on(workshop, stream, leaves_out=True)
    workshop.run(stream, is_recorded=True)

    assert plan.evidence["rows_given_up"] == 2
    assert "Give up 2 batches with 2 rows that are not visible, for good." in " ".join(plan.sentences())
    left_out = plan.evidence["rows_left_out"]
    assert plan.rows == 2 + left_out
    assert find_held(workshop.ledger, stream) is None
    assert len(ids(workshop)) == 3 - left_out


@pytest.mark.full
def test_batches_that_a_driver_left_are_published_by_the_start_that_is_named(workshop: Workshop) -> None:
    """They were to be published together, and the driver died before that."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = f"s{workshop.namespace}"
    source = {"table": workshop.table_name("source"), "max_rows_per_batch": 1}
    workshop.declare_stream(
        stream,
        sql="SELECT * FROM r",
        inputs={"r": {"stream": {"iceberg": source}}},
        outputs={"first": {"iceberg": {"table": workshop.table_name("first"), "publish_every": "1 hour"}}},
    )
    for number in (1, 2, 3):
        workshop.append("source", [{"id": number}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.CHECKED))
    declare_lost(workshop, stream)
    for number in (4, 5):
        workshop.append("source", [{"id": number}])
    expire(workshop, workshop.table_name("source"))
    with pytest.raises(UsageError, match=r"has 3 batches with 3 rows") as refused:
        go_on(workshop, stream)
    assert (refused.value.next_step or "").startswith(f"`sluice stream start {stream}` publishes them")

    with pytest.raises(InputGapError):
        workshop.run(stream, is_recorded=True)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)

    assert [row["id"] for row in workshop.rows("first")] == [1, 2, 3, 4, 5]


@pytest.mark.full  # every run: a batch that was planned and is not visible (`test_gap_commands.py`)
def test_batches_that_tables_lost_that_were_set_back_are_not_left_behind(workshop: Workshop) -> None:
    subject = Subject(workshop=workshop, kind=Kind.I)
    subject.declare()
    subject.feed(BEFORE[:2])
    subject.run()
    with set_back_afterwards(subject, subject.targets):
        subject.feed(BEFORE[2:])
        subject.run()
        published = len(subject.content())
    gone = published - len(subject.content())
    subject.feed(AFTER)
    expire(workshop, workshop.table_name("source"))

    with pytest.raises(UsageError, match=f"with {gone} rows that are not visible") as refused:
        plan_of(workshop, subject.stream)

    assert (refused.value.next_step or "").startswith(f"`sluice stream repair {subject.stream} --dry-run`")
    assert plan_of(workshop, subject.stream, leaves_out=True).evidence["rows_given_up"] == gone
