"""A batch that a rule holds: readers see none of it, those behind it wait, and a person decides once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.fixtures.drill import sampled
from tests.fixtures.drivers import await_condition
from tests.fixtures.faulty_drivers import declare_lost, faulty_driver
from tests.fixtures.ledger_rows import recent_rule_results
from tests.fixtures.refreshes import refresh
from tests.fixtures.stack import Stack
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import LedgerError, UnpublishableError, UsageError
from sluice.ledger.batches import recent_batches
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.held_batches import HeldDecision, find_held
from sluice.ledger.next_generation import open_next_generation
from sluice.ledger.refreshes import newest_refresh
from sluice.ledger.run_values import DesiredState
from sluice.ledger.stream_records import read_stream
from sluice.operations import OperationVerb
from sluice.publication.batch_views import observe_batches
from sluice.publication.crash_points import CrashPoint
from sluice.publication.held_decisions import broken_samples, decide, plan_decision
from sluice.publication.settle_output import publish_output
from sluice.supervision.row_verdicts import with_held
from sluice.supervision.stream_verdict import StreamState, StreamVerdict
from sluice.tables.catalog import open_catalog
from sluice_spark.run.stop_request import StopReason, StopRequest

COLUMNS = {"id": "long", "price": "long"}
RULE = {"name": "price_is_positive", "expression": "price > 0", "on_failure": "hold"}
GOOD, BAD = {"id": 1, "price": 5}, {"id": 2, "price": -1}


def declare(workshop: Workshop, **parts: Any) -> str:
    """A stream of a batch for each snapshot of its source, with a rule that holds; its name."""
    workshop.declare_table("source", COLUMNS)
    workshop.declare_table("target", COLUMNS, rules=[RULE])
    return declare_again(workshop, f"s{workshop.namespace}", **parts)


def declare_again(workshop: Workshop, stream: str, *, name: str = "main", quarantine: bool = True, **parts: Any) -> str:
    """The stream as `declare` does it. name: of its output."""
    output = {"table": workshop.table_name("target")} | parts.pop("output", {})
    own = (
        ", 'quarantine': r.where('id > 99').selectExpr("
        '"\'own\' reason", "CAST(NULL AS STRING) position", "\'\' payload")'
    )
    source = {"table": workshop.table_name("source"), "max_rows_per_batch": 1}
    workshop.declare_stream(
        stream,
        python=f"def transform(r):\n    return {{'{name}': r{own if quarantine else ''}}}",
        inputs={"r": {"stream": {"iceberg": source}}},
        outputs={name: {"iceberg": output}},
        quarantine=quarantine,
        **parts,
    )
    return stream


def ids(workshop: Workshop) -> list[int]:
    return [row["id"] for row in workshop.rows("target")]


def choose(workshop: Workshop, stream: str, verb: OperationVerb) -> None:
    plan = plan_decision(workshop.ledger, workshop.stream(stream), verb)
    decide(workshop.ledger, plan, requested_by="a test", planned=plan.digest)


def test_a_held_batch_waits_for_a_person_with_those_behind_it(workshop: Workshop) -> None:
    stream = declare(workshop)
    for row in (GOOD, BAD, {"id": 3, "price": 7}):
        workshop.append("source", [row])

    assert workshop.run(stream, is_recorded=True).reason is StopReason.EXHAUSTED

    assert ids(workshop) == [1]
    held = find_held(workshop.ledger, stream)
    assert held is not None
    assert (held.reason, held.rows["main"], held.queued) == ("price_is_positive by 1 of 1 rows of main", 1, 1)
    healthy = StreamVerdict(state=StreamState.RUNNING, is_healthy=True, explanation="")
    verdict = with_held(healthy, read_stream(workshop.ledger, stream))
    assert (verdict.state, verdict.is_healthy) == (StreamState.HELD, False)
    assert f"`sluice batch release {stream} 1`" in verdict.next_step
    shown = ['Rows of main that break price_is_positive, for example: {"price":-1}.']
    assert [*broken_samples(load_declarations(workshop.folder), stream, held)] == shown
    workshop.run(stream, is_recorded=True)  # a restart publishes nothing of it
    assert ids(workshop) == [1]

    with pytest.raises(UnpublishableError, match=f"Batch 1 of {stream} waits for a person: it breaks"):
        refresh(workshop, stream)
    assert newest_refresh(workshop.ledger, stream) is None, "nothing was begun"

    choose(workshop, stream, OperationVerb.RELEASE_BATCH)
    with pytest.raises(UsageError, match="was released by a test"):
        plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.REJECT_BATCH)
    workshop.run(stream, is_recorded=True)

    assert ids(workshop) == [1, 2, 3]
    assert find_held(workshop.ledger, stream) is None
    recorded = {one.key.batch: "main" in one.snapshot_ids for one in recent_batches(workshop.ledger, stream, limit=9)}
    assert recorded == dict.fromkeys([0, 1, 2], True), "though an earlier run has staged two of them"
    counted = {
        one.batch: one.rules["price_is_positive"].failed for one in recent_rule_results(workshop.ledger, stream=stream)
    }
    assert counted == {0: 0, 1: 1, 2: 0}


@pytest.mark.full  # every run rejects one in `test_repeated_values.py`
def test_a_rejected_batch_never_appears(workshop: Workshop) -> None:
    stream = declare(workshop)
    for row in (BAD, GOOD):
        workshop.append("source", [row])
    workshop.run(stream, is_recorded=True)
    assert ids(workshop) == []

    choose(workshop, stream, OperationVerb.REJECT_BATCH)
    workshop.run(stream, is_recorded=True)

    assert ids(workshop) == [1]
    recorded = {batch.key.batch: batch for batch in recent_batches(workshop.ledger, stream, limit=9)}
    assert {number: batch.is_rejected for number, batch in recorded.items()} == {0: True, 1: False}


POINTS = {
    HeldDecision.RELEASED: (
        CrashPoint.CHECKED,
        CrashPoint.FIRST_OUTPUT_PUBLISHED,
        CrashPoint.PUBLISHED,
        CrashPoint.LET_GO,
    ),
    HeldDecision.REJECTED: (
        CrashPoint.RECORDED,
        CrashPoint.CHECKED,
        CrashPoint.FIRST_OUTPUT_PUBLISHED,
        CrashPoint.LET_GO,
    ),
}
CASES = [(decision, point) for decision, points in POINTS.items() for point in points]


@pytest.mark.full  # every run: `test_batch_rules.py`
@pytest.mark.parametrize("point", [CrashPoint.STAGED, CrashPoint.HELD])
def test_a_crash_while_a_batch_is_held_publishes_nothing_of_it(workshop: Workshop, point: CrashPoint) -> None:
    stream = declare(workshop)
    workshop.append("source", [BAD])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(point))
    declare_lost(workshop, stream)

    workshop.run(stream, is_recorded=True)

    assert ids(workshop) == []
    assert find_held(workshop.ledger, stream) is not None
    choose(workshop, stream, OperationVerb.RELEASE_BATCH)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop) == [2]


@pytest.mark.full  # every run has one while rows are separated from a batch (`test_separated_batches.py`)
@pytest.mark.parametrize("case", CASES)
def test_a_crash_while_a_decision_is_carried_out(workshop: Workshop, case: tuple[HeldDecision, CrashPoint]) -> None:
    decision, point = case
    stream = declare(workshop)
    for row in (BAD, GOOD):
        workshop.append("source", [row])
    workshop.run(stream, is_recorded=True)
    released = decision is HeldDecision.RELEASED
    choose(workshop, stream, OperationVerb.RELEASE_BATCH if released else OperationVerb.REJECT_BATCH)
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(point))
    declare_lost(workshop, stream)

    workshop.run(stream, is_recorded=True)

    assert ids(workshop) == ([1, 2] if released else [1])
    assert find_held(workshop.ledger, stream) is None
    recorded = {batch.key.batch: batch.is_rejected for batch in recent_batches(workshop.ledger, stream, limit=9)}
    assert recorded == {0: not released, 1: False}


UNDECIDED = [(None, CrashPoint.STAGED), (None, CrashPoint.HELD)]


KILLED = [*UNDECIDED, *CASES]


@pytest.mark.parametrize("case", sampled(KILLED, (), full=KILLED), ids=str)  # every run kills one in `test_crashes.py`
def test_a_reader_sees_no_row_of_a_held_batch_whenever_its_driver_is_killed(
    workshop: Workshop, services: Stack, case: tuple[HeldDecision | None, CrashPoint]
) -> None:
    decision, point = case
    stream = declare(workshop)
    for row in (BAD, GOOD):
        workshop.append("source", [row])

    def is_killed() -> None:
        with faulty_driver(workshop, services.environment(), stream, point=point) as driver:
            driver.await_death()
        declare_lost(workshop, stream)

    with polled(workshop) as seen:
        if decision is None:
            is_killed()
        workshop.run(stream, is_recorded=True)
        assert seen() == {()}, "nothing was ever visible"
        released = decision is not HeldDecision.REJECTED
        choose(workshop, stream, OperationVerb.RELEASE_BATCH if released else OperationVerb.REJECT_BATCH)
        if decision is not None:
            is_killed()
        workshop.run(stream, is_recorded=True)
        last = seen()

    assert last <= ({(), (2,), (1, 2)} if released else {(), (1,)})
    assert ids(workshop) == ([1, 2] if released else [1])
    assert find_held(workshop.ledger, stream) is None


@contextmanager
def polled(workshop: Workshop) -> Iterator[Callable[[], set[tuple[int, ...]]]]:
    """Reads the target every 200 ms with another engine; gives all that it has seen so far."""
    catalog, found, failed = open_catalog(workshop.settings), set[tuple[int, ...]](), list[Exception]()
    ending = threading.Event()

    def read() -> None:
        rows = catalog.load_table(workshop.table_name("target")).scan(selected_fields=("id",)).to_arrow()
        found.add(tuple(sorted(one["id"] for one in rows.to_pylist())))

    def poll() -> None:
        while not ending.wait(0.2):
            try:
                read()
            except Exception as error:  # noqa: BLE001  # what the thread fails with fails the test
                failed.append(error)
                return

    def seen() -> set[tuple[int, ...]]:
        assert failed == []
        read()
        return set(found)

    polling = _beside(poll)
    try:
        yield seen
    finally:
        ending.set()
        polling.join(60)


@pytest.mark.full  # every run has a live one in `test_separated_batches.py`
def test_a_live_stream_stops_reading_and_continues_by_itself(workshop: Workshop) -> None:
    stream = declare(
        workshop, mode="continuous", trigger={"processing_time": "100 milliseconds"}, output={"max_held_batches": 1}
    )
    for row in (BAD, GOOD, {"id": 3, "price": 7}, {"id": 4, "price": 7}):
        workshop.append("source", [row])
    stop = StopRequest()
    beside = _beside(lambda: workshop.run(stream, is_recorded=True, stop=stop, stop_after_batches=4))

    await_condition(lambda: (held := find_held(workshop.ledger, stream)) is not None and held.queued == 1)
    assert ids(workshop) == []
    choose(workshop, stream, OperationVerb.RELEASE_BATCH)
    await_condition(lambda: ids(workshop) == [1, 2, 3, 4])

    stop.make(StopReason.STOPPED)
    beside.join(120)
    assert not beside.is_alive()


def _beside(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.mark.full  # every run has a death while rows are separated
@pytest.mark.parametrize("decision", sampled(HeldDecision, [HeldDecision.RELEASED], full=list(HeldDecision)))
def test_a_decision_while_spark_runs_the_held_batch_again_is_carried_out_once(
    workshop: Workshop, decision: HeldDecision
) -> None:
    released = decision is HeldDecision.RELEASED
    stream = declare(workshop)
    workshop.append("source", [BAD])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.HELD))
    declare_lost(workshop, stream)
    workshop.append("source", [GOOD])
    decided: list[HeldDecision] = []

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.STAGED and not decided:  # the batch is computed again, and is known to wait
            decided.append(decision)
            choose(workshop, stream, OperationVerb.RELEASE_BATCH if released else OperationVerb.REJECT_BATCH)
            await_condition(lambda: find_held(workshop.ledger, stream) is None)

    workshop.run(stream, is_recorded=True, reached=reached)

    assert decided
    assert find_held(workshop.ledger, stream) is None
    assert ids(workshop) == ([1, 2] if released else [1])


@pytest.mark.full  # every run has a death while rows are separated
def test_a_batch_is_not_held_again_when_the_ledger_does_not_answer_once_it_is_let_go(workshop: Workshop) -> None:
    stream = declare(workshop, mode="continuous", trigger={"processing_time": "100 milliseconds"})
    for row in (BAD, GOOD):
        workshop.append("source", [row])
    stop, lost = StopRequest(), list[CrashPoint]()

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.LET_GO and not lost:
            lost.append(point)
            raise LedgerError("the answer is lost")

    beside = _beside(lambda: workshop.run(stream, is_recorded=True, stop=stop, reached=reached))
    try:
        await_condition(lambda: find_held(workshop.ledger, stream) is not None, within_seconds=60)
        choose(workshop, stream, OperationVerb.RELEASE_BATCH)
        await_condition(lambda: ids(workshop) == [1, 2], within_seconds=60)
    finally:
        stop.make(StopReason.STOPPED)
        beside.join(120)
    assert lost
    assert find_held(workshop.ledger, stream) is None


@pytest.mark.full  # every run has what they found in a released one
def test_what_the_rules_found_in_a_rejected_batch_is_in_the_ledger(workshop: Workshop) -> None:
    stream = declare(workshop)
    workshop.append("source", [BAD])
    workshop.run(stream, is_recorded=True)
    (seen,) = observe_batches(workshop.catalog, workshop.ledger, workshop.stream(stream).declaration, limit=9)
    assert "sluice batch release" in seen.explanation
    choose(workshop, stream, OperationVerb.REJECT_BATCH)

    workshop.run(stream, is_recorded=True)

    (found,) = recent_rule_results(workshop.ledger, stream=stream)
    assert (found.batch, found.broken) == (0, ("price_is_positive",))


@pytest.mark.full  # every run settles one of a present output
def test_a_held_batch_of_a_former_output_is_not_published_by_its_settlement(workshop: Workshop) -> None:
    stream = declare(workshop)
    workshop.append("source", [BAD])
    workshop.run(stream, is_recorded=True)
    declare_again(workshop, stream, name="other")
    declaration = workshop.stream(stream).declaration

    with pytest.raises(UnpublishableError, match="held"):
        publish_output(workshop.catalog, workshop.ledger, declaration, output="main", requested_by="a test")

    assert ids(workshop) == []


@pytest.mark.full  # every run: a released and a rejected one
def test_a_reset_leaves_a_held_batch_behind_and_reads_its_rows_again(workshop: Workshop) -> None:
    stream = declare(workshop)
    for row in (BAD, GOOD):
        workshop.append("source", [row])
    workshop.run(stream, is_recorded=True)
    choose(workshop, stream, OperationVerb.RELEASE_BATCH)  # of generation 1

    set_desired_state(workshop.ledger, stream, DesiredState.STOPPED)
    root = workshop.settings.checkpoints
    open_next_generation(workshop.ledger, stream, leaving=1, checkpoints_root=root, opened_by="a test")

    assert find_held(workshop.ledger, stream) is None
    set_desired_state(workshop.ledger, stream, DesiredState.RUNNING)
    workshop.run(stream, is_recorded=True)
    held = find_held(workshop.ledger, stream)
    assert held is not None
    assert (held.key.number, held.decision) == ("2:0", None)
    assert ids(workshop) == []
