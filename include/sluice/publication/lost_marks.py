"""Restores the mark of an output when somebody has removed the table property that holds it.

Without the mark nothing says which staged batches are visible. The checkpoint does not say it either: Spark commits a
batch as soon as it is staged. So the mark is looked up where it was: in the table's previous metadata, which the
catalog's metadata log names, or else in the history of main.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from pyiceberg.catalog import Catalog
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.errors import MarkError
from sluice.publication.chain import MarkPosition
from sluice.publication.mark_moves import MarkMove, move_mark
from sluice.publication.marks import TargetState, load_target_state, parse_mark, state_since
from sluice.publication.staged_batch import StagedOutput, offsets_digest, read_summary
from sluice.publication.staging_table import staged_batches
from sluice.stored_keys import MARK_MOVE, MARK_POSITION, OUTPUT, STREAM, TOKEN
from sluice.tables.catalog import catalog_refusals
from sluice.tables.declared_tables import load_table

_log = logging.getLogger(__name__)


def restore_lost_mark(catalog: Catalog, output: StagedOutput, *, token: int) -> None:
    """Set the mark of an output again where it was when the property was removed. Nothing happens when there is a mark,
    or never was one.

    Every run calls it before it opens its generation, because an opening without a mark would count what the checkpoint
    has committed as published.

    Parameters
    ----------
    token: of the run; a mark that has seen a higher one refuses it.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    MarkError: when batches are staged and nothing shows which of them are visible.
    RolledBackError, DivergedError, LakehouseError: as `load_target_state` raises them.
    """
    if load_target_state(catalog, output).mark is not None:
        return

    # An output without a staging table is new, as a rule: the metadata of a busy table is not read for it.
    in_log = load_table(catalog, output.staging) is not None

    def wanted(state: TargetState) -> MarkPosition | None:
        return find_lost_mark(state.table, output, in_log=in_log) if state.mark is None else None

    lost = find_lost_mark(load_target_state(catalog, output).table, output, in_log=in_log)
    if lost is None:
        _refuse_unknown(catalog, output)
        return
    _log.warning(
        "the property %s of %s was removed; it is restored at generation %d, batch %d",
        output.mark_property,
        output.target,
        lost.generation,
        lost.batch,
    )
    move_mark(catalog, output, wanted, why=MarkMove.RESTORED, token=token)


def find_lost_mark(table: Table, output: StagedOutput, *, in_log: bool = True) -> MarkPosition | None:
    """How far an output was published when its mark was removed from a loaded target; none when it never had one.

    Parameters
    ----------
    in_log: whether the previous metadata is read, and not only the history of main.

    Raises
    ------
    RolledBackError, DivergedError: when main does not descend from the snapshot that set the mark.
    LakehouseError: when previous metadata cannot be read.
    """
    for properties in _previous_properties(table) if in_log else ():
        text = properties.get(output.mark_property)
        if text is not None:
            mark = parse_mark(text, name=output.mark_property, table=output.target)
            return state_since(table, mark, output).position(output)
    return next((found for one in _history(table) if (found := _position_of(one, output)) is not None), None)


def _previous_properties(table: Table) -> Iterator[dict[str, str]]:
    """The properties of the table's previous metadata files, newest first, as far as they are kept."""
    for entry in reversed(table.metadata.metadata_log):
        try:
            reading = f"read the previous metadata of {'.'.join(table.name())}"
            with catalog_refusals(reading, but_not=(FileNotFoundError,)):
                metadata = FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except FileNotFoundError:  # catalogs delete the oldest ones
            return
        yield metadata.properties


def _history(table: Table) -> Iterator[Snapshot]:
    snapshot = table.current_snapshot()
    while snapshot is not None:
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None


def _position_of(snapshot: Snapshot, output: StagedOutput) -> MarkPosition | None:
    """Where the mark stood after a snapshot of main; none when the snapshot did not move it."""
    entries = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    summary = read_summary(entries)
    if summary is not None and (summary.key.stream, summary.output) == (output.stream, output.output):
        return MarkPosition(
            generation=summary.key.generation,
            batch=summary.key.batch,
            token=summary.token,
            end_offsets_digest=offsets_digest(summary.end_offsets),
        )
    if MARK_MOVE not in entries or (entries.get(STREAM), entries.get(OUTPUT)) != (output.stream, output.output):
        return None
    generation, _, batch = entries.get(MARK_POSITION, "").partition(":")
    if not generation:
        return None  # a run fenced the others off; the batch that it stands at follows in the history
    return MarkPosition(
        generation=int(generation), batch=int(batch), token=int(entries[TOKEN]), end_offsets_digest=None
    )


def _refuse_unknown(catalog: Catalog, output: StagedOutput) -> None:
    staging = load_table(catalog, output.staging)
    if staging is None:
        return
    staged = [
        batch for batch in staged_batches(staging, stream=output.stream, output=output.output) if not batch.is_overtaken
    ]
    if staged:
        raise MarkError(
            f"{output.target} has no mark of {output}, and neither its metadata log nor its history shows one; "
            f"{len(staged)} batches are staged, {staged[0].summary.key} to {staged[-1].summary.key}, and it is unknown "
            "which of them are visible.",
            next_step=f"Discard them: `sluice batch abandon {output.stream} {output.output}`; or restore the property "
            f"{output.mark_property} from a copy of the table's metadata.",
        )
