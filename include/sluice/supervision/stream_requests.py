"""What a person asks of a stream, saved in the ledger; supervision carries it out.

    request_start, request_stop, request_restart ──► ledger ──► the stream's task, or the reconciler within a minute

The commands (`stream_commands`) ask and then supervise themselves, so that a person at a terminal sees the end. A page
only asks: a web server starts and ends no drivers, and an answer waits for none.
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import DesiredStateObservation, set_desired_state
from sluice.ledger.events import EventAction, record_event
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.runs import ask_to_end, newest_run
from sluice.supervision.supervision_events import command_event


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """A restart that was asked for. ending: the live run, which ends after its batch; unset when there was none."""

    desired: DesiredStateObservation
    ending: RunObservation | None


def request_start(ledger: Ledger, stream: str, *, requested_by: str) -> DesiredStateObservation:
    """Ask that a stream runs. This resets its failure count."""
    event = command_event(EventAction.START, stream, by=requested_by)
    return set_desired_state(ledger, stream, DesiredState.RUNNING, requested_by=requested_by, event=event)


def request_stop(ledger: Ledger, stream: str, *, requested_by: str) -> DesiredStateObservation:
    """Ask that a stream stops after its batch; it stays stopped until it is started again."""
    event = command_event(EventAction.STOP, stream, by=requested_by)
    return set_desired_state(ledger, stream, DesiredState.STOPPED, requested_by=requested_by, event=event)


def request_restart(ledger: Ledger, stream: str, *, requested_by: str) -> RestartRequest:
    """Ask that the live run ends after its batch and another one takes its place.

    The desired state is `running` before the run is asked to end: a person who stops the stream meanwhile has the last
    word, and the stream is started again even if this process dies in between.
    """
    run = newest_run(ledger, stream)
    live = run if run is not None and run.is_live else None
    run_id = None if live is None else live.run_id
    record_event(ledger, command_event(EventAction.RESTART, stream, by=requested_by, run_id=run_id))
    desired = set_desired_state(ledger, stream, DesiredState.RUNNING, requested_by=requested_by, event=None)
    if live is not None:
        ask_to_end(ledger, live.run_id, because=f"restarted by {requested_by}", event=None)
    return RestartRequest(desired=desired, ending=live)
