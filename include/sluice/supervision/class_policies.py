"""How each class of failures is restarted: how often, and after which wait. The table is in `restart_policy`. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from sluice.declarations.run_declaration import RestartDeclaration
from sluice.failure_reasons import FailureClass

LARGEST_SHARE_OFF = 0.25
"""By how much a wait is shortened at most. It is never lengthened: the declared longest wait is the limit."""


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


def share_of(run_id: str) -> float:
    """The share of a run, evenly spread over 0 (included) to 1 (excluded), the same at every look; 0 without an id."""
    return int.from_bytes(sha256(run_id.encode()).digest()[:6]) / 2**48 if run_id else 0.0
