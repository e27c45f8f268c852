"""What the task of a continuous stream does when it runs: supervise, then return the trigger to wait with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn
from uuid import UUID

from airflow.sdk import conf
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError
from airflow.sdk.execution_time.context import NEVER_EXPIRE

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import DeclarationError, SettingsError, UsageError
from sluice.failure_reasons import next_step
from sluice.ledger.airflow_owner import counted_dags
from sluice.ledger.desired_states import resume, set_desired_state
from sluice.ledger.events import Event, EventAction
from sluice.ledger.run_values import DesiredState
from sluice.supervision.alerts import Alert, report_given_up
from sluice.supervision.followed_pauses import follow_unpausing
from sluice.supervision.stream_verdict import StreamState
from sluice.supervision.supervision_values import SupervisionAction, SupervisionDecision, command_event
from sluice.supervision.supervisor import SupervisionResult, Supervisor, supervise
from sluice_airflow.adapters.airflow_id import owning_airflow
from sluice_airflow.adapters.execution_api import observe_dag
from sluice_airflow.composition import load_deployment
from sluice_airflow.pages.page_addresses import stream_address
from sluice_airflow.triggers.desired_state_trigger import DesiredStateTrigger
from sluice_airflow.triggers.stream_trigger import StreamTrigger

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from sluice_airflow.triggers.ledger_trigger import LedgerTrigger

_log = logging.getLogger(__name__)

DECISION_KEY = "sluice"
"""The key in Airflow's task state of the newest decision, for pages and programs that query Airflow."""


class StreamGivenUpError(AirflowFailException):
    """A stream was given up: a person must look. It is `context["exception"]` of a failure callback.

    Parameters
    ----------
    sentence: the whole message for a person.
    decision: why; its fields are the attributes `reason`, `failure_class`, `failure_reason` and `next_step`.
    is_new: whether a person was not alerted to it before.

    Attributes
    ----------
    alerts: the same as the one alert that every channel knows.
    """

    def __init__(self, sentence: str, *, stream: str, decision: SupervisionDecision, is_new: bool = True) -> None:
        super().__init__(sentence)
        self.stream = stream
        fields = decision_fields(decision, stream=stream)
        self.reason = fields["reason"]
        self.failure_class = fields["failure_class"]
        self.failure_reason = fields["failure_reason"]
        self.next_step = fields["next_step"]
        self.alerts = (Alert(stream=stream, sentence=sentence, reason=str(StreamState.GIVEN_UP), is_new=is_new),)


@dataclass(frozen=True, kw_only=True)
class StreamTask:
    """One try of a stream's task. `begin` and `resume` return the trigger to defer with; unset: the task is done.

    poll_seconds: between two looks of the trigger at the ledger.
    """

    stream: str
    poll_seconds: float
    context: Context

    def begin(self, *, retries: int) -> LedgerTrigger | None:
        """Begin to supervise: in a new DAG run, because a person cleared the task, or in a retry.

        A new try of a stopped stream waits for its start. A retry does not: the stream was stopped during the previous
        try, which an overloaded Airflow lost, and its DAG run ends as that try would have ended. A stream that was
        given up, or stopped by marking its task, is started again when a person caused this try since then: by
        clearing the task, triggering the DAG, or unpausing it. A DAG run that was merely in the queue gives the stream
        up once more, and Airflow pauses the DAG.

        Raises
        ------
        StreamGivenUpError: when the stream is given up.
        AirflowFailException: when its declaration or the settings are wrong.
        """
        attempt = self.context["ti"]
        is_new = is_first_try(try_number=attempt.try_number, max_tries=attempt.max_tries, retries=retries)
        asked_ago = requested_ago(self.context, now=datetime.now(UTC)) if is_new else None
        result = self._supervise(asked_ago=asked_ago)
        if result.decision.action is SupervisionAction.GIVE_UP and was_asked_since(asked_ago, result):
            self._request_start(result)
            result = self._supervise()
        if result.decision.action is SupervisionAction.FINISH and is_new:
            _log.info("The task waits until the stream is to run")
            return self._desired_state_trigger(result, within=None)
        return self._trigger_after(result)

    def resume(self, event: Mapping[str, Any] | None) -> LedgerTrigger | None:
        """Continue after a trigger fired. What it saw is only the occasion; the next action follows from supervising.

        Raises
        ------
        StreamGivenUpError, AirflowFailException: as `begin`.
        """
        _log.info("Supervising again, because the trigger saw: %s", (event or {}).get("seen"))
        return self._trigger_after(self._supervise())

    def _supervise(self, *, asked_ago: timedelta | None = None) -> SupervisionResult:
        """Supervise once. asked_ago: how long ago a person started the stream through Airflow; unset: no person did."""
        try:
            deployment = load_deployment()
            wanted = load_declarations(deployment.settings.pipelines, only=self.stream).stream(self.stream)
            with deployment.open_owned_ledger() as ledger:
                supervisor = deployment.supervisor(ledger, launched_by=supervising_task(self.context))
                self._update_suspension(supervisor, asked_ago=asked_ago)
                return supervise(supervisor, wanted)
        except (DeclarationError, SettingsError, UsageError) as error:
            _log.error("%s", error)
            raise AirflowFailException(str(error)) from error

    def _update_suspension(self, supervisor: Supervisor, *, asked_ago: timedelta | None) -> None:
        """Record at once that the DAG was unpaused or the task cleared, before the reconciler does."""
        airflow = owning_airflow(supervisor.ledger)
        if asked_ago is not None:
            event = self._request_event(EventAction.RESUME)
            resume(supervisor.ledger, self.stream, asked_ago=asked_ago, event=event)
        counted = counted_dags(supervisor.ledger, [self.stream], airflow=airflow)
        if follow_unpausing(supervisor, self.stream, partial(observe_dag, airflow=airflow, counted=counted)):
            _log.info("Stream %s: its DAG was unpaused: the stream is to run again", self.stream)

    def _request_start(self, given_up: SupervisionResult) -> None:
        """Request that the stream runs, unless a person asked for something else since it was found given up."""
        _log.info("The stream was given up, and a person started this task: the stream is to run again")
        person, event = supervising_task(self.context), self._request_event(EventAction.START)
        with load_deployment().open_owned_ledger() as ledger:
            set_desired_state(
                ledger,
                self.stream,
                DesiredState.RUNNING,
                requested_by=person,
                decided_on=given_up.seen.desired,
                event=event,
            )

    def _request_event(self, action: EventAction) -> Event:
        """What a person asked for through Airflow, which names the task and not always the person."""
        triggered_by = getattr(self.context["dag_run"], "triggering_user_name", None)
        text = "A person cleared the task, triggered the DAG or unpaused it."
        by = supervising_task(self.context) + (f", {triggered_by}" if triggered_by else "")
        return command_event(action, self.stream, by=by, explanation=text)

    def _trigger_after(self, result: SupervisionResult) -> LedgerTrigger | None:
        decision = result.decision
        store_decision(self.context, stream=self.stream, decision=decision)
        if decision.action is SupervisionAction.FINISH:
            return None
        if decision.action is SupervisionAction.GIVE_UP:
            self._give_up(decision)
        if decision.action is SupervisionAction.RESTART_LATER:
            return self._desired_state_trigger(result, within=decision.delay)
        return self._run_trigger(result)

    def _give_up(self, decision: SupervisionDecision) -> NoReturn:
        sentence = (
            f"{decision.reason}: {decision.explanation} Airflow pauses this DAG now; when the cause is repaired, "
            f"unpause it: that starts the stream again. Its page: {_page_of(self.stream)}"
        )
        _log.error("%s", sentence)
        with load_deployment().open_owned_ledger() as ledger:
            is_new = report_given_up(
                ledger,
                self.stream,
                sentence=sentence,
                occasion=decision.occasion,
                by=supervising_task(self.context),
            )
        raise StreamGivenUpError(sentence, stream=self.stream, decision=decision, is_new=is_new)

    def _run_trigger(self, result: SupervisionResult) -> StreamTrigger:
        """Wait beside the live run."""
        if result.run is None or result.decision.delay is None:
            raise AssertionError(f"{result.decision.action} leaves a run to watch")  # a defect of the supervision
        return StreamTrigger(
            stream=self.stream,
            run_id=result.run.run_id,
            patience_seconds=result.decision.delay.total_seconds(),
            poll_seconds=self.poll_seconds,
        )

    def _desired_state_trigger(self, result: SupervisionResult, *, within: timedelta | None) -> DesiredStateTrigger:
        """Wait until the desired state changes, or until the next start is due."""
        changed_at = result.seen.desired.changed_at
        return DesiredStateTrigger(
            stream=self.stream,
            known_change_at=None if changed_at is None else changed_at.isoformat(),
            due_seconds=None if within is None else within.total_seconds(),
            poll_seconds=self.poll_seconds,
        )


def _page_of(stream: str) -> str:
    return f"{conf.get('api', 'base_url', fallback='').rstrip('/')}/{stream_address(stream)}"


def was_asked_since(asked_ago: timedelta | None, given_up: SupervisionResult) -> bool:
    """Whether a person asked for a stream after the failure for which it is given up.

    Parameters
    ----------
    asked_ago: how long ago; unset: no person did.
    """
    run = given_up.seen.newest_run
    if asked_ago is None or run is None or run.ended_at is None:
        return asked_ago is not None
    return given_up.seen.observed_at - run.ended_at > asked_ago


def supervising_task(context: Context) -> str:
    """The task as the ledger names it in `launched_by` and `requested_by`."""
    return f"airflow: {context['dag'].dag_id}, {context['run_id']}"


def decision_fields(decision: SupervisionDecision, *, stream: str) -> dict[str, str]:
    """A decision as text fields; those of a failure are empty without one."""
    failure = decision.failure
    return {
        "action": str(decision.action),
        "reason": str(decision.reason),
        "explanation": decision.explanation,
        "failure_class": "" if failure is None else str(failure.failure_class),
        "failure_reason": "" if failure is None else str(failure.reason),
        "next_step": "" if failure is None else next_step(failure.reason, stream=stream),
    }


def store_decision(context: Context, *, stream: str, decision: SupervisionDecision) -> None:
    """Store the decision in Airflow's task state, as long as the task exists."""
    fields: dict[str, JsonValue] = {**decision_fields(decision, stream=stream)}
    try:
        context["task_state_store"].set(DECISION_KEY, fields, retention=NEVER_EXPIRE)
    except AirflowRuntimeError as error:  # a page that shows less is not a reason to supervise less
        _log.warning("stream=%s the decision could not be stored in the task's state: %s", stream, error)


_MILLISECONDS_FROM_BIT = 80
"""A UUID of version 7 begins with 48 bits: the milliseconds since the epoch. Source: RFC 9562, 5.7."""

NOTICED_WITHIN = timedelta(minutes=1)
"""How much later than a click its effect may be recorded: on a busy machine a marked task is noticed after a minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousDagRun:
    """The previous scheduled DAG run. ended_at: unset while it continues."""

    is_failed: bool
    ended_at: datetime | None


def is_first_try(*, try_number: int, max_tries: int, retries: int) -> bool:
    """Whether a try is the first of its DAG run or since the task was cleared, and so no retry.

    Clearing leaves the count of tries as it is, and raises `max_tries` by the task's retries; Airflow's own formula.
    """
    return try_number == max_tries - retries + 1


def requested_ago(context: Context, *, now: datetime) -> timedelta | None:
    """How long ago a person caused the first try of a task: by clearing it, by triggering or unpausing its DAG.

    A DAG run that a person triggered may wait for the previous one for days. What happened to its stream since then is
    newer than the request, so the caller compares the two; a request within `NOTICED_WITHIN` counts as the newer one.
    Clearing a task gives it a new id.

    Parameters
    ----------
    now: by the clock of this Airflow.

    Returns
    -------
    The age of the request; none when no person caused the try.
    """
    attempt = context["ti"]
    asked_at = made_at(attempt.id)
    if attempt.try_number == 1 and context["dag_run"].run_type != "manual":
        before = attempt.get_previous_dagrun()
        seen = None if before is None else PreviousDagRun(is_failed=before.state == "failed", ended_at=before.end_date)
        if not follows_unpausing(made_at=asked_at, before=seen):
            return None
    return max(now - asked_at - NOTICED_WITHIN, timedelta(0))


def follows_unpausing(*, made_at: datetime, before: PreviousDagRun | None) -> bool:
    """Whether a scheduled DAG run exists only because a person unpaused its DAG.

    Airflow pauses the DAG of a stream when its newest run fails, and makes no run of a paused DAG. So the very first
    run follows unpausing, and so does a run that was made after the failed one had ended. A run that was in the queue
    already, for example after a task was cleared, has only kept Airflow from pausing the DAG.

    Parameters
    ----------
    made_at: when the DAG run was made; its start date does not count, because it waits for the previous run.
    """
    if before is None:
        return True
    return before.is_failed and before.ended_at is not None and before.ended_at < made_at


def made_at(task_instance_id: UUID) -> datetime:
    """When Airflow made a task that was not tried yet: together with its DAG run, whose own date is not available."""
    return datetime.fromtimestamp((task_instance_id.int >> _MILLISECONDS_FROM_BIT) / 1000, tz=UTC)
