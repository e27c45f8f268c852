"""The events of supervision: a decision about a stream, or the command of a person, as it is saved in the ledger. Pure.

`supervise` saves a decision when it acts on it, so a pass that changes nothing leaves no event. Two decisions change
nothing in the ledger themselves and are saved all the same, once on each occasion: that a stream is given up, and that
another task than the one that launched a run has adopted it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sluice.ledger.events import REQUESTED, Actor, Event, EventAction
from sluice.supervision.stream_observation import StreamObservation
from sluice.supervision.supervision_decision import SupervisionAction, SupervisionDecision

if TYPE_CHECKING:
    from sluice.supervision.supervisor import SupervisionResult

_ACTIONS: Mapping[SupervisionAction, EventAction] = {
    SupervisionAction.LAUNCH: EventAction.LAUNCH,
    SupervisionAction.ADOPT: EventAction.ADOPT,
    SupervisionAction.CLOSE: EventAction.CLOSE_RUN,
    SupervisionAction.TAKE_OVER: EventAction.TAKE_OVER,
    SupervisionAction.REVOKE: EventAction.REVOKE,
    SupervisionAction.REPLACE: EventAction.REPLACE,
    SupervisionAction.STOP: EventAction.END_DRIVER,
    SupervisionAction.GIVE_UP: EventAction.GIVE_UP,
}
"""The decisions that are saved. WAIT, RESTART_LATER and FINISH change nothing."""


def command_event(
    action: EventAction,
    stream: str,
    *,
    by: str,
    explanation: str = "",
    run_id: str | None = None,
    evidence: Mapping[str, Any] | None = None,
) -> Event:
    """The command of a person as an event.

    Parameters
    ----------
    by: the person, as the ledger names them: `command line: ann@host`, `airflow: stream_control, ann`.
    """
    return Event(
        name=stream,
        actor=Actor.person(by),
        action=action,
        reason=REQUESTED,
        explanation=explanation,
        run_id=run_id,
        evidence=evidence or {},
    )


def decision_event(planned: SupervisionResult, *, by: str) -> Event:
    """A decision of supervision as an event.

    Parameters
    ----------
    planned: the decision, with the observation that it was made on.
    by: the task or command that supervises.
    """
    decision, seen = planned.decision, planned.seen
    return Event(
        name=seen.stream,
        actor=Actor.component(by),
        action=_ACTIONS[decision.action],
        reason=str(decision.reason),
        explanation=decision.explanation,
        run_id=None if seen.newest_run is None else seen.newest_run.run_id,
        evidence=_evidence(decision, seen),
        occasion=_occasion(decision, seen, by=by),
    )


def _occasion(decision: SupervisionDecision, seen: StreamObservation, *, by: str) -> str | None:
    """What may be decided on several passes and is saved once; none where the ledger's change itself happens once."""
    run_id = "" if seen.newest_run is None else seen.newest_run.run_id
    match decision.action:
        case SupervisionAction.ADOPT:
            return f"{run_id}, {by}"
        case SupervisionAction.CLOSE | SupervisionAction.STOP:
            return f"{run_id}, {decision.reason}"
        case SupervisionAction.GIVE_UP:
            return f"{run_id}, {decision.reason}, {seen.desired.changed_at}"
        case _:
            return None


def _evidence(decision: SupervisionDecision, seen: StreamObservation) -> dict[str, Any]:
    """The facts of the observation, without those that are unset."""
    run, lease, failure = seen.newest_run, seen.lease, decision.failure
    facts = {
        "desired_state": seen.desired.effective_state,
        "suspension": seen.desired.suspension,
        "run_state": None if run is None else run.state,
        "token": None if run is None else run.token,
        "heartbeat_at": None if run is None else run.heartbeat_at,
        "process": seen.process,
        "lease_expires_at": None if lease is None else lease.expires_at,
        "exit_code": None if seen.left_exit is None else seen.left_exit.exit_code,
        "failure_class": None if failure is None else failure.failure_class,
        "failure_reason": None if failure is None else str(failure.reason),
        "failures": decision.failures or None,
        "newest_batch": None if seen.current_batch is None else str(seen.current_batch.key),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}
