"""One application replaces the intervals of many runs; when it is killed, nothing is half visible and others go on."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

import pytest
from tests.fixtures.backfills import (
    ask_for_day,
    day_of_january,
    declare_read_stream,
    delete_days,
    expected,
    ids_by_duckdb,
    name_of_run,
    staging_tables,
)
from tests.fixtures.crash_points import IN_A_BACKFILL
from tests.fixtures.drill import sampled
from tests.fixtures.stack import Stack
from tests.fixtures.work import applications_of, await_killed, serve, start, states_of, waited_for
from tests.fixtures.workshop import Workshop

from sluice.backfill.intervals import declarations_digest
from sluice.backfill.results import results_of_run
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import VerificationError
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.work_items import observe_item, withdraw_items
from sluice.ledger.work_values import WorkItem, WorkState
from sluice.processes.deadline import wait_until
from sluice.publication.crash_points import CrashPoint
from sluice.work.requests import ReplaceInterval
from sluice_spark.run.stop_request import StopReason
from sluice_spark.session.item_sessions import name_item
from sluice_spark.work.item_work import ReachedOfItem

KILLED_AT = (CrashPoint.STAGED,)
"""A sample: each costs a process with a JVM. `make drill` kills at every step."""

VISIBLE_FROM = (CrashPoint.PUBLISHED, CrashPoint.RECORDED)
IDS = sorted(row["id"] for row in expected())
IMBALANCE = VerificationError("The rows do not add up.")
DONE, FAILED, WAITING = WorkState.DONE, WorkState.FAILED, WorkState.WAITING


@pytest.fixture
def stream(workshop: Workshop) -> str:
    """A stream that has read eight days, three of which were deleted from its target."""
    name = declare_read_stream(workshop)
    delete_days(workshop, "target")
    return name


def at_day(day: int, step: CrashPoint, act: Callable[[], object]) -> ReachedOfItem:
    """Do something when a day of January has reached a step."""

    def reached(here: CrashPoint, item: WorkItem) -> None:
        if here is step and datetime.fromisoformat(item.payload["start"]).day == day:
            act()

    return reached


def failing_on(day: int, error: Exception) -> ReachedOfItem:
    """Makes a day of January fail when its rows are computed."""

    def fail() -> None:
        raise error

    return at_day(day, CrashPoint.COMPUTED, fail)


@pytest.mark.parametrize("at_once", sampled([1, 2, 6], (), full=[6]))  # every run: three days of which two fail
def test_one_application_replaces_the_days_of_three_runs(
    at_once: int, workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    caplog.handler.addFilter(name_item)
    stream = declare_read_stream(workshop, partitioned_by="month" if at_once == 1 else "day", at_once=at_once)
    delete_days(workshop, "target")
    items = [ask_for_day(workshop, stream, day) for day in (5, 6, 7)]

    assert serve(workshop, items) == "no further work came"

    assert states_of(workshop, items) == [DONE, DONE, DONE]
    assert workshop.rows("target") == expected()
    seen = observe_item(workshop.ledger, items[0])
    assert seen.result["key"].startswith(f"{stream}/backfill/20130105T0000-20130106T0000/")
    assert staging_tables(workshop, stream) == []
    lines = [f"{record.__dict__['item']}{record.getMessage()}" for record in caplog.records]
    for day, item in zip((5, 6, 7), items, strict=True):
        of_item = [line for line in lines if line.startswith(f"[{item[:8]}] interval of {stream}")]
        assert [line.rpartition(" ")[2] if " is done" in line else "begun" for line in of_item] == ["begun", "done"]
        of_run = results_of_run(workshop.ledger, name_of_run(day))[stream]
        assert (of_run["interval"][:10], of_run["state"]) == (f"2013-01-0{day}", "published")
        assert (of_run["rows"]["published"], of_run["rows"]["quarantined"]) == (3, 2)
    events = recent_events(workshop.ledger, EventSubject.STREAM, stream, limit=20)
    assert {event.actor.name for event in events} >= {name_of_run(day) for day in (5, 6, 7)}


@pytest.mark.full  # every run has it beside a day that fails
@pytest.mark.parametrize("is_together", [False, True], ids=["alone", "together"])
def test_a_day_is_not_replaced_by_declarations_that_nobody_agreed_to(
    is_together: bool, workshop: Workshop, stream: str
) -> None:
    declarations = load_declarations(workshop.folder)
    agreed = declarations_digest(declarations, declarations.stream(stream), day_of_january(5))
    items = [ask_for_day(workshop, stream, day, agreed="d" * 64) for day in ((5, 6) if is_together else (5,))]
    items.append(ask_for_day(workshop, stream, 7, agreed=agreed))

    serve(workshop, items)

    assert states_of(workshop, items) == [*([FAILED] * (len(items) - 1)), DONE]
    assert "declared otherwise than when" in (observe_item(workshop.ledger, items[0]).failure or "")
    assert ids_by_duckdb(workshop) == [number for number in IDS if not 50 <= number < 70]


@pytest.mark.full
def test_a_run_that_has_read_edited_declarations_needs_another_application(workshop: Workshop, stream: str) -> None:
    fifth = ask_for_day(workshop, stream, 5)
    file = workshop.folder / f"{stream}.stream.yaml"
    file.write_text(f"{file.read_text()}# edited\n")
    sixth = ask_for_day(workshop, stream, 6)

    serve(workshop, [fifth, sixth])

    seen = observe_item(workshop.ledger, sixth)
    assert states_of(workshop, [fifth, sixth]) == [DONE, WAITING]
    assert seen.needs_application


def test_a_day_that_fails_is_reported_to_its_run_and_the_others_are_replaced(workshop: Workshop, stream: str) -> None:
    """The first day is declared otherwise than was agreed to; the second one fails, as an imbalance would make it."""
    declarations = load_declarations(workshop.folder)
    agreed = declarations_digest(declarations, declarations.stream(stream), day_of_january(7))
    asked = {5: "d" * 64, 6: "", 7: agreed}
    items = [ask_for_day(workshop, stream, day, agreed=digest) for day, digest in asked.items()]

    assert serve(workshop, items, reached=failing_on(6, IMBALANCE)) == "no further work came"

    assert states_of(workshop, items) == [FAILED, FAILED, DONE]
    failures = [observe_item(workshop.ledger, item).failure or "" for item in items[:2]]
    assert "declared otherwise than when" in failures[0]
    assert failures[1].splitlines()[-1] == "sluice: failed: VerificationError: The rows do not add up."
    assert ids_by_duckdb(workshop) == [number for number in IDS if not 50 <= number < 70]
    assert staging_tables(workshop, stream) == []
    of_run = results_of_run(workshop.ledger, name_of_run(7))[stream]
    assert (of_run["interval"][:10], of_run["state"]) == ("2013-01-07", "published")
    assert (of_run["rows"]["published"], of_run["rows"]["quarantined"]) == (3, 2)


@pytest.mark.full
def test_after_an_error_by_which_the_process_may_be_damaged_it_takes_no_further_day(
    workshop: Workshop, stream: str
) -> None:
    items = [ask_for_day(workshop, stream, day) for day in (5, 6, 7)]

    reason = serve(workshop, items, reached=failing_on(6, OSError("the application fails here")))

    assert reason == f"interval of {stream} has failed, by which the process may be damaged"
    assert states_of(workshop, items) == [DONE, FAILED, WAITING]
    failure = observe_item(workshop.ledger, items[1]).failure or ""
    assert failure.splitlines()[-1] == "sluice: failed: OSError: the application fails here"
    assert observe_item(workshop.ledger, items[2]).needs_application


@pytest.mark.full
def test_a_day_that_nobody_wants_any_more_is_stopped_between_two_steps(
    workshop: Workshop, stream: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    items = [ask_for_day(workshop, stream, day) for day in (5, 6)]

    def withdraw() -> None:
        withdraw_items(workshop.ledger, items[:1])
        stopping = f"{StopReason.STOPPED}"
        assert stopping in wait_until(lambda: caplog.text, lambda text: stopping in text, seconds=60)

    serve(workshop, items, reached=at_day(5, CrashPoint.STAGED, withdraw))

    assert states_of(workshop, items) == [WorkState.WITHDRAWN, DONE]
    assert ids_by_duckdb(workshop) == [one for one in IDS if not 50 <= one < 60 and not 70 <= one < 80]
    assert staging_tables(workshop, stream) == []


@pytest.mark.full  # every run kills one in `test_work_crashes.py`
@pytest.mark.parametrize("step", sampled(IN_A_BACKFILL, KILLED_AT), ids=str)
def test_when_an_application_is_killed_at_another_runs_day_the_next_completes_it(
    step: CrashPoint, workshop: Workshop, stream: str, services: Stack
) -> None:
    items = [ask_for_day(workshop, stream, day) for day in (5, 6, 7)]
    fifth = day_of_january(5)
    request = ReplaceInterval(stream=stream, start=fifth.start.isoformat(), end=fifth.end.isoformat())
    with waited_for(workshop, items), applications_of(workshop, services.environment(), dies_at=(step, 2)) as launcher:
        await_killed(workshop, start(workshop, items[0], request, launcher))

    hidden = {60, 61, 62} if step not in VISIBLE_FROM else set()
    assert ids_by_duckdb(workshop) == [number for number in IDS if number not in hidden | {70, 71, 72}]
    assert states_of(workshop, items) == [DONE, WAITING, WAITING]
    assert [observe_item(workshop.ledger, item).needs_application for item in items] == [False, True, False]

    serve(workshop, items[1:])

    assert states_of(workshop, items) == [DONE, DONE, DONE]
    assert ids_by_duckdb(workshop) == IDS
    assert staging_tables(workshop, stream) == []
    of_sixth = [one for one in recent_attempts(workshop.ledger, stream, limit=9) if one.launched_by == name_of_run(6)]
    first_state = BackfillState.PUBLISHED if step is CrashPoint.RECORDED else BackfillState.LOST
    second_state = BackfillState.UNCHANGED if step in VISIBLE_FROM else BackfillState.PUBLISHED
    assert [one.state for one in of_sixth] == [second_state, first_state]
