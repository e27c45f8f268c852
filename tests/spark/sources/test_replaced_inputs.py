"""Topics and tables that were deleted and created again under their names: the ids are compared, not the names."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from tests.fixtures.backfills import backfill, search_gaps
from tests.fixtures.continuations import go_on, run_recorded
from tests.fixtures.drill import sampled
from tests.fixtures.recreated_topics import Topic
from tests.fixtures.refreshes import refresh
from tests.fixtures.workshop import Workshop

from sluice.errors import InputReplacedError, RolledBackError, UnpublishableError, UsageError
from sluice.ledger.events import EventAction, EventSubject, recent_events
from sluice.ledger.generations import find_generation
from sluice.publication.crash_points import CrashPoint
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.source_watch import has_nothing_to_do, observe_increment

OLD = [f"old{number}" for number in range(5)]
NEW = [f"new{number}" for number in range(8)]
FINISHED_AT = tuple(product((CrashPoint.STAGED, CrashPoint.PUBLISHED), (True, False)))


class _KilledError(Exception):
    """In the place of a driver's end."""


def kill_next_run(workshop: Workshop, stream: str) -> None:
    """Run a stream until a batch is planned."""

    def die(*_: Any) -> None:
        raise _KilledError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.sources.input_watch.InputWatch.look", die)
        with pytest.raises(_KilledError):
            workshop.run(stream, is_recorded=True)


def test_a_topic_that_was_recreated_and_outgrew_the_position_is_refused(workshop: Workshop) -> None:
    topic = Topic(workshop)
    topic.send(OLD)
    topic.run()
    topic.recreate()
    topic.send(NEW)

    with pytest.raises(InputReplacedError, match=f"topic {topic.name} of .* was deleted and created") as seen:
        topic.run()

    assert all(it in seen.value.next_step for it in (f"sluice stream reset {topic.stream}", "on_data_loss: count"))
    assert topic.values() == OLD


@pytest.mark.full  # every run has the rule (`test_empty_increment.py`)
def test_a_recreated_topic_of_the_same_length_is_no_empty_increment(workshop: Workshop) -> None:
    """Its end is the position: nothing would be unread."""
    topic = Topic(workshop)
    topic.send(OLD)
    workshop.run_supervised(topic.stream)
    assert _is_empty(topic)
    topic.recreate()
    topic.send(NEW[:5])

    assert not _is_empty(topic)


def _is_empty(topic: Topic) -> bool:
    heads, stream = SourceHeads(topic.workshop.settings), topic.workshop.stream(topic.stream)
    return has_nothing_to_do(observe_increment(topic.workshop.ledger, heads, stream))


@pytest.mark.full  # every run: behind a batch that was staged
@pytest.mark.parametrize("is_longer", [True, False])
def test_with_counting_the_new_topic_is_read_from_its_first_record(workshop: Workshop, *, is_longer: bool) -> None:
    topic = Topic(workshop, on_data_loss="count")
    topic.send(OLD)
    topic.run()
    topic.recreate()
    again = NEW if is_longer else NEW[:2]
    topic.send(again)

    topic.run()
    topic.send(["last"])
    topic.run()

    assert topic.values() == sorted([*again, "last", *OLD])
    events = recent_events(workshop.ledger, EventSubject.STREAM, topic.stream, limit=50)
    assert [one.action for one in events].count(EventAction.FOLLOW_INPUT) == 1


TWICE = """
def transform(r):
    rows = r.selectExpr("decode(value, 'UTF-8') v", "offset off")
    return {"main": rows, "quarantine": rows.where("v = 'bad'").selectExpr(
        "'own' reason", "CAST(NULL AS STRING) position", "v payload")}
"""


@pytest.mark.full
def test_a_topic_that_several_outputs_read_is_followed_in_each_place(workshop: Workshop) -> None:
    topic = Topic(workshop, on_data_loss="count")
    source = {"connection": "flights_kafka", "topics": [topic.name], "on_data_loss": "count"}
    workshop.declare_stream(
        topic.stream,
        python=TWICE,
        quarantine=True,
        inputs={"r": {"stream": {"kafka": source}}},
        outputs={"main": {"iceberg": {"table": topic.target}}},
    )
    topic.send(OLD)
    topic.run()
    topic.recreate()
    topic.send(NEW)

    topic.run()

    assert topic.values() == sorted([*NEW, *OLD])


@pytest.mark.full
def test_a_batch_that_was_planned_in_the_old_topic_is_replaced(workshop: Workshop) -> None:
    topic = Topic(workshop, on_data_loss="count")
    topic.send(OLD)
    topic.run()
    topic.send(["lost0", "lost1"])

    kill_next_run(workshop, topic.stream)
    topic.recreate()
    topic.send(NEW)
    topic.run()

    assert topic.values() == sorted([*NEW, *OLD])


@pytest.mark.parametrize("case", sampled(FINISHED_AT, FINISHED_AT[1:2], full=FINISHED_AT))
def test_a_batch_that_was_finished_and_not_committed_stays(workshop: Workshop, case: tuple[CrashPoint, bool]) -> None:
    """The driver dies behind the staging or the publication of a batch and before Spark's commit."""
    point, is_first = case
    topic = Topic(workshop, on_data_loss="count")
    if not is_first:
        topic.send(["before"])
        topic.run()
    topic.send(OLD)

    def die(here: CrashPoint) -> None:
        if here is point:
            raise _KilledError

    with pytest.raises(_KilledError):
        topic.run(reached=die)
    topic.recreate()
    topic.send(NEW)
    topic.run()
    topic.send(["last"])
    topic.run()

    assert topic.values() == sorted([*NEW, *OLD, "last", *([] if is_first else ["before"])])


def copying(workshop: Workshop, **how: Any) -> tuple[str, str, str]:
    """A stream that copies a table into another, and has copied ten rows: its name, and those of the tables. how: more
    keys of the stream."""
    stream, columns = f"s{workshop.namespace}", {"id": "long"}
    source, target = (workshop.declare_table(name, columns) for name in ("source", "target"))
    workshop.declare_stream(
        stream,
        sql="SELECT id FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": target}}},
        **how,
    )
    workshop.append("source", [{"id": number} for number in range(10)])
    if not how:
        run_recorded(workshop, stream)
    return stream, source, target


def test_a_target_that_was_dropped_and_created_again_is_refused(workshop: Workshop) -> None:
    stream, _, target = copying(workshop)
    workshop.catalog.drop_table(target)
    workshop.create_tables(only=target)
    workshop.append("source", [{"id": 10}])

    with pytest.raises(RolledBackError, match=f"output table {target} was deleted and created again") as seen:
        run_recorded(workshop, stream)

    assert f"sluice table adopt {target} --accept" in seen.value.next_step
    assert workshop.rows(target) == []
    assert workshop.table(target).metadata.snapshots == []  # it was not touched


@pytest.mark.full  # every run: one behind published batches, which is refused
def test_a_target_that_was_created_again_before_anything_was_published_is_filled(workshop: Workshop) -> None:
    stream, columns = f"s{workshop.namespace}", {"id": "long"}
    source, target = (workshop.declare_table(name, columns) for name in ("source", "target"))
    workshop.declare_stream(
        stream,
        sql="SELECT id FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": target}}},
    )
    workshop.append("source", [{"id": 1}])
    kill_next_run(workshop, stream)
    workshop.catalog.drop_table(target)
    workshop.create_tables(only=target)

    run_recorded(workshop, stream)
    workshop.append("source", [{"id": 2}])
    run_recorded(workshop, stream)

    assert [row["id"] for row in workshop.rows(target)] == [1, 2]


@pytest.mark.full  # every run: a target, and later batches
def test_a_topic_that_was_created_again_before_its_first_batch_was_published_is_followed(workshop: Workshop) -> None:
    topic = Topic(workshop, on_data_loss="count")
    topic.send(OLD)
    kill_next_run(workshop, topic.stream)
    topic.recreate()
    topic.send(NEW)

    topic.run()

    assert topic.values() == NEW


def test_a_source_that_was_dropped_and_created_again_is_refused(workshop: Workshop) -> None:
    stream, source, target = copying(workshop)
    workshop.catalog.drop_table(source)
    workshop.create_tables(only=source)
    workshop.append("source", [{"id": 10}])

    with pytest.raises(InputReplacedError, match=f"input table {source} was deleted and created again"):
        run_recorded(workshop, stream)

    assert len(workshop.rows(target)) == 10


@pytest.mark.full  # every run resets without Spark (`test_reset_commands.py`)
def test_a_reset_takes_the_new_things_for_its_own(workshop: Workshop) -> None:
    from sluice.ledger.desired_states import set_desired_state
    from sluice.ledger.run_values import DesiredState
    from sluice.supervision.stream_reset import reset_stream

    stream, _, target = copying(workshop)
    workshop.catalog.drop_table(target)
    workshop.create_tables(only=target)
    set_desired_state(workshop.ledger, stream, DesiredState.STOPPED)
    reset_stream(workshop.ledger, workshop.stream(stream), workshop.settings, asked_by="a test")
    set_desired_state(workshop.ledger, stream, DesiredState.RUNNING)

    run_recorded(workshop, stream)

    assert len(workshop.rows(target)) == 10
    generation = find_generation(workshop.ledger, stream)
    assert generation is not None
    assert str(workshop.table(target).metadata.table_uuid) in generation.identities.values()


@pytest.mark.full  # every run: a gap (`test_input_gaps.py`); a repair finds a rollback (`test_repair_commands.py`)
def test_a_rolled_back_source_is_continued_behind_the_common_ancestor(workshop: Workshop) -> None:
    stream, source, target = copying(workshop)
    common = workshop.table(source).metadata.current_snapshot_id
    assert common is not None
    workshop.append("source", [{"id": 10}])
    run_recorded(workshop, stream)
    workshop.table(source).manage_snapshots().rollback_to_snapshot(common).commit()
    workshop.append("source", [{"id": 11}])
    workshop.append("source", [{"id": 12}])

    with pytest.raises(InputReplacedError, match=f"was rolled back to snapshot {common}"):
        run_recorded(workshop, stream)
    plan = go_on(workshop, stream)
    run_recorded(workshop, stream)

    assert (plan.seen.rows_read, plan.seen.rows_left_out) == (2, 0)
    assert "What was published of the 1 withdrawn rows stays" in " ".join(step.sentence for step in plan.steps)
    assert [row["id"] for row in workshop.rows(target)] == list(range(13))


@pytest.mark.full  # every run: a gap (`test_input_gaps.py`), and a topic that is followed
def test_a_source_that_was_created_again_is_continued_at_its_beginning(workshop: Workshop) -> None:
    stream, source, target = copying(workshop)
    workshop.catalog.drop_table(source)
    workshop.create_tables(only=source)
    workshop.append("source", [{"id": 20}, {"id": 21}])
    workshop.append("source", [{"id": 22}])

    plan = go_on(workshop, stream)
    run_recorded(workshop, stream)
    workshop.append("source", [{"id": 23}])
    run_recorded(workshop, stream)

    assert plan.seen.rows_read == 3
    assert [row["id"] for row in workshop.rows(target)] == [*range(10), 20, 21, 22, 23]


@pytest.mark.full  # every run: `test_adoptions.py`, without Spark
def test_a_target_that_was_created_again_is_accepted_without_its_rows(workshop: Workshop) -> None:
    stream, _, target = copying(workshop)
    workshop.catalog.drop_table(target)
    workshop.create_tables(only=target)
    workshop.append("source", [{"id": 10}])

    with pytest.raises(UsageError, match="was deleted and created again"):
        go_on(workshop, stream)
    plan = go_on(workshop, stream, leaves_out=True)
    run_recorded(workshop, stream)

    assert f"output table {target}" in plan.seen.accepts[0]
    assert [row["id"] for row in workshop.rows(target)] == [10]


@pytest.mark.full  # every run: a topic that is followed
def test_a_recreated_topic_is_continued_at_its_first_record(workshop: Workshop) -> None:
    topic = Topic(workshop)
    topic.send(OLD)
    topic.run()
    topic.recreate()
    topic.send(NEW)

    plan = go_on(workshop, topic.stream)
    topic.run()

    assert plan.seen.rows_read == len(NEW)
    assert topic.values() == sorted([*NEW, *OLD])


@pytest.mark.full  # every run: the start of such a stream, which asks in the same words
@pytest.mark.parametrize("on_data_loss", ["fail", "count"])
def test_a_refresh_of_a_recreated_topic_is_refused(workshop: Workshop, on_data_loss: str) -> None:
    topic = Topic(workshop, on_data_loss=on_data_loss)
    topic.send(OLD)
    workshop.run_supervised(topic.stream)
    topic.recreate()
    topic.send(NEW)

    with pytest.raises(UnpublishableError, match=f"topic {topic.name} of flights_kafka was deleted and created again"):
        refresh(workshop, topic.stream)

    assert topic.values() == OLD


@pytest.mark.full  # every run has the bounds of a source (`test_source_bounds.py`)
def test_a_backfill_and_a_search_for_gaps_of_a_recreated_source_are_refused(workshop: Workshop) -> None:
    stream, columns = f"s{workshop.namespace}", {"id": "long", "at": "timestamptz"}
    source, target = (workshop.declare_table(name, columns) for name in ("source", "target"))
    workshop.declare_stream(
        stream,
        sql="SELECT id, at FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": target}}},
        backfill={"column": "at", "interval": "day"},
    )
    workshop.append("source", [{"id": 1, "at": datetime(2013, 1, 5, tzinfo=UTC)}])
    run_recorded(workshop, stream)
    workshop.catalog.drop_table(source)
    workshop.create_tables(only=source)

    refusal = f"input table {source} was deleted and created again"
    with pytest.raises(UnpublishableError, match=refusal):
        backfill(workshop, stream, start="2013-01-05", end="2013-01-06")
    with pytest.raises(UnpublishableError, match=refusal):
        search_gaps(workshop, stream)
