"""A driver's own view of its lease: whether it may publish, and whether it must stop. It never queries the ledger.

    heartbeat thread ──► renewed(asked_at_seconds=…) after each renewal
                         lost(…) when the ledger answers that the run has lost it, or that it knows no such run
    delivery         ──► require() right before each publication
    heartbeat thread ──► is_to_stop: the ledger did not answer for so long that a graceful stop must begin

The lease as the driver counts it began when the renewal was *asked for*, which is before the database granted it, so it
always ends before the ledger's own. Within those `LEASE_SECONDS`:

| since the newest renewal           | what the driver does                                                  |
|------------------------------------|-----------------------------------------------------------------------|
| up to `OUTAGE_GRACE_SECONDS`       | continues; an outage of the ledger does not stop a healthy stream        |
| after that                         | stops gracefully: the current batch may still end and be published     |
| after `PUBLISH_DEADLINE_SECONDS`   | publishes nothing more                                                 |
| after `LEASE_SECONDS`              | another run may get the lease                                          |

A publication may begin in time and end late, or the process may be suspended within one. The fencing token covers that:
the table's mark rejects a token that is lower than the newest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sluice.errors import LeaseLostError
from sluice.ledger.run_leases import LEASE_SECONDS

OUTAGE_GRACE_SECONDS = 120.0
"""How long a driver continues without the ledger: twice the minute that a database may need to fail over or restart."""

PUBLISH_DEADLINE_SECONDS = 230.0
"""How long after its newest renewal a driver may begin to publish: a graceful stop takes up to 110 s after
`OUTAGE_GRACE_SECONDS`, and the commit of a batch gets the rest until `LEASE_SECONDS`."""


LONGEST_STEP_SECONDS = 5.0
"""How much of the time between two questions whether to stop counts: the driver asks each half a second."""


def seconds_since_boot() -> float:
    """A clock that is never set and runs while the machine sleeps, which `time.monotonic` does not on Linux."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class HeldLease:
    """The lease of a run, as its driver knows it. Thread-safe.

    Parameters
    ----------
    stream: whose lease it is.
    token: the run's fencing token (`RunObservation.token`); every publication carries it.
    outage_grace_seconds, publish_deadline_seconds: since the newest renewal; see the table above.
    clock: returns seconds that only rise.
    """

    def __init__(
        self,
        *,
        stream: str,
        token: int,
        outage_grace_seconds: float = OUTAGE_GRACE_SECONDS,
        publish_deadline_seconds: float = PUBLISH_DEADLINE_SECONDS,
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self.stream = stream
        self.token = token
        self._outage_grace_seconds = outage_grace_seconds
        self._publish_deadline_seconds = publish_deadline_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._watched_seconds = clock()
        self._unrenewed_seconds = 0.0
        self._renewed_seconds: float | None = None
        self._lost_because: str | None = None

    def now_seconds(self) -> float:
        """The lease's own clock, for the argument of `renewed`."""
        return self._clock()

    def renewed(self, *, asked_at_seconds: float) -> None:
        """Record that the ledger has renewed the lease. A lost lease stays lost.

        Parameters
        ----------
        asked_at_seconds: when the renewal was requested, by `now_seconds`.
        """
        with self._lock:
            self._renewed_seconds = max(asked_at_seconds, self._renewed_seconds or asked_at_seconds)
            now = self._clock()
            self._unrenewed_seconds, self._watched_seconds = min(now - asked_at_seconds, LONGEST_STEP_SECONDS), now

    def lost(self, because: str) -> None:
        """Record that the run does not hold its lease any more, as the ledger reported. The first reason stays.

        Parameters
        ----------
        because: why, as a sentence without its full stop.
        """
        with self._lock:
            self._lost_because = self._lost_because or because

    @property
    def is_lost(self) -> bool:
        """Whether the ledger has taken the lease away."""
        return self._lost_because is not None

    @property
    def is_to_stop(self) -> bool:
        """Whether the run must begin to stop: its lease is lost, or was not renewed for too long.

        Only time in which this process was running counts, as far as it asks often: a host that was asleep, or a
        process that was frozen, asks the ledger again before it gives up. `require` counts all of the time.
        """
        with self._lock:
            now = self._clock()
            self._unrenewed_seconds += min(now - self._watched_seconds, LONGEST_STEP_SECONDS)
            self._watched_seconds = now
            return self.is_lost or self._unrenewed_seconds >= self._outage_grace_seconds

    def require(self) -> None:
        """Require that this lease allows a publication now. It reads memory only.

        Raises
        ------
        LeaseLostError: when the lease was taken away, was never renewed, or its newest renewal is too old.
        """
        with self._lock:
            renewed, lost_because = self._renewed_seconds, self._lost_because
        if lost_because is not None:
            raise LeaseLostError(f"Stream {self.stream}, token {self.token}: {lost_because}.")
        if renewed is None:
            raise LeaseLostError(f"Stream {self.stream}, token {self.token}: the ledger has not confirmed the lease.")
        since = self._clock() - renewed
        if since >= self._publish_deadline_seconds:
            raise LeaseLostError(
                f"Stream {self.stream}, token {self.token}: the lease was renewed {since:.0f} s ago and may be given "
                f"away after {LEASE_SECONDS:.0f} s, so nothing is published after "
                f"{self._publish_deadline_seconds:.0f} s.",
                next_step="Check that the ledger's PostgreSQL answers; the stream then starts again by itself.",
            )
