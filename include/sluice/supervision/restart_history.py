"""Counts the failures of a stream in a row. What follows from the count is in `restart_policy`. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sluice.failure_reasons import Failure, FailureReason
from sluice.failures.classification import failure_of_run
from sluice.ledger.run_values import DesiredState, RunObservation, RunState

UNEXPLAINED = Failure.of(FailureReason.UNEXPLAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartHistory:
    """The failures that still count against a stream.

    failures: runs that ended without a request, one after the other, the newest included; 0 when the newest one
        ended as requested.
    newest_run_id, newest_ended_at, newest_reason, newest_failure: of the newest of them.
    of_class: those in a row that have the class of the newest; unset: all.
    ends: when every failure since the count was reset ended, newest first, whatever stayed up in between.
    is_back_and_forth: whether another replacement of the live run would only continue to replace runs back and forth.
    """

    failures: int = 0
    newest_run_id: str = ""
    newest_ended_at: datetime | None = None
    newest_reason: str = ""
    newest_failure: Failure = UNEXPLAINED
    of_class: int | None = None
    ends: tuple[datetime, ...] = ()
    is_back_and_forth: bool = False

    @property
    def failures_of_class(self) -> int:
        """Failures in a row that have the class of the newest."""
        return self.failures if self.of_class is None else self.of_class


def count_failures(
    runs: Sequence[RunObservation], *, digest: str, stable_after: timedelta, reset_at: datetime | None
) -> RestartHistory:
    """Count the failures in a row that still count.

    A run that ended while its stream was to run is a failure, whatever its exit code: a continuous stream has no end.
    The count ends at a run that ended as requested, at one that stayed up for `stable_after` (its own end still
    counts), at one of another declaration (it was changed, perhaps to repair the stream), and at `reset_at`.

    Parameters
    ----------
    runs: the newest runs of the stream, newest first; one more than the budget allows is enough.
    digest: of the declaration as it is now.
    stable_after: how long a run must stay up to reset the count.
    reset_at: when the desired state last changed; failures before that do not count.
    """
    failures: list[RunObservation] = []
    for run in runs:
        if not _counts(run, digest=digest, reset_at=reset_at):
            break
        failures.append(run)
        if _uptime(run) >= stable_after:
            break
    if not failures:
        return RestartHistory()
    newest = failures[0]
    newest_class = failure_of_run(newest).failure_class
    return RestartHistory(
        failures=len(failures),
        newest_run_id=newest.run_id,
        newest_ended_at=_end(newest),
        newest_reason=(newest.reason or "without a reason").rstrip("."),
        newest_failure=failure_of_run(newest),
        of_class=sum(failure_of_run(run).failure_class is newest_class for run in failures),
        ends=tuple(
            end for run in runs if _counts(run, digest=digest, reset_at=reset_at) and (end := _end(run)) is not None
        ),
    )


def _counts(run: RunObservation, *, digest: str, reset_at: datetime | None) -> bool:
    end = _end(run)
    return (
        end is not None
        and run.desired_state is DesiredState.RUNNING
        and run.declaration_digest == digest
        and (reset_at is None or end > reset_at)
    )


def _end(run: RunObservation) -> datetime | None:
    """When a run ended; none while it is live. A lost run ended with its last heartbeat; its loss was noticed later."""
    return _last_sign(run) if run.state is RunState.LOST else run.ended_at


def _uptime(run: RunObservation) -> timedelta:
    return _last_sign(run) - run.launched_at


def _last_sign(run: RunObservation) -> datetime:
    return run.heartbeat_at or run.launched_at
