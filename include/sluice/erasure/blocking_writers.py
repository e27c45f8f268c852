"""What keeps the streams that write a table from being left as they are while rows are erased from it."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.erasure.erasure_plan import backfill_refusal
from sluice.errors import DeliveryError, SluiceError, UnpublishableError, UsageError
from sluice.ledger.backfill_attempts import running_attempts
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation
from sluice.ledger.held_batches import find_held
from sluice.ledger.next_generation import require_at_rest
from sluice.ledger.refreshes import OPEN_STATES, newest_refresh
from sluice.ledger.run_leases import LEASE_SECONDS
from sluice.ledger.runs import live_streams
from sluice.maintenance.table_readers import observe_direct_writers
from sluice.operations import Refusal, RefusalReason
from sluice.publication.command_runs import find_left_driver
from sluice.publication.direct_history import is_rolled_back, recorded_snapshot
from sluice.publication.marks import find_lost_mark, read_target_state
from sluice.publication.staged_batch import staged_outputs
from sluice.publication.start_check import StreamTables
from sluice.publication.undeclared_outputs import load_output_tables
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
        yield from _refusals_of_marks(declarations.streams[stream].declaration, table)
        yield from _refusals_of_sinks(ledger, declarations.streams[stream].declaration, table)
    name, live = ".".join(table.name()), live_streams(ledger)
    for sink in observe_direct_writers(ledger, declarations, table, name, live_streams=live, object_store=object_store):
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=f"{sink.stream} may write a batch again, and knows it by a snapshot that would go.",
            next_step=f"Start it, let it commit a batch, and stop it: `sluice stream start {sink.stream}`.",
        )


def _refusals_of_marks(stream: StreamDeclaration, table: Table) -> Iterator[Refusal]:
    """What only the history of a table shows of how far a stream is published in it: nothing would show it any more,
    and a start would leave batches out, or publish one again."""
    name = ".".join(table.name())
    for output in staged_outputs(stream):
        if output.target != name:
            continue
        try:
            read_target_state(table, output)
            seen = StreamTables(stream=stream.stream, outputs=(load_output_tables(table.catalog, output),))
            is_lost = bool(seen.lost) and find_lost_mark(table, output) is not None
        except UnpublishableError:  # for the version of its format
            continue
        except DeliveryError as error:
            yield Refusal(reason=RefusalReason.OTHER_REMEDY, sentence=error.message, next_step=error.next_step)
            continue
        if is_lost:
            yield Refusal(
                reason=RefusalReason.OTHER_REMEDY,
                sentence=f"The mark of {output} was removed from {name}: only its history shows how far that is.",
                next_step=f"Start {stream.stream}, which writes it back, and stop it.",
            )


def _refusals_of_sinks(ledger: Ledger, stream: StreamDeclaration, table: Table) -> Iterator[Refusal]:
    """Of batches that Iceberg's own sink has written: there is no mark for them."""
    name, generation = ".".join(table.name()), find_generation(ledger, stream.stream)
    for output, declared in stream.outputs.items():
        if generation is None or declared.iceberg is None or not declared.iceberg.is_direct:
            continue
        recorded = recorded_snapshot(ledger, stream.stream, output, query_id=generation.query_id)
        if declared.iceberg.table == name and recorded is not None and is_rolled_back(table, recorded):
            yield Refusal(
                reason=RefusalReason.OTHER_REMEDY,
                sentence=f"{name} was rolled back: main does not lead to the newest batch of {stream.stream} any more.",
                next_step="Set main back to its snapshot if that was not meant. Otherwise "
                f"`sluice stream reset {stream.stream} --dry-run` shows what reading the inputs again repeats.",
            )


def is_refreshed(ledger: Ledger, stream: str) -> bool:
    """Whether a refresh of a stream is open."""
    newest = newest_refresh(ledger, stream)
    return newest is not None and newest.state in OPEN_STATES
