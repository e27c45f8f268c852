"""Copies the checkpoint of a stream with state: on a schedule while its query runs, and when it stops in order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from threading import Event, Thread

from sluice.checkpoints.checkpoint_copies import copies_location, copy_checkpoint
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.errors import CheckpointError, LeaseLostError, LedgerError
from sluice.ledger.connection import Ledger, database_time
from sluice.settings import Settings
from sluice.supervision.held_lease import HeldLease
from sluice_spark.run.stop_request import StopRequest

COPIED_WITHIN_SECONDS = 60.0
"""How long after the request to stop a copy may take: the supervisor gives the whole stop 120 s and ends the driver
then, as one that did not obey. A run that ends by itself takes the time that it needs."""

_log = logging.getLogger(__name__)


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
