"""A driver's own view of its lease: may it publish, may it go on? It never asks the ledger.

    heartbeat thread ──► renewed(asked_at_seconds=…) after each renewal, lost() when the ledger says so
    delivery         ──► require() right before each publication
    heartbeat thread ──► is_to_stop: the ledger has been away for so long that a graceful stop must begin

The lease as the driver counts it began when the renewal was *asked for*, which is before the database granted it, so it
always ends before the ledger's own. Within those `LEASE_SECONDS`:

| since the newest renewal           | what the driver does                                                  |
|------------------------------------|-----------------------------------------------------------------------|
| up to `BEARS_SECONDS`              | goes on; an absent ledger is no reason to stop a healthy stream        |
| from then on                       | stops gracefully: the batch that runs may still end and be published   |
| from `PUBLISHES_SECONDS` on        | publishes nothing more                                                 |
| `LEASE_SECONDS`                    | the lease may be given away                                            |

That a publication which began in time ends late, or that the process is suspended within one, is what the fencing token
is for: the table's mark refuses a token that is lower than the newest.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from sluice.errors import LeaseLostError
from sluice.ledger.records.lease import LEASE_SECONDS

BEARS_SECONDS = 120.0
"""How long a driver bears an absent ledger: twice the minute that a database may need to fail over or restart."""

PUBLISHES_SECONDS = 230.0
"""How long after its newest renewal a driver may begin to publish: a graceful stop takes up to 110 s after
`BEARS_SECONDS`, and the commit of a batch gets the rest until `LEASE_SECONDS`."""


def seconds_since_boot() -> float:
    """A clock that nobody sets and that goes on while the machine sleeps, which `time.monotonic` does not on Linux."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)


class HeldLease:
    """The lease that a run holds, as its driver knows it. Safe to use from many threads.

    Parameters
    ----------
    stream: whose lease it is.
    token: the run's fencing token (`RunObservation.token`); every publication carries it.
    bears_seconds, publishes_seconds: since the newest renewal; see the table above.
    clock: tells seconds that only rise.
    """

    def __init__(
        self,
        *,
        stream: str,
        token: int,
        bears_seconds: float = BEARS_SECONDS,
        publishes_seconds: float = PUBLISHES_SECONDS,
        clock: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self.stream = stream
        self.token = token
        self._bears_seconds = bears_seconds
        self._publishes_seconds = publishes_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._began_seconds = clock()
        self._renewed_seconds: float | None = None
        self._is_lost = False

    def now_seconds(self) -> float:
        """The lease's own clock: what `renewed` wants to know of the moment before a renewal was asked for."""
        return self._clock()

    def renewed(self, *, asked_at_seconds: float) -> None:
        """The ledger has renewed the lease. One that was lost stays lost.

        Parameters
        ----------
        asked_at_seconds: when the renewal was asked for, by `now_seconds`.
        """
        with self._lock:
            self._renewed_seconds = max(asked_at_seconds, self._renewed_seconds or asked_at_seconds)

    def lost(self) -> None:
        """The ledger has said that the run does not hold its lease any more."""
        with self._lock:
            self._is_lost = True

    @property
    def is_lost(self) -> bool:
        """Whether the ledger has taken the lease away."""
        return self._is_lost

    @property
    def is_to_stop(self) -> bool:
        """Whether the run must begin to stop: its lease is lost, or nobody has renewed it for too long."""
        with self._lock:
            since = self._clock() - (self._began_seconds if self._renewed_seconds is None else self._renewed_seconds)
            return self._is_lost or since >= self._bears_seconds

    def require(self) -> None:
        """Say that something is about to be published under this lease. Costs nothing: no question goes anywhere.

        Raises
        ------
        LeaseLostError: when the lease was taken away, was never renewed, or its newest renewal is too old.
        """
        with self._lock:
            renewed, is_lost = self._renewed_seconds, self._is_lost
        if is_lost:
            raise LeaseLostError(f"Stream {self.stream}, token {self.token}: another run has the lease.")
        if renewed is None:
            raise LeaseLostError(f"Stream {self.stream}, token {self.token}: the ledger has not confirmed the lease.")
        since = self._clock() - renewed
        if since >= self._publishes_seconds:
            raise LeaseLostError(
                f"Stream {self.stream}, token {self.token}: the lease was renewed {since:.0f} s ago and may be given "
                f"away after {LEASE_SECONDS:.0f} s, so nothing is published after {self._publishes_seconds:.0f} s.",
                next_step="See that the ledger's PostgreSQL answers; the stream then starts again by itself.",
            )
