"""A decision about a stream in Airflow: the exception of a stream that was given up, and the state of its task."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException, AirflowRuntimeError

from sluice.failure_reasons import next_step

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from sluice.supervision.supervision_decision import SupervisionDecision

_log = logging.getLogger(__name__)

DECISION_KEY = "sluice"
"""The key of the newest decision in Airflow's task state, for pages and programs that ask Airflow."""


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
