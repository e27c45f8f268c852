"""What keeps a stream from running whatever is wished, and what ends one run only, in a real PostgreSQL."""

from __future__ import annotations

from datetime import timedelta

import pytest

from sluice.errors import CheckpointError
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import find_wish, hold, lift, wish
from sluice.ledger.generations import current_generation, find_generation, record_fingerprint
from sluice.ledger.records.desired_state import HoldCause
from sluice.ledger.records.run import DesiredState, RunObservation, RunState
from sluice.ledger.runs import admit_run, ask_to_end, beat, find_run, record_end


@pytest.fixture
def run(ledger: Ledger) -> RunObservation:
    """A live run."""
    return admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")


@pytest.mark.parametrize("cause", HoldCause)
def test_a_held_stream_is_to_stop_and_goes_on_when_the_hold_is_lifted(
    ledger: Ledger, run: RunObservation, cause: HoldCause
) -> None:
    assert beat(ledger, run.run_id).wanted is DesiredState.RUNNING
    held = hold(ledger, "flights", cause)
    assert (held.wanted, held.desired_state, held.wished_at) == (DesiredState.STOPPED, DesiredState.RUNNING, None)
    assert find_run(ledger, run.run_id).desired_state is DesiredState.STOPPED
    assert beat(ledger, run.run_id).wanted is DesiredState.STOPPED
    assert hold(ledger, "flights", cause) == held, "it began once"
    assert lift(ledger, "flights")
    assert not lift(ledger, "flights")
    lifted = find_wish(ledger, "flights")
    assert held.changed_at is not None
    assert lifted.changed_at is not None
    assert (lifted.wanted, lifted.changed_at > held.changed_at) == (DesiredState.RUNNING, True)
    assert beat(ledger, run.run_id).wanted is DesiredState.RUNNING


def test_a_run_that_is_admitted_while_the_stream_is_held_is_to_stop(ledger: Ledger) -> None:
    hold(ledger, "flights", HoldCause.PAUSED)
    run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
    assert run.desired_state is DesiredState.STOPPED


def test_a_lifted_hold_leaves_a_person_s_wish_as_it_was(ledger: Ledger) -> None:
    wish(ledger, "flights", DesiredState.STOPPED, wished_by="ann")
    hold(ledger, "flights", HoldCause.PAUSED)
    lift(ledger, "flights")
    assert find_wish(ledger, "flights").wanted is DesiredState.STOPPED
    assert find_wish(ledger, "flights").wished_by == "ann"


def test_a_paused_dag_outweighs_a_marked_task_and_a_wish_ends_only_the_latter(ledger: Ledger) -> None:
    hold(ledger, "flights", HoldCause.MARKED)
    assert wish(ledger, "flights", DesiredState.RUNNING).hold is None
    hold(ledger, "flights", HoldCause.MARKED)
    assert hold(ledger, "flights", HoldCause.PAUSED).hold is HoldCause.PAUSED
    assert hold(ledger, "flights", HoldCause.MARKED).hold is HoldCause.PAUSED
    assert wish(ledger, "flights", DesiredState.RUNNING).wanted is DesiredState.STOPPED


def test_a_mark_that_is_heard_late_does_not_stop_what_was_asked_for_since(ledger: Ledger) -> None:
    hold(ledger, "flights", HoldCause.PAUSED)
    lift(ledger, "flights")  # as unpausing does
    assert hold(ledger, "flights", HoldCause.MARKED, noticed_ago=timedelta(hours=1)).hold is None
    assert hold(ledger, "flights", HoldCause.MARKED, noticed_ago=timedelta(0)).hold is HoldCause.MARKED
    wish(ledger, "flights", DesiredState.RUNNING)
    assert hold(ledger, "flights", HoldCause.MARKED, noticed_ago=timedelta(hours=1)).hold is None
    assert hold(ledger, "never_asked_for", HoldCause.MARKED, noticed_ago=timedelta(hours=1)).hold is HoldCause.MARKED


def test_a_run_that_is_asked_to_end_leaves_its_stream_wanted(ledger: Ledger, run: RunObservation) -> None:
    asked = ask_to_end(ledger, run.run_id, because="its declaration has changed")
    assert (asked.end_asked_because, asked.desired_state) == ("its declaration has changed", DesiredState.STOPPED)
    assert ask_to_end(ledger, run.run_id, because="another reason") == asked
    assert beat(ledger, run.run_id).wanted is DesiredState.STOPPED
    wish(ledger, "flights", DesiredState.RUNNING)
    assert beat(ledger, run.run_id).wanted is DesiredState.STOPPED, "a wish for the stream does not keep the run"
    assert find_wish(ledger, "flights").wanted is DesiredState.RUNNING
    ended = record_end(ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="stopped as wished")
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
