"""Whether a person caused a try of a stream's task: by clearing it, by triggering or unpausing its DAG."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

if TYPE_CHECKING:
    from airflow.sdk import Context

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
