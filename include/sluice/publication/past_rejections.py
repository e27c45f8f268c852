"""Finds the rejections that the history of the targets shows and the ledger has forgotten.

A ledger that was replaced by an older copy of itself does not know what a person rejected after the copy was made. The
marks have moved past the batch without its rows, so nothing publishes it; but without the record it would count as
published, and sinks beside the tables would get its rows. The snapshot that moved a mark says why it did.

What it does not do: a rejection whose snapshots were expired on every target is not found.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.batches import record_batch, rejected_batches
from sluice.ledger.connection import Ledger
from sluice.publication.batch_rejection import rejected_observation
from sluice.publication.mark_moves import MarkMove
from sluice.publication.marks import load_target_state
from sluice.publication.staged_batch import StagedBatch, StagedOutput
from sluice.publication.staging_table import load_staging_table, staged_batches
from sluice.stored_keys import MARK_MOVE, MARK_POSITION, OUTPUT, STREAM

_log = logging.getLogger(__name__)


def record_past_rejections(
    catalog: Catalog,
    ledger: Ledger,
    declaration: StreamDeclaration,
    *,
    outputs: Sequence[StagedOutput],
    generation: int,
) -> frozenset[int]:
    """The numbers of the batches of a generation that a person rejected, by the ledger and by the tables.

    What only the tables have is recorded as rejected, before a run records the batch as it finds it staged.

    Parameters
    ----------
    outputs: those of the stream that go through staging tables, which exist.

    Raises
    ------
    DeliveryError, LakehouseError: when a table cannot be read.
    """
    recorded = rejected_batches(ledger, declaration.stream, generation=generation)
    by_tables = {
        number
        for output in outputs
        for number in rejected_in_history(load_target_state(catalog, output).table, output, generation=generation)
    }
    for number in sorted(by_tables - recorded):
        batches = _staged(catalog, outputs, generation, number)
        if batches and record_batch(ledger, rejected_observation(declaration, batches)):
            _log.warning(
                "batch %d of %s was rejected, which its tables show and the ledger had forgotten; it is recorded again",
                number,
                declaration.stream,
            )
    return recorded | by_tables


def rejected_in_history(table: Table, output: StagedOutput, *, generation: int) -> Iterator[int]:
    """The batches of a generation past which the mark of an output was moved by a rejection, newest first."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        entries = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        is_own = (entries.get(STREAM), entries.get(OUTPUT)) == (output.stream, output.output)
        if is_own and entries.get(MARK_MOVE) == MarkMove.REJECTED:
            of, _, number = entries[MARK_POSITION].partition(":")
            if of == str(generation):
                yield int(number)
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None


def _staged(catalog: Catalog, outputs: Sequence[StagedOutput], generation: int, number: int) -> dict[str, StagedBatch]:
    return {
        output.output: batch
        for output in outputs
        for batch in staged_batches(load_staging_table(catalog, output), stream=output.stream, output=output.output)
        if batch.position == (generation, number) and not batch.is_overtaken
    }
