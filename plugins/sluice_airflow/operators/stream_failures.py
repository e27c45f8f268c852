"""What a stream's task tells Airflow: the same named reason and next step in its state and in its failure."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

if TYPE_CHECKING:
    from airflow.sdk import Context
    from pydantic import JsonValue

    from sluice.supervision.supervision_decision import SupervisionDecision

_log = logging.getLogger(__name__)

TOLD_KEY = "sluice"
"""The key in Airflow's task state under which the newest decision lies, for pages and programs that ask Airflow."""


class StreamGivenUpError(AirflowFailException):
    """A stream was given up: a person must look. It is `context["exception"]` of a failure callback.

    Parameters
    ----------
    sentence: the whole message for a person.
    decision: why; its words are the attributes `reason`, `failure_class`, `failure_reason` and `next_step`.
    """

    def __init__(self, sentence: str, *, stream: str, decision: SupervisionDecision) -> None:
        super().__init__(sentence)
        self.stream = stream
        words = words_of(decision, stream=stream)
        self.reason = words["reason"]
        self.failure_class = words["failure_class"]
        self.failure_reason = words["failure_reason"]
        self.next_step = words["next_step"]


def words_of(decision: SupervisionDecision, *, stream: str) -> dict[str, str]:
    """A decision in the words that stand everywhere; those of a failure are empty without one."""
    from sluice.failure_reasons import next_step

    failure = decision.failure
    return {
        "action": str(decision.action),
        "reason": str(decision.reason),
        "explanation": decision.explanation,
        "failure_class": "" if failure is None else str(failure.failure_class),
        "failure_reason": "" if failure is None else str(failure.reason),
        "next_step": "" if failure is None else next_step(failure.reason, stream=stream),
    }


def keep_told(context: Context, *, stream: str, decision: SupervisionDecision) -> None:
    """Keep the decision in Airflow's task state, as long as the task exists."""
    from airflow.sdk.exceptions import AirflowRuntimeError
    from airflow.sdk.execution_time.context import NEVER_EXPIRE

    words: dict[str, JsonValue] = {**words_of(decision, stream=stream)}
    try:
        context["task_state_store"].set(TOLD_KEY, words, retention=NEVER_EXPIRE)
    except AirflowRuntimeError as error:  # a page that tells less is no reason to supervise less
        _log.warning("stream=%s the decision could not be kept in the task's state: %s", stream, error)
