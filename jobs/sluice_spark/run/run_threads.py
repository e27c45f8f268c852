"""The threads beside the query of a run: they report to the ledger, pin what the stream reads, and copy its checkpoint.

The heartbeat reports that the driver works, renews its lease, and reads the desired state of its stream.

Maintenance pins the positions of readers once an hour. Until then a new stream, and a stream whose first batch takes
long, would be without protection. So the driver sets a first pin before the query starts, one every few minutes while
it runs, and the last one after it has ended. A pin that fails is logged and tried again at the next turn; the tables
then keep what the previous pin keeps, which is more.

The checkpoint of a stream with state is copied on a schedule while its query runs, and when it stops in order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from threading import Event, Thread
from typing import TYPE_CHECKING

from sluice.checkpoints.checkpoint_copies import copies_location, copy_checkpoint
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError, LeaseLostError, LedgerError, SluiceError, StaleTokenError, UnknownRunError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import beat
from sluice.maintenance.position_pins import pin_positions, pinned_tables
from sluice.settings import Settings
from sluice.supervision.held_lease import HeldLease
from sluice.tables.catalog import open_catalog
from sluice_spark.run.stop_request import StopReason, StopRequest

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

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
        self._ended = Event()
        self._beating = Thread(target=self._keep_beating, name="heartbeat", daemon=True)
        self._watching = Thread(target=self._watch_lease, name="lease-watch", daemon=True)

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


PIN_SECONDS = 300.0
"""How often the positions are pinned. A pin is a commit on a table that others write: 40 to 110 ms, and twelve metadata
files an hour for each reader. What a reader holds back too long is five minutes of snapshots."""

_LAST_PIN_SECONDS = 10.0
"""How long the end of a run waits for a pin that is under way; one that hangs is left behind."""


class Pinning:
    """Pins the positions of one stream while it runs. A context manager.

    Parameters
    ----------
    pin_seconds: how often.
    """

    def __init__(
        self, declaration: StreamDeclaration, settings: Settings, ledger: Ledger, *, pin_seconds: float = PIN_SECONDS
    ) -> None:
        self._declaration = declaration
        self._settings = settings
        self._ledger = ledger
        self._pin_seconds = pin_seconds
        self._ended = Event()
        self._thread = Thread(target=self._keep_pinning, name="pins", daemon=True)

    def __enter__(self) -> Pinning:
        if pinned_tables(self._declaration):
            self._pin()
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_LAST_PIN_SECONDS)
        if kind is None and pinned_tables(self._declaration):
            self._pin()  # the stream may be away for long; a position that is pinned is continued from

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._settings)

    def _keep_pinning(self) -> None:
        while not self._ended.wait(self._pin_seconds):
            self._pin()

    def _pin(self) -> None:
        try:
            pins = pin_positions(
                self._catalog, self._ledger, self._declaration, object_store=self._settings.object_store
            )
        except SluiceError as error:
            _log.warning("the positions of %s could not be pinned: %s", self._declaration.stream, error)
        except Exception:  # noqa: BLE001  # a pin protects from expiry; a defect in it must not end a stream that works
            _log.exception("the positions of %s could not be pinned", self._declaration.stream)
        else:
            for pin in pins:
                _log.info("pinned snapshot %d as %s", pin.snapshot_id, pin.tag)


COPIED_WITHIN_SECONDS = 60.0
"""How long after the request to stop a copy may take: the supervisor gives the whole stop 120 s and ends the driver
then, as one that did not obey. A run that ends by itself takes the time that it needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCopies:
    """The copies that one run makes of its checkpoint. One that fails is reported in the log; the run continues, and
    ends well all the same.

    checkpoint: the folder of the query. lease: the run's; without it another run may write the checkpoint.
    stop: what may have asked the run to stop.
    """

    ledger: Ledger
    settings: Settings
    checkpoint: str
    lease: HeldLease
    stop: StopRequest

    @contextmanager
    def made_every(self, period: timedelta | None) -> Iterator[None]:
        """Copy the checkpoint in a thread while the query of the block runs. period: unset: never."""
        if period is None:
            yield
            return
        ended = Event()
        copying = Thread(target=self._keep_copying, args=(period, ended), name="checkpoint-copies", daemon=True)
        copying.start()
        try:
            yield
        finally:
            ended.set()
            copying.join()

    def copy_at_stop(self) -> None:
        """Copy the checkpoint of a query that has stopped."""
        self._copy(self._require_time)

    def _keep_copying(self, period: timedelta, ended: Event) -> None:
        def require() -> None:
            self.lease.require()
            if ended.is_set():
                raise CheckpointError(
                    "The query has ended.", next_step="What is read so far is kept for the copy behind an orderly stop."
                )

        while not ended.wait(period.total_seconds()):
            try:
                self._copy(require)
            except Exception:  # noqa: BLE001  # a thread that ended here would make no copy for as long as the run lives
                _log.exception("a copy of the checkpoint %s failed; the next one follows", self.checkpoint)

    def _copy(self, require: Callable[[], None]) -> None:
        try:
            files = open_checkpoint_files(self.checkpoint, self.settings.object_store)
            store = open_checkpoint_files(copies_location(self.checkpoint), self.settings.object_store)
            copy = copy_checkpoint(
                files, store, now=database_time(self.ledger), token=self.lease.token, require=require
            )
        except (CheckpointError, LedgerError, LeaseLostError) as error:
            _log.warning("the copy of the checkpoint %s broke off: %s", self.checkpoint, error)
            return
        if copy is not None:
            _log.info("the copy %s of the checkpoint stands behind batch %d", copy.clock, copy.committed)

    def _require_time(self) -> None:
        self.lease.require()
        if self.stop.seconds_ago > COPIED_WITHIN_SECONDS:
            raise CheckpointError(
                f"The stop was asked for {COPIED_WITHIN_SECONDS:.0f} s ago, and the copy is not whole yet.",
                next_step="The copies from before are there; what is read so far is kept for the next one.",
            )
