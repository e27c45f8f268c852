"""What suspends a stream, and what ends one run only, in a real PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sluice.errors import CheckpointError
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import (
    SuspensionCause,
    find_desired_state,
    reset_failure_count,
    resume,
    set_desired_state,
    suspend,
)
from sluice.ledger.events import EventAction
from sluice.ledger.generations import current_generation, find_generation, record_fingerprint
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import admit_run, ask_to_end, beat, find_run, record_end
from sluice.supervision.supervision_values import command_event

RESET = command_event(EventAction.RESET_BREAKER, "flights", by="ann")


@pytest.fixture
def run(ledger: Ledger) -> RunObservation:
    """A live run."""
    return admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")


@pytest.mark.parametrize("cause", SuspensionCause)
def test_a_suspended_stream_is_to_stop_and_goes_on_when_it_is_resumed(
    ledger: Ledger, run: RunObservation, cause: SuspensionCause
) -> None:
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING
    suspended = suspend(ledger, "flights", cause)
    assert (suspended.effective_state, suspended.desired_state, suspended.requested_at) == (
        DesiredState.STOPPED,
        DesiredState.RUNNING,
        None,
    )
    assert find_run(ledger, run.run_id).desired_state is DesiredState.STOPPED
    assert beat(ledger, run.run_id).desired_state is DesiredState.STOPPED
    assert suspend(ledger, "flights", cause) == suspended, "it began once"
    assert resume(ledger, "flights")
    assert not resume(ledger, "flights")
    resumed = find_desired_state(ledger, "flights")
    assert suspended.changed_at is not None
    assert resumed.changed_at is not None
    assert (resumed.effective_state, resumed.changed_at > suspended.changed_at) == (DesiredState.RUNNING, True)
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING


def test_a_run_that_is_admitted_while_the_stream_is_suspended_is_to_stop(ledger: Ledger) -> None:
    suspend(ledger, "flights", SuspensionCause.PAUSED)
    run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
    assert run.desired_state is DesiredState.STOPPED


def test_resuming_leaves_a_person_s_request_as_it_was(ledger: Ledger) -> None:
    set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="ann")
    suspend(ledger, "flights", SuspensionCause.PAUSED)
    resume(ledger, "flights")
    assert find_desired_state(ledger, "flights").effective_state is DesiredState.STOPPED
    assert find_desired_state(ledger, "flights").requested_by == "ann"


def test_a_paused_dag_outweighs_a_marked_task_and_a_request_to_run_ends_both(ledger: Ledger) -> None:
    suspend(ledger, "flights", SuspensionCause.MARKED)
    assert set_desired_state(ledger, "flights", DesiredState.RUNNING).suspension is None
    suspend(ledger, "flights", SuspensionCause.MARKED)
    assert suspend(ledger, "flights", SuspensionCause.PAUSED).suspension is SuspensionCause.PAUSED
    assert suspend(ledger, "flights", SuspensionCause.MARKED).suspension is SuspensionCause.PAUSED
    kept = reset_failure_count(ledger, "flights", requested_by="ann", event=RESET)
    assert kept.effective_state is DesiredState.STOPPED, "a reset of the failure count starts nothing"
    assert set_desired_state(ledger, "flights", DesiredState.STOPPED).suspension is SuspensionCause.PAUSED
    assert set_desired_state(ledger, "flights", DesiredState.RUNNING).effective_state is DesiredState.RUNNING


def test_a_mark_that_is_heard_late_does_not_stop_what_was_asked_for_since(ledger: Ledger) -> None:
    suspend(ledger, "flights", SuspensionCause.PAUSED)
    resume(ledger, "flights")  # as unpausing does
    assert suspend(ledger, "flights", SuspensionCause.MARKED, noticed_ago=timedelta(hours=1)).suspension is None
    assert (
        suspend(ledger, "flights", SuspensionCause.MARKED, noticed_ago=timedelta(0)).suspension
        is SuspensionCause.MARKED
    )
    set_desired_state(ledger, "flights", DesiredState.RUNNING)
    assert suspend(ledger, "flights", SuspensionCause.MARKED, noticed_ago=timedelta(hours=1)).suspension is None
    assert (
        suspend(ledger, "never_asked_for", SuspensionCause.MARKED, noticed_ago=timedelta(hours=1)).suspension
        is SuspensionCause.MARKED
    )


def test_a_run_that_is_asked_to_end_leaves_its_stream_wanted(ledger: Ledger, run: RunObservation) -> None:
    asked = ask_to_end(ledger, run.run_id, because="its declaration has changed")
    assert (asked.end_asked_because, asked.desired_state) == ("its declaration has changed", DesiredState.STOPPED)
    assert ask_to_end(ledger, run.run_id, because="another reason") == asked
    assert beat(ledger, run.run_id).desired_state is DesiredState.STOPPED
    set_desired_state(ledger, "flights", DesiredState.RUNNING)
    assert beat(ledger, run.run_id).desired_state is DesiredState.STOPPED, (
        "a request for the stream does not keep the run"
    )
    assert find_desired_state(ledger, "flights").effective_state is DesiredState.RUNNING
    ended = record_end(ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="stopped as requested")
    assert ask_to_end(ledger, run.run_id, because="too late") == ended


def test_the_first_fingerprint_of_a_generation_stays(ledger: Ledger) -> None:
    current_generation(ledger, "flights", checkpoints_root="file:///checkpoints")
    assert record_fingerprint(ledger, "flights", 1, {"input a": "rate"}).fingerprint == {"input a": "rate"}
    assert record_fingerprint(ledger, "flights", 1, {"input a": "kafka"}).fingerprint == {"input a": "rate"}
    emptied = record_fingerprint(ledger, "flights", 1, {"input b": "rate"}, is_empty=True)
    assert emptied.fingerprint == {"input b": "rate"}, "a checkpoint without a batch is bound to nothing"
    found = find_generation(ledger, "flights")
    assert found is not None
    assert found.fingerprint == emptied.fingerprint
    with pytest.raises(CheckpointError, match="no generation 2"):
        record_fingerprint(ledger, "flights", 2, {})


def test_a_request_to_go_on_that_is_older_than_the_suspension_does_not_end_it(ledger: Ledger) -> None:
    suspend(ledger, "flights", SuspensionCause.MARKED)
    assert not resume(ledger, "flights", asked_ago=timedelta(hours=1)), "a queued DAG run of an hour ago"
    assert find_desired_state(ledger, "flights").suspension is SuspensionCause.MARKED
    assert resume(ledger, "flights", asked_ago=timedelta(0))
