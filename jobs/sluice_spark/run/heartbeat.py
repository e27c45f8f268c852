"""Reports to the ledger that a driver works, renews its lease, and reads the desired state of its stream."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from sluice.errors import LeaseLostError, LedgerError, StaleTokenError, UnknownRunError
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import beat
from sluice.supervision.held_lease import HeldLease
from sluice_spark.run.stop_request import StopReason, StopRequest

_log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
"""How often a driver reports, and how fast a request to stop reaches it. One small transaction: 500 streams make 250
a second, which PostgreSQL handles without effort."""

_WATCH_SECONDS = 0.5
_LAST_BEAT_SECONDS = 10.0
"""How long the end of a run waits for a heartbeat that is under way; one that hangs is left behind."""


class Heartbeat:
    """A thread that sends heartbeats while the run works, and a thread that watches the lease. A context manager.

    A run continues while the ledger does not answer: the tables keep every batch once without it. It stops in time,
    because its lease runs out meanwhile (`sluice.supervision.held_lease`). A second thread watches that, because the
    heartbeat may hang in a query to the ledger. A run stops at once when the ledger answers and does not know it: then
    an older copy of the ledger has replaced it, which may give the stream to another run at any moment.

    Parameters
    ----------
    lease: is updated with every renewal; the delivery asks it before it publishes.
    """

    def __init__(self, ledger: Ledger, run_id: str, stop: StopRequest, *, lease: HeldLease) -> None:
        self._ledger = ledger
        self._run_id = run_id
        self._stop = stop
        self._lease = lease
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._keep_beating, name="heartbeat", daemon=True)
        self._watching = threading.Thread(target=self._watch_lease, name="lease-watch", daemon=True)

    def __enter__(self) -> Heartbeat:
        self._beating.start()
        self._watching.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watching.join()
        self._beating.join(_LAST_BEAT_SECONDS)

    @contextmanager
    def naming_a_lost_lease(self) -> Iterator[None]:
        """Turn a failure of the block into the loss of the lease when the ledger, asked once more, has taken that away.

        A run that stood still for a while fails by whatever its successor has removed or changed meanwhile, before its
        next heartbeat says why.

        Raises
        ------
        LeaseLostError: instead of any other error of the block.
        """
        try:
            yield
        except (LeaseLostError, StaleTokenError):
            raise
        except Exception:
            with suppress(LedgerError):  # the error of the block is the one to know of
                self._beat()
            if self._lease.is_lost:
                _log.exception("run %s failed after it had lost its lease", self._run_id)
                self._lease.require()
            raise

    def _keep_beating(self) -> None:
        is_silent = False
        while True:
            try:
                self._beat()
            except LedgerError as error:
                if not is_silent:
                    _log.warning("no heartbeat reaches the ledger: %s", error)
                is_silent = True
            except Exception:  # noqa: BLE001  # a thread that ended here would stop the run after two minutes
                if not is_silent:
                    _log.exception("a heartbeat failed; the next one follows")
                is_silent = True
            else:
                is_silent = False
            if self._ended.wait(BEAT_SECONDS):
                return

    def _beat(self) -> None:
        asked_at_seconds = self._lease.now_seconds()
        try:
            answer = beat(self._ledger, self._run_id)
        except UnknownRunError:
            self._lose("the ledger does not know this run: an older copy or another database has replaced it")
            return
        if not answer.holds_lease:
            self._lose("the ledger counts this run as ended, and another run may have the lease")
            return
        self._lease.renewed(asked_at_seconds=asked_at_seconds)
        if answer.desired_state is DesiredState.STOPPED:
            self._stop.make(StopReason.STOPPED)

    def _lose(self, because: str) -> None:
        if not self._lease.is_lost:
            _log.error("run %s has lost its lease: %s", self._run_id, because)
        self._lease.lost(because)

    def _watch_lease(self) -> None:
        while not self._ended.wait(_WATCH_SECONDS):
            if self._lease.is_to_stop:
                self._stop.make(StopReason.LEASE_LOST if self._lease.is_lost else StopReason.LEDGER_AWAY)
                return
