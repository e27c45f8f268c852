"""Observes the streams that read or write a table: from where each would continue, and which old rows they need.

The earliest position of a reader is the end of its newest recorded batch when the checkpoint has committed that batch,
and its start otherwise: a driver that died between delivering a batch and committing it runs the batch again. A reader
without a recorded batch continues from the first offset in its checkpoint.

Iceberg's sink recognises a repeated batch by walking from main to the newest snapshot of its own. When expiry has
removed it, a batch that was planned and not committed in the checkpoint could be written twice, so the stream refuses
to start. A stream that runs, or whose checkpoint has such a batch, therefore needs that snapshot and all that follow.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta

from pyiceberg.table import Table

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import log_files
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.maintenance_declaration import RetentionDeclaration
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError
from sluice.ledger.batches import BatchObservation, newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation
from sluice.ledger.refreshes import OPEN_STATES, newest_refresh
from sluice.ledger.runs import live_run
from sluice.maintenance import row_retention
from sluice.maintenance.old_files import find_old_files
from sluice.maintenance.pin_plan import Knowledge, ReaderObservation, WriterObservation
from sluice.maintenance.row_retention import NO_RETENTION, OldFiles, RowRetention, read_up_to, stands_at
from sluice.publication.direct_history import direct_batches
from sluice.settings import ObjectStoreSettings
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, first_offsets, history_of, stream_offset_of
from sluice.stored_keys import is_shadow_name
from sluice.tables.table_observation import TableObservation, removed_from


def observe_readers(
    ledger: Ledger,
    declarations: Declarations,
    table: str,
    *,
    listed: Collection[int],
    object_store: ObjectStoreSettings,
) -> tuple[ReaderObservation, ...]:
    """Observe every declared input that reads a table's appended rows.

    Parameters
    ----------
    listed: the snapshots that the table lists; they distinguish its offsets from those of other tables.

    Raises
    ------
    LedgerError: when the ledger cannot be reached. A checkpoint that cannot be reached makes its reader UNKNOWN.
    """
    return tuple(
        reader
        for loaded in declarations.streams.values()
        for reader in observe_stream_inputs(ledger, loaded.declaration, table, listed=listed, object_store=object_store)
    )


def observe_stream_inputs(
    ledger: Ledger,
    stream: StreamDeclaration,
    table: str,
    *,
    listed: Collection[int],
    object_store: ObjectStoreSettings,
) -> tuple[ReaderObservation, ...]:
    """Observe the inputs of one stream that read a table's appended rows, as `observe_readers` does."""
    return tuple(
        _observe_reader(ledger, stream, name, listed, object_store)
        for name, source in streamed_tables(stream)
        if source.table == table
    )


def streamed_tables(stream: StreamDeclaration) -> Iterator[tuple[str, IcebergSource]]:
    """The inputs of a stream that read the appended rows of an Iceberg table."""
    for name, declared in stream.inputs.items():
        if declared.is_stream and isinstance(source := declared.declared_source.source, IcebergSource):
            yield name, source


def _observe_reader(
    ledger: Ledger,
    stream: StreamDeclaration,
    name: str,
    listed: Collection[int],
    object_store: ObjectStoreSettings,
) -> ReaderObservation:
    generation = find_generation(ledger, stream.stream)
    if generation is None:
        return ReaderObservation(stream=stream.stream, input=name, knowledge=Knowledge.NOT_STARTED)
    batch = newest_batch(ledger, stream.stream)
    if batch is not None and batch.key.generation != generation.generation:
        batch = None
    try:
        checkpoint = open_checkpoint_files(generation.checkpoint, object_store)
        started = batch is not None or bool(checkpoint.list_files("offsets")) or bool(checkpoint.list_files("sources"))
        first = _first_offset(checkpoint, stream, listed)
        is_committed = batch is not None and checkpoint.read_text(f"commits/{batch.key.batch}") is not None
    except CheckpointError as error:
        return _unknown(stream, name, error.message)
    if not started:
        return ReaderObservation(stream=stream.stream, input=name, knowledge=Knowledge.NOT_STARTED)
    recorded = _recorded_offset(batch, name, is_committed=is_committed)
    offset = first if recorded is None else recorded
    if offset is None:
        return _unknown(stream, name, f"neither the ledger nor the checkpoint {generation.checkpoint} has its offset")
    return ReaderObservation(
        stream=stream.stream, input=name, knowledge=Knowledge.KNOWN, position=offset.snapshot_id, offset=offset
    )


def _recorded_offset(batch: BatchObservation | None, name: str, *, is_committed: bool) -> StreamOffset | None:
    """Where the newest recorded batch ends once the checkpoint has committed it, and where it starts before that.

    Unset for an uncommitted first batch, which starts at the first offset.
    """
    if batch is None:
        return None
    return stream_offset_of((batch.end_offsets if is_committed else batch.start_offsets).get(name))


def _first_offset(
    checkpoint: CheckpointFiles, stream: StreamDeclaration, listed: Collection[int]
) -> StreamOffset | None:
    """The first offset of the input; unset when several inputs may have it.

    With one Iceberg input all are of it: a query may read it at several places, of which the earliest counts. Among
    several inputs, those of this table have a snapshot that it lists.
    """
    firsts = tuple(first_offsets(checkpoint).values())
    if len(list(streamed_tables(stream))) == 1:
        return earliest_offset(firsts, listed)
    own = [offset for offset in firsts if offset.snapshot_id in listed]
    if own:
        return min(own, key=lambda offset: list(listed).index(offset.snapshot_id))
    return firsts[0] if firsts and all(offset.snapshot_id == BEGINNING for offset in firsts) else None


def earliest_offset(offsets: Iterable[StreamOffset], listed: Collection[int]) -> StreamOffset | None:
    """The earliest of some offsets in one table; none of none. What is before all that it lists comes first.

    Parameters
    ----------
    listed: the snapshots that the table lists, oldest first.
    """
    places = {snapshot_id: place for place, snapshot_id in enumerate(listed)}
    return min(offsets, key=lambda one: (places.get(one.snapshot_id, -1), one.position), default=None)


def _unknown(stream: StreamDeclaration, name: str, problem: str) -> ReaderObservation:
    return ReaderObservation(stream=stream.stream, input=name, knowledge=Knowledge.UNKNOWN, problem=problem)


def observe_direct_writers(
    ledger: Ledger,
    declarations: Declarations,
    table: Table,
    name: str,
    *,
    live_streams: Collection[str],
    object_store: ObjectStoreSettings,
) -> tuple[WriterObservation, ...]:
    """Observe every declared output that Iceberg's own sink writes into a table, and that may repeat a batch.

    Parameters
    ----------
    table, name: the table, freshly loaded, and its name. live_streams: the streams that have a live run.

    Raises
    ------
    LedgerError: when the ledger cannot be reached. A checkpoint that cannot be read counts as unfinished.
    """
    streams = [loaded.declaration for loaded in declarations.streams.values()]
    return tuple(
        writer
        for stream in streams
        for writer in newest_written(stream, table, name)
        if stream.stream in live_streams or _has_unfinished_batch(ledger, stream, object_store)
    )


def newest_written(stream: StreamDeclaration, table: Table, name: str) -> Iterator[WriterObservation]:
    """The newest snapshot in main's history of each output of a stream that its sink writes into this table."""
    for output, declared in stream.outputs.items():
        if declared.iceberg is None or not declared.iceberg.is_direct or declared.iceberg.table != name:
            continue
        newest = next(direct_batches(table, stream=stream.stream, output=output), None)
        if newest is not None:
            yield WriterObservation(stream=stream.stream, output=output, position=newest.snapshot_id)


def _has_unfinished_batch(ledger: Ledger, stream: StreamDeclaration, object_store: ObjectStoreSettings) -> bool:
    generation = find_generation(ledger, stream.stream)
    if generation is None:
        return False
    try:
        checkpoint = open_checkpoint_files(generation.checkpoint, object_store)
        planned = log_files(checkpoint.list_files("offsets"), "offsets")
        committed = log_files(checkpoint.list_files("commits"), "commits")
    except CheckpointError:  # unknown, so the batch may be there
        return True
    return max(planned, default=-1) > max(committed, default=-1)


def observe_retention(
    ledger: Ledger,
    declarations: Declarations,
    table: Table,
    *,
    policy: RetentionDeclaration | None,
    seen: TableObservation,
    readers: Sequence[ReaderObservation],
    kept_streams: Collection[str],
    unreadable: Collection[str],
    now: datetime,
    agreed: RetentionDeclaration | None = None,
) -> RowRetention:
    """Observe a table that declares a retention of rows; of another one nothing is read.

    Parameters
    ----------
    table: freshly loaded, after its readers were observed. seen: the same, observed.
    kept_streams: streams whose declaration cannot be read now, or that run, and the shadows of refreshes.
    unreadable: those of them whose declaration cannot be read now.
    now: by the clock of the ledger. Where that of this process is behind it, that one counts.
    agreed: the retention to which a person agrees now; unset for none.

    Raises
    ------
    LedgerError, LakehouseError: when the ledger or the table cannot be read.
    """
    if policy is None or policy.column is None or policy.older_than is None:
        return NO_RETENTION
    observed = {(reader.stream, reader.input) for reader in readers}
    outdated = outdated_runs(ledger, declarations, {stream for stream, _ in observed} | set(kept_streams))
    respected = set(kept_streams) - (set(declarations.streams) - outdated)
    others = tuple(stands_at(seen.references, respected, besides=observed))
    pinned = {stream for stream, _ in others}
    bound = read_up_to(
        readers,
        history=tuple(history_of(table)),
        numbers={one.snapshot_id: one.sequence_number or 0 for one in table.snapshots()},
        kept=[reference.snapshot_id for _, reference in others],
    )
    unknown = sorted(one for one in pinned - outdated if not is_shadow_name(one))
    waits = (
        *_refreshes(ledger, readers),
        *map(_of_an_earlier_one, sorted(outdated & (pinned | {stream for stream, _ in observed}))),
        *map(_of_a_broken_file, sorted(set(unreadable) - pinned)),
    )
    return RowRetention(
        old=_old_files(table, policy.column, policy.older_than, bound, now=now),
        stopping=(
            *_stopping(declarations, seen.table),
            *(_of_an_unknown_one(stream, is_declared=stream in unreadable) for stream in unknown),
        ),
        waits_for="; ".join(waits),
        format_version=table.metadata.format_version,
        rows=seen.rows,
        earlier=removed_from(table),
        agreed=agreed,
    )


def _old_files(table: Table, column: str, older_than: timedelta, bound: int | None, *, now: datetime) -> OldFiles:
    now = min(now.astimezone(UTC), datetime.now(UTC))  # no row goes because one clock is ahead
    arrived = now - row_retention.ARRIVAL_GRACE
    return find_old_files(table, column=column, before=now - older_than, read_up_to=bound, arrived_before=arrived).seen


def outdated_runs(ledger: Ledger, declarations: Declarations, streams: Collection[str]) -> frozenset[str]:
    """Those of some streams with a run that carries out another declaration than the one that is loaded."""
    with ledger.transaction() as connection:
        runs = {one: live_run(connection, one) for one in sorted(streams) if one in declarations.streams}
    return frozenset(
        name for name, run in runs.items() if run and run.declaration_digest != declarations.streams[name].digest
    )


def _of_an_earlier_one(stream: str) -> str:
    return (
        f"the run of {stream} carries out an earlier declaration, by which it may stop where rows are deleted, or read "
        f"from elsewhere: `sluice stream restart {stream}`"
    )


def _of_a_broken_file(stream: str) -> str:
    return (
        f"the declaration of {stream} cannot be read, and {stream} may read this table from its beginning: repair it, "
        "`sluice validate` shows what is wrong"
    )


def _of_an_unknown_one(stream: str, *, is_declared: bool) -> str:
    way_out = "repair it, `sluice validate` shows what is wrong" if is_declared else f"`sluice stream stop {stream}`"
    return f"{stream}, whose declaration is not known, would stop where rows are deleted, if it says so: {way_out}"


def _stopping(declarations: Declarations, table: str) -> Iterator[str]:
    for loaded in declarations.streams.values():
        for name, source in streamed_tables(loaded.declaration):
            if source.table == table and source.on_delete == "fail":
                yield f"{loaded.name} (input {name}) would stop where rows are deleted: declare `on_delete: skip` there"


def _refreshes(ledger: Ledger, readers: Sequence[ReaderObservation]) -> Iterator[str]:
    """The refreshes that read the table again, of streams that read it."""
    for stream in dict.fromkeys(reader.stream for reader in readers):
        newest = newest_refresh(ledger, stream)
        if newest is not None and newest.state in OPEN_STATES:
            yield f"refresh {newest.number} of {stream} reads the table"
