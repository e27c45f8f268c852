"""The task that supervises a continuous stream: observe, decide, act, and then wait without a worker slot."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError

from sluice.failure_reasons import next_step
from sluice_airflow.operators.user_requests import is_by_person, is_first_try

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import timedelta

    from airflow.sdk import Context
    from pydantic import JsonValue

    from sluice.supervision.supervision_decision import SupervisionDecision
    from sluice.supervision.supervisor import Supervised, Supervisor

_log = logging.getLogger(__name__)

DECISION_KEY = "sluice"
"""The key of the newest decision in Airflow's task state, for pages and programs that ask Airflow."""

POLL_SECONDS = 2.0
"""Between two looks at the ledger: one small query, and an ended driver is answered to within this time."""


class StreamOperator(BaseOperator):
    """Keep a continuous stream as it is asked to be.

    The driver is no child of this task. Whoever runs the task next (after a restart of Airflow, a retry, a cleared
    task, in another DAG run) finds the run in the ledger and adopts it. While there is nothing to do the task is
    deferred: the triggerer looks at the ledger, and no worker slot is held.

    Parameters
    ----------
    stream: the stream's name; its declaration is read when the task runs.
    poll_seconds: between two looks at the ledger while the task is deferred.
    """

    ui_color = "#d8ecf3"

    def __init__(self, *, stream: str, poll_seconds: float = POLL_SECONDS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.poll_seconds = poll_seconds

    def execute(self, context: Context) -> None:
        """Begin to supervise: in a new DAG run, because a person cleared the task, or in a retry.

        A stream that is stopped is waited for, except in a retry: then it was stopped under the try before, which an
        overloaded Airflow lost, and its DAG run ends as well as that one would have. One that was given up, or stopped
        by marking its task, is asked for anew when a person has brought us here: by clearing the task, triggering the
        DAG, or unpausing it. A DAG run that was merely in the queue gives a given-up stream up once more, and then
        Airflow pauses.
        """
        from sluice.supervision.supervision_decision import SupervisionAction

        attempt = context["ti"]
        is_new = is_first_try(try_number=attempt.try_number, max_tries=attempt.max_tries, retries=self.retries or 0)
        is_asked = is_new and is_by_person(context)
        supervised = self._supervise(context, is_asked=is_asked)
        if supervised.decision.action is SupervisionAction.GIVE_UP and is_asked:
            self._ask_anew(context)
            supervised = self._supervise(context)
        if supervised.decision.action is SupervisionAction.FINISH and is_new:
            self.log.info("The task waits until somebody asks for the stream")
            self._await_request(supervised, within=None)
        self._go_on(supervised, context)

    def look_again(self, context: Context, event: Mapping[str, Any] | None = None) -> None:
        """Go on after a trigger fired. What it saw is only why we look; what is done follows from looking again."""
        self.log.info("Looking again, because the trigger saw: %s", (event or {}).get("seen"))
        self._go_on(self._supervise(context), context)

    def _supervise(self, context: Context, *, is_asked: bool = False) -> Supervised:
        """Supervise once. is_asked: whether a person has just asked for the stream through Airflow."""
        from sluice.declarations.load_declarations import load_declarations
        from sluice.errors import DeclarationError, SettingsError, UsageError
        from sluice.supervision.supervisor import supervise
        from sluice_airflow.composition import load_deployment

        try:
            deployment = load_deployment()
            wanted = load_declarations(deployment.settings.pipelines, only=self.stream).stream(self.stream)
            with deployment.open_ledger() as ledger:
                supervisor = deployment.supervisor(ledger, launched_by=supervising_task(context))
                self._note_holds(supervisor, context, is_asked=is_asked)
                return supervise(supervisor, wanted)
        except (DeclarationError, SettingsError, UsageError) as error:
            self._fail(str(error), error)

    def _note_holds(self, supervisor: Supervisor, context: Context, *, is_asked: bool) -> None:
        """Do not wait for the reconciler to see that the DAG was unpaused, or that the task was cleared."""
        from sluice.ledger.desired_states import resume
        from sluice.supervision.reconciler import note_pause
        from sluice_airflow.adapters.paused_dags import paused_state

        if is_asked:
            resume(supervisor.ledger, self.stream)
        is_paused = paused_state(context["ti"])(context["dag"].dag_id)
        if is_paused is not None and (change := note_pause(supervisor, self.stream, is_paused=is_paused)):
            self.log.info("Stream %s: %s", self.stream, change)

    def _go_on(self, supervised: Supervised, context: Context) -> None:
        from sluice.supervision.supervision_decision import SupervisionAction

        decision = supervised.decision
        store_decision(context, stream=self.stream, decision=decision)
        if decision.action is SupervisionAction.FINISH:
            return
        if decision.action is SupervisionAction.GIVE_UP:
            given_up = StreamGivenUpError(decision, stream=self.stream)
            self.log.error("%s", given_up)
            raise given_up
        if decision.action is SupervisionAction.RESTART_LATER:
            self._await_request(supervised, within=decision.delay)
        self._watch(supervised)

    def _watch(self, supervised: Supervised) -> NoReturn:
        """Wait beside the live run."""
        from sluice_airflow.triggers.stream_trigger import StreamTrigger

        if supervised.run is None or supervised.decision.delay is None:
            raise AssertionError(f"{supervised.decision.action} leaves a run to watch")  # a defect of the supervision
        trigger = StreamTrigger(
            stream=self.stream,
            run_id=supervised.run.run_id,
            patience_seconds=supervised.decision.delay.total_seconds(),
            poll_seconds=self.poll_seconds,
        )
        self.defer(trigger=trigger, method_name=self.look_again.__name__)

    def _await_request(self, supervised: Supervised, *, within: timedelta | None) -> NoReturn:
        """Wait until the stream is asked for, or until its next start is due."""
        from sluice_airflow.triggers.desired_state_trigger import DesiredStateTrigger

        changed_at = supervised.seen.desired.changed_at
        trigger = DesiredStateTrigger(
            stream=self.stream,
            known_change_at=None if changed_at is None else changed_at.isoformat(),
            due_seconds=None if within is None else within.total_seconds(),
            poll_seconds=self.poll_seconds,
        )
        self.defer(trigger=trigger, method_name=self.look_again.__name__)

    def _ask_anew(self, context: Context) -> None:
        from sluice.ledger.desired_states import set_desired_state
        from sluice.ledger.records.run import DesiredState
        from sluice_airflow.composition import load_deployment

        self.log.info("The stream was given up, and this task was started by a person: it is asked for anew")
        with load_deployment().open_ledger() as ledger:
            set_desired_state(ledger, self.stream, DesiredState.RUNNING, requested_by=supervising_task(context))

    def _fail(self, sentence: str, cause: Exception | None = None) -> NoReturn:
        self.log.error("%s", sentence)
        raise AirflowFailException(sentence) from cause


def supervising_task(context: Context) -> str:
    """Who supervises, in the words of the ledger."""
    return f"airflow: {context['dag'].dag_id}, {context['run_id']}"


class StreamGivenUpError(AirflowFailException):
    """A stream was given up: a person must act. It is `context["exception"]` of a failure callback.

    Parameters
    ----------
    decision: why; its fields are the attributes `reason`, `failure_class`, `failure_reason` and `next_step`.
    """

    def __init__(self, decision: SupervisionDecision, *, stream: str) -> None:
        super().__init__(
            f"{decision.reason}: {decision.explanation} Airflow pauses this DAG now; when the cause is repaired, "
            "unpause it: that starts the stream again and resumes its supervision."
        )
        self.stream = stream
        fields = decision_fields(decision, stream=stream)
        self.reason = fields["reason"]
        self.failure_class = fields["failure_class"]
        self.failure_reason = fields["failure_reason"]
        self.next_step = fields["next_step"]


def decision_fields(decision: SupervisionDecision, *, stream: str) -> dict[str, str]:
    """Return a decision in the words of the ledger and the command line; without a failure its fields are empty."""
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
    """Store the decision in Airflow's task state for the lifetime of the task. A failure to do so is only logged."""
    from airflow.sdk.execution_time.context import NEVER_EXPIRE  # too slow for the parsing of a DAG file

    fields: dict[str, JsonValue] = {**decision_fields(decision, stream=stream)}
    try:
        context["task_state_store"].set(DECISION_KEY, fields, retention=NEVER_EXPIRE)
    except AirflowRuntimeError as error:
        _log.warning("stream=%s the decision could not be stored in the task's state: %s", stream, error)
