"""What a stream's recent runs say about starting it again: how often it failed in a row, and how long to wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sluice.declarations.supervision_declaration import SupervisionDeclaration
from sluice.failure_reasons import Failure, FailureReason
from sluice.failures.classification import failure_of_run
from sluice.ledger.records.run import DesiredState, RunObservation, RunState
from sluice.supervision.restart_policy import helps_to_restart, is_breaker_open, restart_wait, tries_of

UNEXPLAINED = Failure.of(FailureReason.UNEXPLAINED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartHistory:
    """The failures that still count against a stream.

    failures: runs that ended unasked, one after the other, the newest included; 0 when the newest ended as requested.
    newest_run_id, newest_ended_at, newest_reason, newest_failure: of the newest of them.
    of_class: those in a row that have the class of the newest; unset: all.
    ends: when every failure ended that nobody has forgiven, newest first, whatever stayed up in between.
    """

    failures: int = 0
    newest_run_id: str = ""
    newest_ended_at: datetime | None = None
    newest_reason: str = ""
    newest_failure: Failure = UNEXPLAINED
    of_class: int | None = None
    ends: tuple[datetime, ...] = ()

    @property
    def failures_of_class(self) -> int:
        """Failures in a row that have the class of the newest."""
        return self.failures if self.of_class is None else self.of_class


def restart_history(
    runs: Sequence[RunObservation], *, digest: str, stable_after: timedelta, forgiven_at: datetime | None
) -> RestartHistory:
    """Count the failures in a row that still count.

    A run that ended while the stream was wanted is a failure, whatever its exit code: a continuous stream has no end.
    The count ends at a run that ended as requested, at one that stayed up for `stable_after` (its own end still
    counts), at one of another declaration (somebody changed it, perhaps to repair it), and at `forgiven_at`.

    Parameters
    ----------
    runs: the newest runs of the stream, newest first; one more than the budget allows is enough.
    digest: of the declaration as it is now.
    stable_after: how long a run must stay up to set the count back.
    forgiven_at: when somebody last asked for the stream; what failed before that is forgiven.
    """
    failures: list[RunObservation] = []
    for run in runs:
        if not _counts(run, digest=digest, forgiven_at=forgiven_at):
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
            end
            for run in runs
            if _counts(run, digest=digest, forgiven_at=forgiven_at) and (end := _end(run)) is not None
        ),
    )


class RestartVerdict(StrEnum):
    """Whether a failed stream is started again, and why not."""

    RESTART = "restart"
    WOULD_NOT_HELP = "would_not_help"
    BREAKER_OPEN = "breaker_open"
    BUDGET_SPENT = "budget_spent"


def judge_restart(supervision: SupervisionDeclaration, history: RestartHistory) -> RestartVerdict:
    """Whether the stream is started again after its newest failure.

    Parameters
    ----------
    history: at least one failure.
    """
    failure_class = history.newest_failure.failure_class
    if not helps_to_restart(failure_class):
        return RestartVerdict.WOULD_NOT_HELP
    if is_breaker_open(supervision.breaker, history.ends):
        return RestartVerdict.BREAKER_OPEN
    if history.failures_of_class > tries_of(supervision.restart, failure_class):
        return RestartVerdict.BUDGET_SPENT
    return RestartVerdict.RESTART


def wait_after(supervision: SupervisionDeclaration, history: RestartHistory) -> timedelta:
    """How long after the end of the newest failure the stream is started again."""
    return restart_wait(
        supervision.restart,
        history.newest_failure.failure_class,
        failures=history.failures_of_class,
        run_id=history.newest_run_id,
    )


def _counts(run: RunObservation, *, digest: str, forgiven_at: datetime | None) -> bool:
    end = _end(run)
    return (
        end is not None
        and run.desired_state is DesiredState.RUNNING
        and run.declaration_digest == digest
        and (forgiven_at is None or end > forgiven_at)
    )


def _end(run: RunObservation) -> datetime | None:
    """When a run ended; none while it is live. A lost one ended with its last sign of life: it was missed later."""
    return _last_sign(run) if run.state is RunState.LOST else run.ended_at


def _uptime(run: RunObservation) -> timedelta:
    return _last_sign(run) - run.launched_at


def _last_sign(run: RunObservation) -> datetime:
    return run.heartbeat_at or run.launched_at
