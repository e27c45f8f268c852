"""What keeps the streams that write a table from being left as they are while rows are erased from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations
from sluice.erasure.erasure_plan import backfill_refusal
from sluice.errors import SluiceError, UsageError
from sluice.ledger.backfill_attempts import running_attempts
from sluice.ledger.connection import Ledger
from sluice.ledger.held_batches import find_held
from sluice.ledger.leases import LEASE_SECONDS
from sluice.ledger.next_generation import require_at_rest
from sluice.ledger.refreshes import OPEN_STATES, newest_refresh
from sluice.ledger.runs import live_streams
from sluice.ledger.vacated_runs import find_left_driver
from sluice.maintenance.direct_writers import observe_direct_writers
from sluice.operations import Refusal, RefusalReason
from sluice.settings import ObjectStoreSettings


def require_no_driver(ledger: Ledger, stream: str) -> None:
    """Require that no run of a stream lives, that none is to begin, and that no driver has outlived the end of its run.

    Raises
    ------
    RunAlreadyLiveError, UsageError: when one does, or is to.
    """
    require_at_rest(ledger, stream)
    if (left := find_left_driver(ledger, stream)) is not None:
        raise UsageError(
            f"The driver of run {left.run_id} of {stream} may still write, although that run has ended in the ledger "
            f"({left.reason}).",
            next_step=f"End its process, or wait until its lease is over, {LEASE_SECONDS:.0f} s after its newest "
            "heartbeat.",
        )


def refusals_of_writers(
    ledger: Ledger,
    declarations: Declarations,
    streams: Collection[str],
    table: Table,
    *,
    object_store: ObjectStoreSettings,
) -> Iterator[Refusal]:
    """Why rows cannot be erased from a table now.

    Parameters
    ----------
    streams: that write it.
    """
    running = {one.key.stream for one in running_attempts(ledger)}
    for stream in streams:
        try:
            require_no_driver(ledger, stream)
        except SluiceError as error:
            yield Refusal(reason=RefusalReason.NOT_AT_REST, sentence=error.message, next_step=error.next_step)
        if find_held(ledger, stream) is not None:
            yield Refusal(
                reason=RefusalReason.BATCH_HELD,
                sentence=f"A staged batch of {stream} waits for a person, and may hold such rows.",
                next_step=f"Decide about it first: `sluice batch list {stream}`.",
            )
        if stream in running:
            yield backfill_refusal(stream)
        if is_refreshed(ledger, stream):
            yield Refusal(
                reason=RefusalReason.NOT_AT_REST,
                sentence=f"A refresh of {stream} is under way.",
                next_step=f"Let it end first: `sluice stream refresh {stream}`, or `--abandon` to give it up.",
            )
    name, live = ".".join(table.name()), live_streams(ledger)
    for sink in observe_direct_writers(ledger, declarations, table, name, live_streams=live, object_store=object_store):
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=f"{sink.stream} may write a batch again, and knows it by a snapshot that would go.",
            next_step=f"Start it, let it commit a batch, and stop it: `sluice stream start {sink.stream}`.",
        )


def is_refreshed(ledger: Ledger, stream: str) -> bool:
    """Whether a refresh of a stream is open."""
    newest = newest_refresh(ledger, stream)
    return newest is not None and newest.state in OPEN_STATES
