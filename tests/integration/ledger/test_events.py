"""Events in a real PostgreSQL: append-only, once on each occasion, and saved with the change or not at all."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from sluice.errors import RunAlreadyLiveError, UsageError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.desired_states import SuspensionCause, resume, set_desired_state, suspend
from sluice.ledger.events import (
    Actor,
    ActorKind,
    Event,
    EventAction,
    EventSubject,
    add_event,
    recent_events,
    record_event,
)
from sluice.ledger.generations import current_generation
from sluice.ledger.next_generation import open_next_generation
from sluice.ledger.retention import Retention, apply_retention
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.runs import admit_run, ask_to_end, take_over

EVENT = Event(
    name="flights",
    actor=Actor.component("a test"),
    action=EventAction.LAUNCH,
    reason="restart_due",
    explanation="The start is due.",
    evidence={"failures": 2},
)
FOREVER = timedelta(days=9_999)


def actions(ledger: Ledger, name: str = "flights") -> list[str]:
    """What was saved about a stream, oldest first."""
    return [event.action for event in reversed(recent_events(ledger, EventSubject.STREAM, name, limit=100))]


def admitted(ledger: Ledger, event: Event | None = None) -> RunObservation:
    """A live run of the stream."""
    return admit_run(
        ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test", event=event
    )


def test_an_event_is_read_as_it_was_saved(ledger: Ledger) -> None:
    before = database_time(ledger)
    assert record_event(ledger, EVENT)
    assert record_event(ledger, replace(EVENT, subject=EventSubject.TABLE, name="bronze.flights"))
    (found,) = recent_events(ledger, EventSubject.STREAM, "flights", limit=10)
    assert (found.name, found.action, found.reason, found.explanation, found.evidence) == (
        "flights",
        "launch",
        "restart_due",
        "The start is due.",
        {"failures": 2},
    )
    assert (found.actor.kind, found.actor.name, found.run_id) == (ActorKind.COMPONENT, "a test", None)
    assert found.recorded_at > before
    assert len(recent_events(ledger, EventSubject.TABLE, "bronze.flights", limit=10)) == 1
    assert recent_events(ledger, EventSubject.STREAM, "flights", limit=10, since=database_time(ledger)) == ()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sluice.events SET reason = 'another'",
        "DELETE FROM sluice.events",
        "TRUNCATE sluice.events",
        "WITH allowed AS (SELECT set_config('sluice.retention', 'events', true) AS setting) "
        "UPDATE sluice.events SET reason = 'another' FROM allowed WHERE setting = 'events'",
    ],
)
def test_the_database_refuses_to_change_or_delete_an_event(ledger: Ledger, statement: str) -> None:
    record_event(ledger, EVENT)
    with pytest.raises(DBAPIError, match="events are append-only"), ledger.transaction() as connection:
        connection.execute(text(statement))
    assert actions(ledger) == ["launch"]


def test_retention_deletes_old_events_and_no_others(ledger: Ledger) -> None:
    kept = Retention(batches=FOREVER, runs=FOREVER, events=timedelta(days=365))
    for days in (1, 364, 366, 900):
        with ledger.transaction() as connection:
            add_event(connection, replace(EVENT, reason=str(days)))
            connection.execute(text("ALTER TABLE sluice.events DISABLE TRIGGER events_are_append_only"))
            connection.execute(
                text("UPDATE sluice.events SET recorded_at = now() - :age WHERE reason = :reason"),
                {"age": timedelta(days=days), "reason": str(days)},
            )
            connection.execute(text("ALTER TABLE sluice.events ENABLE TRIGGER events_are_append_only"))
    assert apply_retention(ledger, kept, dry_run=True).events == 2
    assert apply_retention(ledger, kept).events == 2
    assert apply_retention(ledger, kept).events == 0
    left = recent_events(ledger, EventSubject.STREAM, "flights", limit=10)
    assert sorted(event.reason for event in left) == ["1", "364"]


def test_an_occasion_has_one_event_of_an_action_however_many_save_it(ledger: Ledger) -> None:
    once = replace(EVENT, occasion="run-1")
    with ThreadPoolExecutor(max_workers=4) as pool:
        saved = list(pool.map(lambda _: record_event(ledger, once), range(4)))
    assert sorted(saved) == [False, False, False, True]
    assert record_event(ledger, replace(once, action=EventAction.ADOPT))
    assert record_event(ledger, replace(once, occasion="run-2"))
    assert record_event(ledger, replace(once, name="weather"))
    assert actions(ledger) == ["launch", "adopt", "launch"]


def test_only_an_admitted_run_has_an_event_with_its_id(ledger: Ledger) -> None:
    run = admitted(ledger, EVENT)
    with pytest.raises(RunAlreadyLiveError):
        admitted(ledger, EVENT)
    assert [event.run_id for event in recent_events(ledger, EventSubject.STREAM, "flights", limit=9)] == [run.run_id]


def test_a_suspension_and_its_end_have_one_event_each(ledger: Ledger) -> None:
    suspended = replace(EVENT, action=EventAction.SUSPEND)
    resumed = replace(EVENT, action=EventAction.RESUME)
    resume(ledger, "flights", event=resumed)
    for _ in range(2):
        suspend(ledger, "flights", SuspensionCause.PAUSED, event=suspended)
    suspend(ledger, "flights", SuspensionCause.MARKED, event=suspended)
    for _ in range(2):
        resume(ledger, "flights", event=resumed)
    assert actions(ledger) == ["suspend", "resume"]


def test_a_run_that_is_asked_to_end_twice_has_one_event(ledger: Ledger) -> None:
    run = admitted(ledger)
    for _ in range(2):
        ask_to_end(ledger, run.run_id, because="a test", event=replace(EVENT, action=EventAction.REPLACE))
    assert actions(ledger) == ["replace"]


def test_a_lease_that_has_not_run_out_is_not_taken_over_and_has_no_event(ledger: Ledger) -> None:
    run, event = admitted(ledger), replace(EVENT, action=EventAction.TAKE_OVER)
    assert take_over(ledger, run.run_id, reason="silent", event=event).is_live
    assert actions(ledger) == []
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.leases SET expires_at = now()"))
    for _ in range(2):
        assert not take_over(ledger, run.run_id, reason="silent", event=event).is_live
    assert actions(ledger) == ["take_over"]


def test_a_generation_is_opened_with_its_event(ledger: Ledger) -> None:
    for _ in range(2):
        current_generation(ledger, "flights", checkpoints_root="file:///checkpoints")
    assert actions(ledger) == ["open_generation"]
    reset = replace(EVENT, action=EventAction.RESET)
    with pytest.raises(UsageError, match="is to run"):
        open_next_generation(
            ledger, "flights", leaving=1, checkpoints_root="file:///checkpoints", opened_by="ann", event=reset
        )
    set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="ann")
    open_next_generation(
        ledger, "flights", leaving=1, checkpoints_root="file:///checkpoints", opened_by="ann", event=reset
    )
    assert actions(ledger) == ["open_generation", "reset"]
