"""Whether a stream that failed is restarted, when, and when a person is asked instead. Pure.

| class                               | tries          | the first | then waits | why                                  |
|-------------------------------------|----------------|-----------|------------|--------------------------------------|
| transient, commit conflict, unknown | as declared    | at once   | declared   | it may be over already               |
| infrastructure                      | ten times that | at once   | declared   | or others repair it, in hours        |
| resource                            | at most two    | waits too | ten times  | memory and disk must be freed first  |
| source data lost, poison data,      | none           |           |            | another start would only repeat it   |
| schema, checkpoint, code            |                |           |            |                                      |

The tries of a class are counted among the failures in a row (`restart_history`), so stable uptime, a new declaration
and a person's request reset the count. A wait doubles with every failure of the class, up to the longest one that is
declared, and is shortened by up to a quarter, by a share of each run's own: a hundred streams that lost the same broker
do not restart in the same second. The share is derived from the run's id, so that every look has the same result.

The breaker counts differently: all failures within its window before the newest one, whatever stayed up in between. A
run that stays up for the whole window, or a person's request, empties its count.

How long it takes until a dead driver is noticed is in `time_limits`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import sha256

from sluice.declarations.supervision_declaration import BreakerDeclaration, RestartDeclaration, SupervisionDeclaration
from sluice.failure_reasons import FailureClass
from sluice.supervision.restart_history import RestartHistory

LARGEST_SHARE_OFF = 0.25
"""By how much a wait is shortened at most. It is never lengthened: the declared longest wait is the limit."""

MOST_RUNS_READ = 2_000
"""How many runs are read at most to count failures. A stream that failed so often in a row is given up, whatever is
declared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassPolicy:
    """The restart policy of one class of failures.

    tries_factor: times the declared attempts. most_tries: never more than that. delay_factor: times the first delay.
    is_first_at_once: whether the first restart comes without a wait, and the first delay lies before the second.
    """

    tries_factor: int = 1
    most_tries: int | None = None
    delay_factor: float = 1.0
    is_first_at_once: bool = True


_AS_DECLARED = ClassPolicy()
_NEVER = ClassPolicy(most_tries=0)
POLICIES: Mapping[FailureClass, ClassPolicy] = {
    FailureClass.TRANSIENT: _AS_DECLARED,
    FailureClass.COMMIT_CONFLICT: _AS_DECLARED,
    FailureClass.UNKNOWN: _AS_DECLARED,
    FailureClass.INFRASTRUCTURE: ClassPolicy(tries_factor=10),
    FailureClass.RESOURCE: ClassPolicy(most_tries=2, delay_factor=10.0, is_first_at_once=False),
    FailureClass.SOURCE_DATA_LOST: _NEVER,
    FailureClass.POISON_DATA: _NEVER,
    FailureClass.SCHEMA: _NEVER,
    FailureClass.CHECKPOINT: _NEVER,
    FailureClass.CODE: _NEVER,
}


class RestartVerdict(StrEnum):
    """Whether a failed stream is restarted, and why not."""

    RESTART = "restart"
    WOULD_NOT_HELP = "would_not_help"
    BREAKER_OPEN = "breaker_open"
    BUDGET_SPENT = "budget_spent"


def judge_restart(supervision: SupervisionDeclaration, history: RestartHistory) -> RestartVerdict:
    """Decide whether the stream is restarted after its newest failure.

    Parameters
    ----------
    history: at least one failure.
    """
    failure_class = history.newest_failure.failure_class
    if not helps_to_restart(failure_class):
        return RestartVerdict.WOULD_NOT_HELP
    if is_breaker_open(supervision.breaker, history.ends):
        return RestartVerdict.BREAKER_OPEN
    if history.failures_of_class > tries_of(supervision.restart, failure_class) or history.failures >= MOST_RUNS_READ:
        return RestartVerdict.BUDGET_SPENT
    return RestartVerdict.RESTART


def wait_after(supervision: SupervisionDeclaration, history: RestartHistory) -> timedelta:
    """How long after the end of the newest failure the stream is restarted."""
    return restart_wait(
        supervision.restart,
        history.newest_failure.failure_class,
        failures=history.failures_of_class,
        run_id=history.newest_run_id,
    )


def helps_to_restart(failure_class: FailureClass) -> bool:
    """Whether another start may end otherwise than the one that failed."""
    return POLICIES[failure_class].most_tries != 0


def tries_of(restart: RestartDeclaration, failure_class: FailureClass) -> int:
    """How many failures of a class in a row are each followed by another start."""
    policy = POLICIES[failure_class]
    allowed = restart.attempts * policy.tries_factor
    return allowed if policy.most_tries is None else min(allowed, policy.most_tries)


def restart_wait(
    restart: RestartDeclaration, failure_class: FailureClass, *, failures: int, run_id: str = ""
) -> timedelta:
    """How long to wait after the end of the newest failure.

    Parameters
    ----------
    failures: those of the class in a row, the newest included; at least 1.
    run_id: of the run that failed, by which its wait is shortened; unset: it is not.

    Returns
    -------
    Nothing where the first restart comes at once; else at least three quarters of the first delay, at most the
    longest one.
    """
    policy = POLICIES[failure_class]
    waits = failures - policy.is_first_at_once
    if waits == 0:
        return timedelta(0)
    doublings = min(waits - 1, 30)  # 2**30 times any delay is longer than any wait that makes sense
    factor = policy.delay_factor * float(2**doublings)
    is_longest = factor >= restart.longest_delay / restart.first_delay  # asked first: the product may be no timedelta
    whole = restart.longest_delay if is_longest else restart.first_delay * factor
    return whole * (1 - LARGEST_SHARE_OFF * share_of(run_id))


def is_breaker_open(breaker: BreakerDeclaration | None, ends: Sequence[datetime]) -> bool:
    """Whether too many runs failed within the window that ends with the newest failure.

    The window ends there and not now, so that an open breaker does not close merely because time passes.

    Parameters
    ----------
    ends: of all failures since the count was reset, newest first.
    """
    if breaker is None or not ends:
        return False
    return sum(end > ends[0] - breaker.window for end in ends) >= breaker.failures


def runs_to_read(restart: RestartDeclaration, breaker: BreakerDeclaration | None) -> int:
    """How many of the newest runs a decision needs: one more than the budgets of all classes together allow, so that
    failures of several classes that take turns spend the budget of one of them."""
    most = sum(tries_of(restart, each) for each in FailureClass) + 1
    return min(MOST_RUNS_READ, max(most, breaker.failures if breaker is not None else 0))


def share_of(run_id: str) -> float:
    """The share of a run, evenly spread over 0 (included) to 1 (excluded), the same at every look; 0 without an id."""
    return int.from_bytes(sha256(run_id.encode()).digest()[:6]) / 2**48 if run_id else 0.0
