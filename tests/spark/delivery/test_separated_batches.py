"""A held batch is released without the rows that break its rules: each row is visible or in the quarantine, once."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.drill import sampled
from tests.fixtures.drivers import await_condition
from tests.fixtures.faulty_drivers import declare_lost, faulty_driver
from tests.fixtures.stack import Stack
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_held_batches import COLUMNS, GOOD, RULE, _beside, choose, ids, polled

from sluice.errors import UsageError
from sluice.ledger.batches import recent_batches
from sluice.ledger.events import Actor, Event, EventAction, EventSubject, recent_events
from sluice.ledger.held_batches import HeldDecision, decide_held, find_held
from sluice.operations import OperationVerb
from sluice.publication.crash_points import CrashPoint
from sluice.publication.held_decisions import plan_decision
from sluice_spark.run.stop_request import StopReason, StopRequest

EVENT = Event(name="s", actor=Actor.person("x"), action=EventAction.RELEASE_BATCH, reason="requested", explanation="")
BAD, WORSE = {"id": 2, "price": -1}, {"id": 3, "price": None}
SENTENCES = [
    ('{"id":2,"price":-1}', "rule", "the row breaks a rule: price_is_positive"),
    ('{"id":3}', "rule", "the row breaks a rule: price_is_positive"),
]


def declare(
    workshop: Workshop, *, rules: list[dict[str, Any]] | None = None, quarantine: bool = True, **parts: Any
) -> str:
    """A stream of a batch for each snapshot of its source, whose rules hold batches; its name."""
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", COLUMNS, rules=[RULE] if rules is None else rules)
    stream = f"s{workshop.namespace}"
    output = {"table": target} | parts.pop("output", {})
    workshop.declare_stream(
        stream,
        python=f"""
            def transform(r):
                if not {quarantine}:  # as many sources as with one, for the checkpoint
                    return {{"main": r.where("id < 50").union(r.where("id >= 50"))}}
                own = ["'own' reason", "CAST(NULL AS STRING) position", "CAST(id AS STRING) payload"]
                return {{"main": r.where("id < 100"), "quarantine": r.where("id >= 100").selectExpr(*own)}}
        """,
        inputs={"r": {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}},
        outputs={"main": {"iceberg": output}},
        quarantine=quarantine,
        **parts,
    )
    return stream


def rejected(workshop: Workshop, stream: str) -> list[tuple[str, str, str]]:
    """What is in the quarantine by a rule, and its own rows beside."""
    return sorted((one["payload"], one["kind"], one["reason"]) for one in workshop.rows(f"quarantine.{stream}"))


@pytest.mark.full  # every run has it with a crash in between
def test_rows_that_break_a_rule_go_to_the_quarantine_and_the_others_appear(workshop: Workshop) -> None:
    stream = declare(workshop)
    workshop.append("source", [GOOD, BAD, WORSE, {"id": 100, "price": 1}])
    workshop.append("source", [{"id": 4, "price": 7}])
    workshop.run(stream, is_recorded=True)
    assert (ids(workshop), rejected(workshop, stream)) == ([], [])
    plan = plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.SEPARATE_BATCH)
    assert "The rows that break price_is_positive (2) go to the quarantine" in plan.steps[1].sentence

    choose(workshop, stream, OperationVerb.SEPARATE_BATCH)
    workshop.run(stream, is_recorded=True)

    assert ids(workshop) == [1, 4]
    own = [one for one in workshop.rows(f"quarantine.{stream}") if one["reason"] == "own"]
    assert [(one["batch"], one["payload"]) for one in own] == [(0, "100")]
    assert [one for one in rejected(workshop, stream) if one[1] is not None] == SENTENCES
    assert find_held(workshop.ledger, stream) is None
    recorded = {one.key.batch: one for one in recent_batches(workshop.ledger, stream, limit=9)}
    assert {number: (one.published_rows["main"], one.refused_rows) for number, one in recorded.items()} == {
        0: (1, 3),
        1: (1, 0),
    }


@pytest.mark.full  # every run separates the rows of one rule
def test_rows_that_another_rule_has_rejected_at_once_do_not_keep_the_others_from_being_separated(
    workshop: Workshop,
) -> None:
    """The counts of the rule that holds are those of all rows, and the staged ones are fewer."""
    usual = {"name": "price_is_usual", "expression": "price BETWEEN -100 AND 100", "on_failure": "quarantine"}
    stream = declare(workshop, rules=[RULE, usual])
    workshop.append("source", [GOOD, BAD, {"id": 3, "price": 1000}, {"id": 5, "price": -500}])
    workshop.run(stream, is_recorded=True)
    assert ids(workshop) == []

    choose(workshop, stream, OperationVerb.SEPARATE_BATCH)
    workshop.run(stream, is_recorded=True)

    assert (ids(workshop), find_held(workshop.ledger, stream)) == ([1], None)
    reasons = [
        (payload, reason.removeprefix("the row breaks a rule: ")) for payload, _, reason in rejected(workshop, stream)
    ]
    assert reasons == [
        ('{"id":2,"price":-1}', "price_is_positive"),
        ('{"id":3,"price":1000}', "price_is_usual"),
        ('{"id":5,"price":-500}', "price_is_positive, price_is_usual"),
    ]


@pytest.mark.full  # every run: rows of another rule
def test_a_row_that_breaks_the_rule_no_more_is_not_taken_for_one_that_another_rule_has_rejected(
    workshop: Workshop,
) -> None:
    """As with `at <= current_timestamp()`, which time heals; here it is the time zone of the session."""
    rule = {"name": "held", "expression": "price > 0 OR current_timezone() <> 'UTC'", "on_failure": "hold"}
    usual = {"name": "price_is_usual", "expression": "price < 100", "on_failure": "quarantine"}
    stream = declare(workshop, rules=[rule, usual])
    workshop.append("source", [GOOD, BAD, {"id": 3, "price": 1000}])
    workshop.run(stream, is_recorded=True)
    choose(workshop, stream, OperationVerb.SEPARATE_BATCH)

    zone = "spark.sql.session.timeZone"
    workshop.spark.conf.set(zone, "Europe/Berlin")
    try:
        workshop.run(stream, is_recorded=True)
    finally:
        workshop.spark.conf.set(zone, "UTC")

    held = find_held(workshop.ledger, stream)
    assert held is not None
    assert held.decision is None
    assert ids(workshop) == []
    event = recent_events(workshop.ledger, EventSubject.STREAM, stream, limit=1)[0]
    assert "held is broken by 0 of 2 rows of main now, and held the batch by 1 of 3" in event.explanation


def test_a_live_stream_records_what_has_become_of_the_batch(workshop: Workshop) -> None:
    stream = declare(workshop, mode="continuous", trigger={"processing_time": "100 milliseconds"})
    workshop.append("source", [GOOD, BAD])
    stop = StopRequest()
    beside = _beside(lambda: workshop.run(stream, is_recorded=True, stop=stop))
    try:
        await_condition(lambda: find_held(workshop.ledger, stream) is not None, within_seconds=60)
        choose(workshop, stream, OperationVerb.SEPARATE_BATCH)
        await_condition(lambda: bool(recent_batches(workshop.ledger, stream, limit=1)), within_seconds=60)
    finally:
        stop.make(StopReason.STOPPED)
        beside.join(120)

    (recorded,) = recent_batches(workshop.ledger, stream, limit=9)
    assert (recorded.published_rows["main"], recorded.refused_rows, recorded.input_rows) == (1, 1, 2)
    assert ids(workshop) == [1]
    assert rejected(workshop, stream) == SENTENCES[:1]


POINTS = [
    CrashPoint.FIRST_OUTPUT_STAGED,
    CrashPoint.STAGED,
    CrashPoint.CHECKED,
    CrashPoint.FIRST_OUTPUT_PUBLISHED,
    CrashPoint.PUBLISHED,
    CrashPoint.LET_GO,
]


@pytest.mark.parametrize("point", sampled(POINTS, [CrashPoint.FIRST_OUTPUT_STAGED], full=POINTS))
def test_a_crash_in_between_loses_and_repeats_no_row(workshop: Workshop, point: CrashPoint) -> None:
    stream = declare(workshop)
    workshop.append("source", [GOOD, BAD, WORSE])
    workshop.append("source", [{"id": 4, "price": 7}])
    workshop.run(stream, is_recorded=True)
    choose(workshop, stream, OperationVerb.SEPARATE_BATCH)
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(point))
    declare_lost(workshop, stream)

    workshop.run(stream, is_recorded=True)

    assert ids(workshop) == [1, 4]
    assert rejected(workshop, stream) == SENTENCES
    assert find_held(workshop.ledger, stream) is None
    recorded = {one.key.batch: one for one in recent_batches(workshop.ledger, stream, limit=9)}
    assert {number: (one.published_rows["main"], one.refused_rows) for number, one in recorded.items()} == {
        0: (1, 2),
        1: (1, 0),
    }
    assert recorded[0].snapshot_ids.keys() == {"main", "quarantine"}


@pytest.mark.full  # every run has a death there, and kills drivers in `test_crashes.py`
@pytest.mark.parametrize("point", POINTS)
def test_a_reader_sees_no_held_row_whenever_the_driver_is_killed(
    workshop: Workshop, services: Stack, point: CrashPoint
) -> None:
    stream = declare(workshop)
    workshop.append("source", [GOOD, BAD, WORSE])
    workshop.run(stream, is_recorded=True)

    with polled(workshop) as seen:
        choose(workshop, stream, OperationVerb.SEPARATE_BATCH)
        with faulty_driver(workshop, services.environment(), stream, point=point) as driver:
            driver.await_death()
        declare_lost(workshop, stream)
        workshop.run(stream, is_recorded=True)
        assert seen() <= {(), (1,)}

    assert ids(workshop) == [1]
    assert rejected(workshop, stream) == SENTENCES


@pytest.mark.full  # every run: `test_redeclared_separations.py`
@pytest.mark.parametrize(
    "is_killed",
    [
        pytest.param(False, id="at once"),
        pytest.param(True, id="after the quarantine was staged"),
    ],
)
def test_a_batch_waits_again_when_the_rule_has_changed(workshop: Workshop, *, is_killed: bool) -> None:
    stream = declare(workshop)
    workshop.append("source", [GOOD, BAD, WORSE])
    workshop.run(stream, is_recorded=True)
    choose(workshop, stream, OperationVerb.SEPARATE_BATCH)
    if is_killed:
        with pytest.raises(OSError, match="dies here"):
            workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.FIRST_OUTPUT_STAGED))
        declare_lost(workshop, stream)
    workshop.declare_table("target", COLUMNS, rules=[RULE | {"expression": "price > -9"}])

    workshop.run(stream, is_recorded=True)

    held = find_held(workshop.ledger, stream)
    assert held is not None
    assert held.decision is None
    assert (held.rows, held.failed) == ({"main": 3, "quarantine": 0}, {"main": {"price_is_positive": 2}})
    event = recent_events(workshop.ledger, EventSubject.STREAM, stream, limit=1)[0]
    assert "price_is_positive is broken by 1 of 3 rows of main now, and held the batch by 2 of 3" in event.explanation
    choose(workshop, stream, OperationVerb.RELEASE_BATCH)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop) == [1, 2, 3]
    assert rejected(workshop, stream) == []


@pytest.mark.full  # every run: another rule (`test_redeclared_separations.py`)
def test_a_batch_waits_again_when_its_quarantine_is_gone(workshop: Workshop) -> None:
    stream = declare(workshop, quarantine=False)
    workshop.append("source", [GOOD, BAD])
    workshop.run(stream, is_recorded=True)
    with pytest.raises(UsageError, match="the stream has no quarantine, or had none when it was staged"):
        plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.SEPARATE_BATCH)
    declare(workshop)
    held = find_held(workshop.ledger, stream)
    assert held is not None
    decide_held(workshop.ledger, held.key, HeldDecision.SEPARATED, EVENT, by="an older program")

    workshop.run(stream, is_recorded=True)

    held = find_held(workshop.ledger, stream)
    assert held is not None
    assert held.decision is None
    assert ids(workshop) == []


@pytest.mark.full  # every run: rejected rows (`test_rejection_holds.py`)
@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"output": {"mode": "merge", "keys": ["id"]}}, "main is merged"),
        (
            {"rules": [{"name": "many", "type": "expect_table_row_count_to_equal", "kwargs": {"value": 9}}]},
            "many is no rule about single rows",
        ),
    ],
    ids=["merged", "of the batch"],
)
def test_rows_that_cannot_be_told_from_others_are_not_separated(
    workshop: Workshop, parts: dict[str, Any], problem: str
) -> None:
    stream = declare(workshop, **parts)
    workshop.append("source", [BAD])
    workshop.run(stream, is_recorded=True)

    with pytest.raises(UsageError, match=f"cannot be released without some of its rows: {problem}"):
        plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.SEPARATE_BATCH)
