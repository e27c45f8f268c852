"""The swap of a refresh: the content of the shadow becomes that of the table, and its generation that of the stream."""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UnpublishableError, UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.refreshes import OPEN_STATES, RefreshObservation, begin_swap, newest_refresh, record_swap
from sluice.publication.chain import MarkPosition
from sluice.publication.checked_commit import HeadTag
from sluice.publication.file_preparation import fit_files
from sluice.publication.mark_moves import plan_output, take_over
from sluice.publication.marks import TargetState, load_target_state
from sluice.publication.publish_batches import live_files
from sluice.publication.staged_batch import StagedOutput
from sluice.refresh.observe_refresh import refreshed_output
from sluice.refresh.refresh_steps import ReachedStep, RefreshStep
from sluice.refresh.refreshed_table import delete_files_of, rows_of
from sluice.refresh.shadow_stream import shadow_output
from sluice.refresh.swap_content import NewContent, swap_content
from sluice.tables.declared_tables import require_table


def swap_shadow(
    catalog: Catalog,
    ledger: Ledger,
    stream: LoadedStream,
    refresh: RefreshObservation,
    *,
    token: int,
    reached: ReachedStep,
) -> RefreshObservation:
    """Exchange the content of a table for that of the shadow. The stream is stopped, and the caller holds its lease.

    Parameters
    ----------
    token: of the run that holds the lease. The mark gets it first, so that no older run publishes any more.

    Raises
    ------
    UnpublishableError: when the shadow has read nothing, or staged batches of the stream wait to be published.
    UsageError: when the refresh was abandoned meanwhile, or the stream was reset.
    DeliveryError, LakehouseError: as `swap_content` raises them.
    """
    output, built = refreshed_output(stream.declaration), shadow_output(stream, refresh)
    _refuse_ended(ledger, refresh)
    shadow = load_target_state(catalog, built)
    end = _end_of(shadow, built)
    take_over(catalog, output, token=token)
    _refuse_empty(shadow.table, require_table(catalog, output.target))
    _refuse_staged(catalog, output)
    before = load_target_state(catalog, output).position(output)
    previous = {"generation": before.generation, "batch": before.batch, "end_offsets_digest": before.end_offsets_digest}
    opening = begin_swap(ledger, refresh.number, previous=previous)
    reached(RefreshStep.SWAPPING)
    assert opening.opens is not None  # noqa: S101  # `begin_swap` sets it
    files = live_files(shadow.table)
    content = NewContent(
        output=output,
        files_for=lambda target: fit_files(files, staging=shadow.table, target=target),
        key=f"{stream.name}/refresh/{refresh.number}",
        mark=MarkPosition(
            generation=opening.opens, batch=end.batch, token=token, end_offsets_digest=end.end_offsets_digest
        ),
        follows=(before.generation, before.batch),
        tag=HeadTag(name=refresh.tag, keeps=refresh.keeps),
    )
    landed = swap_content(catalog, content)
    reached(RefreshStep.COMMITTED)
    rows = rows_of(shadow.table) or 0
    return record_swap(ledger, refresh.number, batch=end.batch, snapshot_ids={output.output: landed}, rows=rows)


def _end_of(shadow: TargetState, output: StagedOutput) -> MarkPosition:
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


def _refuse_empty(shadow: Table, target: Table) -> None:
    if rows_of(shadow) == 0 and rows_of(target) != 0:
        raise UnpublishableError(
            f"The new content of {'.'.join(target.name())} has no row, and the table has some: the inputs are empty, "
            "or the transformation lets nothing through.",
            next_step="Preview the stream (`sluice preview`). To empty the table, delete its rows.",
        )


def _refuse_staged(catalog: Catalog, output: StagedOutput) -> None:
    """A batch that its checkpoint has committed and no table shows could not be read again after the way back."""
    if waiting := plan_output(catalog, output).ready:
        raise UnpublishableError(
            f"{len(waiting)} batches of {output.stream} are staged and not visible yet.",
            next_step=f"Let {output.stream} run until it has published them, and repeat the command.",
        )
