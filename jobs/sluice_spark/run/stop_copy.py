"""Copies the checkpoint of a stream with state when its run has stopped in order."""

from __future__ import annotations

import logging

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


def copy_at_stop(ledger: Ledger, settings: Settings, checkpoint: str, *, lease: HeldLease, stop: StopRequest) -> None:
    """Copy a checkpoint. A copy that fails is reported in the log, and the run has ended well all the same.

    Parameters
    ----------
    checkpoint: the folder of the query, which has stopped.
    lease: the run's; without it another run may write the checkpoint.
    stop: what may have asked the run to stop.
    """

    def require() -> None:
        lease.require()
        if stop.seconds_ago > COPIED_WITHIN_SECONDS:
            raise CheckpointError(
                f"The stop was asked for {COPIED_WITHIN_SECONDS:.0f} s ago, and the copy is not whole yet.",
                next_step="The copies from before are there; what is read so far is kept for the next one.",
            )

    try:
        files = open_checkpoint_files(checkpoint, settings.object_store)
        store = open_checkpoint_files(copies_location(checkpoint), settings.object_store)
        copy = copy_checkpoint(files, store, now=database_time(ledger), require=require)
    except (CheckpointError, LedgerError, LeaseLostError) as error:
        _log.warning("the copy of the checkpoint %s broke off: %s", checkpoint, error)
        return
    if copy is not None:
        _log.info("the copy %s of the checkpoint stands behind batch %d", copy.clock, copy.committed)
