"""The limits of supervision: how long a stream is without a driver, and how often each class of failures is restarted.

How long until a dead driver is restarted:

| the driver                       | noticed after                                | its run is closed after        |
|----------------------------------|----------------------------------------------|--------------------------------|
| ended and recorded its end       | one poll of the task's trigger, 2 s          | it is closed already           |
| was killed, its parent saw it    | the same                                     | it is closed already           |
| is gone together with its parent | `HEARD_WITHIN`; the reconciler's next minute | `EXIT_RECORD_SECONDS`          |
| cannot be observed: host lost    | `LEASE_SECONDS` after its newest heartbeat   | `HEARD_AGAIN_SECONDS`          |
| lived in a replaced container    | at its recorded end; killed with it: the same| the same                       |
| is alive and silent              | the same                                     | those and `STOP_GRACE_SECONDS` |

The next start follows at once for most failures, and after a growing delay when failures repeat: the table is in
`sluice.supervision.restart_policy`. `LEASE_SECONDS` is in `sluice.ledger.run_leases`; the limits by which a driver
without its ledger stops by itself are in `sluice.supervision.held_lease`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256

from sluice.declarations.run_declaration import RestartDeclaration
from sluice.failure_reasons import FailureClass

LAUNCHED_WITHIN = timedelta(seconds=90)
"""From admission to a recorded process. The driver's parent tries for 30 seconds to record it, and no driver begins
without: a run older than this without a process has no driver, and closing it makes sure that none begins."""

STARTS_WITHIN = timedelta(seconds=15)
"""What the start of a driver takes of a core. A host begins at most as many starts in it as it has cores, when they are
restarts after failures: those of one stream are not delayed, those of all after a reboot are."""

LEAST_STARTS = 2
"""Starts that a host of one core may begin in that time."""

HEARD_WITHIN = timedelta(seconds=60)
"""How old a heartbeat may be. Drivers beat every two seconds; a long pause of a JVM on a full machine is shorter."""

AHEAD_AT_MOST = timedelta(seconds=5)
"""How far in the future a sign may be. One beyond was recorded before the database's clock was set back."""

STOPPED_WITHIN = timedelta(seconds=120)
"""From the request to the end of the driver, which finishes its batch first."""

LOOK_AGAIN_AFTER = timedelta(seconds=30)
"""How soon a stream is observed again when no event calls for it earlier."""

LEFT_TO_ITS_TASK = timedelta(seconds=60)
"""How long after a run's end, or after a request, the next start is left to the stream's own task. Then the reconciler
starts it; beside a paused DAG, which has no task, after a run's end at once."""

EXIT_RECORD_SECONDS = 10.0
"""How long the parent of a driver that is gone may take to record its exit, before the run is closed without one."""

HEARD_AGAIN_SECONDS = 10.0
"""How long a silent driver may take to report again before it loses its place: five heartbeats. After the database's
clock was set forward, or the database was away for long, every lease looks expired until the next heartbeat."""

STOP_GRACE_SECONDS = 20.0
"""Between SIGTERM and SIGKILL, for a driver that did not obey the request to stop."""

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
