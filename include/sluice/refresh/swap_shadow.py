"""The swap of a refresh: a stream stops, and the content and generation of its shadow become its own.

Before the swap, pins are set where the stream reads, so that it continues from there when the refresh is taken back.
They have the name of the shadow. Maintenance respects them as long as that is possible, and removes them afterwards
(`sluice.ledger.refreshes.kept_shadows`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from sluice.backfill.replay_lane import ReplayLane
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import RunAlreadyLiveError, UnpublishableError, UsageError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.refreshes import OPEN_STATES, RefreshObservation, begin_swap, newest_refresh, record_swap
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import ask_to_end, find_run, newest_run
from sluice.maintenance.pin_plan import plan_own_pins
from sluice.maintenance.position_pins import commit_pins
from sluice.maintenance.table_readers import observe_stream_inputs, streamed_tables
from sluice.operations import require_no_fewer
from sluice.processes.deadline import Deadline, wait_until
from sluice.publication.chain import MarkPosition
from sluice.publication.command_runs import CommandMode, is_vacated, run_of_command
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.publication.mark_moves import plan_output, take_over
from sluice.publication.marks import TargetState, load_target_state
from sluice.publication.publish_batches import live_files
from sluice.publication.staged_batch import StagedOutput
from sluice.refresh.observe_refresh import delete_files_of, rows_of
from sluice.refresh.settle_refresh import content_of_shadow, exchange_all
from sluice.refresh.shadow_stream import OUTPUTS, Exchanged, exchanged_outputs
from sluice.settings import ObjectStoreSettings
from sluice.sources.iceberg_positions import history_of
from sluice.tables.declared_tables import require_table
from sluice.tables.table_observation import removed_from

STOPPED_WITHIN_SECONDS = 300.0
"""How long a driver may take to end: twenty seconds for a pause between two batches, ninety for a batch, and once more
for a driver that another supervisor has started in between."""

_POLL_SECONDS = 0.05
"""A supervisor that sees the end of the run starts the next one within seconds; the place is taken before that."""


def keep_positions(
    catalog: Catalog,
    ledger: Ledger,
    stream: LoadedStream,
    refresh: RefreshObservation,
    *,
    object_store: ObjectStoreSettings,
) -> None:
    """Pin the positions of a stream in the tables that it reads, under the name of its shadow.

    Raises
    ------
    LedgerError, LakehouseError: when the positions cannot be read or pinned; nothing is swapped then.
    """
    for name in dict.fromkeys(source.table for _, source in streamed_tables(stream.declaration)):
        table = require_table(catalog, name)
        listed = tuple(snapshot.snapshot_id for snapshot in table.snapshots())
        readers = observe_stream_inputs(ledger, stream.declaration, name, listed=listed, object_store=object_store)
        refs = table.refs().items()
        pins = plan_own_pins(
            main_line=tuple(step.snapshot_id for step in history_of(table)),
            tags={tag: ref.snapshot_id for tag, ref in refs if ref.snapshot_ref_type is SnapshotRefType.TAG},
            readers=[replace(reader, stream=refresh.shadow) for reader in readers],
            writers=(),
        )
        commit_pins(table, to_set=pins, properties={})


def swap_shadow(
    catalog: Catalog,
    ledger: Ledger,
    stream: LoadedStream,
    refresh: RefreshObservation,
    *,
    token: int,
    allows_fewer: bool,
    reached: Reached,
) -> RefreshObservation:
    """Exchange the content of the tables for that of the shadow. The stream is stopped, and the caller holds its lease.

    Parameters
    ----------
    token: of the run that holds the lease. The mark gets it first, so that no older run publishes any more.
    allows_fewer: whether the new content may have fewer rows than the table.

    Raises
    ------
    UnpublishableError: when the shadow has read nothing, or staged batches of the stream wait to be published; when
        fewer rows would come than go, and that is not allowed; when the ledger is older than the table; when an input
        has removed old rows since the refresh began.
    UsageError: when the refresh was abandoned meanwhile, or the stream was reset.
    DeliveryError, LakehouseError: as `exchange_all` raises them.
    """
    exchanged = exchanged_outputs(stream.declaration, refresh)
    output, built = exchanged[0].output, exchanged[0].built
    _refuse_ended(ledger, refresh)
    _refuse_shortened(catalog, stream)
    shadow = load_target_state(catalog, built)
    end = end_of_shadow(shadow, built)
    for one in exchanged:
        take_over(catalog, one.output, token=token)
    _close_replays(catalog, ledger, exchanged)
    target = load_target_state(catalog, output)
    before = target.position(output)
    _refuse_empty(shadow.table, target.table)
    for one in exchanged:
        _refuse_staged(catalog, one.output)
        _refuse_staged(catalog, one.built)
    refuse_older_ledger(before, output, refresh)
    if not allows_fewer:
        came, gone = (_rows_in(live_files(table)) for table in (shadow.table, target.table))
        require_no_fewer(came=came, gone=gone, what=output.target)
    previous = {
        "generation": before.generation,
        "batch": before.batch,
        "end_offsets_digest": before.end_offsets_digest,
        OUTPUTS: {one.output.output: one.output.target for one in exchanged},
    }
    opening = begin_swap(ledger, refresh.number, previous=previous)
    reached(CrashPoint.SWAPPING)
    assert opening.opens is not None  # noqa: S101  # `begin_swap` sets it
    mark = MarkPosition(
        generation=opening.opens, batch=end.batch, token=token, end_offsets_digest=end.end_offsets_digest
    )
    landed = exchange_all(catalog, exchanged, content_of_shadow(catalog, ledger, opening, mark), reached=reached)
    reached(CrashPoint.COMMITTED)
    rows = rows_of(shadow.table) or 0
    return record_swap(ledger, refresh.number, batch=end.batch, snapshot_ids=landed, rows=rows)


def _close_replays(catalog: Catalog, ledger: Ledger, exchanged: Sequence[Exchanged]) -> None:
    """A replay that died behind its commit is marked in the content that the refresh keeps, in which its rows are."""
    output, *quarantines = (one.output for one in exchanged)
    for quarantine in quarantines:
        lane = ReplayLane(catalog=catalog, output=output, quarantine=quarantine.target)
        lane.close(stream=output.stream, at=database_time(ledger))


def end_of_shadow(shadow: TargetState, output: StagedOutput) -> MarkPosition:
    """How far a shadow has read.

    Raises
    ------
    UnpublishableError: when it has read nothing, or has delete files: an exchange would bring their rows back.
    """
    end = shadow.position(output)
    if end.end_offsets_digest is None:
        raise UnpublishableError(f"{output.stream} has read nothing.", next_step="Repeat the command.")
    if delete_files_of(shadow.table):
        raise UnpublishableError(f"The shadow {output.target} has delete files, which cannot be exchanged.")
    return end


def _refuse_ended(ledger: Ledger, refresh: RefreshObservation) -> None:
    """A refresh that was given up meanwhile has no shadow any more; `begin_swap` decides it once more."""
    now = newest_refresh(ledger, refresh.stream)
    if now is None or now.number != refresh.number or now.state not in OPEN_STATES:
        state = "is not the newest" if now is None or now.number != refresh.number else f"is {now.state}"
        raise UsageError(f"Refresh {refresh.number} of {refresh.stream} {state}: it was ended meanwhile.")


def _refuse_shortened(catalog: Catalog, stream: LoadedStream) -> None:
    """No refresh begins with an input that lacks old rows. A removal that was planned before may come later, and
    nothing says whether the shadow has read what went."""
    for name, source in streamed_tables(stream.declaration):
        removed = removed_from(require_table(catalog, source.table)) if source.starting == "table" else None
        if removed is not None:
            raise UnpublishableError(
                f"Input {name} has changed since the refresh began: of {source.table}, {removed}.",
                next_step=f"Give the refresh up: `sluice stream refresh {stream.name} --abandon`.",
            )


def _refuse_empty(shadow: Table, target: Table) -> None:
    if rows_of(shadow) == 0 and rows_of(target) != 0:
        raise UnpublishableError(
            f"The new content of {'.'.join(target.name())} has no row, and the table has some: the inputs are empty, "
            "or the transformation lets nothing through.",
            next_step="Preview the stream (`sluice preview`). To empty the table, delete its rows.",
        )


def _rows_in(files: Iterable[DataFile]) -> int:
    """The rows of data files, as their entries count them; neither table has delete files."""
    return sum(file.record_count for file in files)


def refuse_older_ledger(at: MarkPosition, output: StagedOutput, refresh: RefreshObservation) -> None:
    """A ledger that was restored would open a generation that the table has already, and the swap would count as one
    that has landed.

    Parameters
    ----------
    at: the position of the mark.

    Raises
    ------
    UnpublishableError: when the mark is in a later generation than the stream, and this refresh has not opened it.
    """
    if at.generation > refresh.leaves and at.generation != refresh.opens:
        raise UnpublishableError(
            f"{output.target} shows generation {at.generation} of {output.stream}, and the ledger knows "
            f"{refresh.leaves}: it was restored, or the table is another deployment's.",
            next_step=f"Give the refresh up (`sluice stream refresh {output.stream} --abandon`), and start the stream: "
            "its start says what to do about the generation.",
        )


def _refuse_staged(catalog: Catalog, output: StagedOutput) -> None:
    """A batch that its checkpoint has committed and no table shows could not be read again after the way back."""
    if waiting := plan_output(catalog, output).ready:
        raise UnpublishableError(
            f"{len(waiting)} batches of {output.stream} are staged and not visible yet.",
            next_step=f"Let {output.stream} run until it has published them, and repeat the command. What they wait "
            f"for is in `sluice batch list {output.stream}`.",
        )


@contextmanager
def stopped_stream(ledger: Ledger, stream: str, *, requested_by: str, what: str) -> Iterator[RunObservation]:
    """End the live run of a stream after its batch, and hold its lease while the block runs. Its desired state stays,
    so that whoever supervises it starts it again afterwards, also when this process dies.

    Parameters
    ----------
    what: what the block does, for example `refresh 7`.

    Yields
    ------
    The run that holds the lease, with a higher token than every run before it.

    Raises
    ------
    RunAlreadyLiveError: when the live run does not end in time.
    """
    with ExitStack() as held:
        yield _take_place(ledger, stream, held, requested_by=requested_by, what=what)


def _take_place(ledger: Ledger, stream: str, held: ExitStack, *, requested_by: str, what: str) -> RunObservation:
    deadline = Deadline.after(STOPPED_WITHIN_SECONDS)
    while True:
        live = newest_run(ledger, stream)
        if live is not None and live.is_live:
            because = f"{what} takes its place"
            event = Event(
                name=stream,
                actor=Actor.person(requested_by),
                action=EventAction.END_RUN,
                reason="refresh",
                explanation=f"The run ends after its batch: {because}.",
                run_id=live.run_id,
            )
            ask_to_end(ledger, live.run_id, because=because, event=event)
            _await_end(ledger, live.run_id, deadline)
        try:
            run = run_of_command(ledger, stream, CommandMode.REFRESH, requested_by=requested_by, what=what)
            return held.enter_context(run)
        except RunAlreadyLiveError:
            if deadline.is_over():
                raise


def _await_end(ledger: Ledger, run_id: str, deadline: Deadline) -> None:
    wait_until(
        partial(find_run, ledger, run_id),
        lambda run: not run.is_live or is_vacated(run),
        seconds=max(0.0, deadline.at - time.monotonic()),
        poll_seconds=_POLL_SECONDS,
    )
