"""Whether the tables of a stream stand in its newest generation. Until that is known, nothing of the stream goes.

A ledger that was restored takes the checkpoint of the present for one of the past, and tables that were restored may
have to be continued from one of the past.
"""

from __future__ import annotations

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import DeliveryError, LakehouseError
from sluice.ledger.batches import BatchObservation
from sluice.ledger.generations import OUTPUT_TABLE, GenerationObservation
from sluice.publication.direct_history import direct_batches
from sluice.publication.marks import find_lost_mark, marked_outputs, read_mark
from sluice.publication.staged_batch import StagedOutput
from sluice.tables.declared_tables import load_table


def doubt_of(catalog: Catalog, newest: GenerationObservation, batch: BatchObservation) -> str:
    """Why it is not known that the tables of a stream stand in its newest generation, for a person; empty if it is.

    Parameters
    ----------
    newest: the generation. batch: the newest one of it in the ledger.
    """
    names = (name.removeprefix(OUTPUT_TABLE) for name in newest.identities if name.startswith(OUTPUT_TABLE))
    try:
        doubts = (_doubt_of(catalog, name, newest, batch) for name in names)
        return next(filter(None, doubts), "")
    except (DeliveryError, LakehouseError) as error:  # the checks name it, too
        return error.message


def _doubt_of(catalog: Catalog, name: str, newest: GenerationObservation, batch: BatchObservation) -> str:
    table = load_table(catalog, name)
    if table is None:
        return f"{name} is away, and may come back from a backup of another generation."
    found = _generations_on(table, newest.stream, batch)
    if not found:
        return f"{name} has no mark of {newest.stream}, so that it is not known in which generation it stands."
    if max(found) != newest.generation:  # outputs that had another name before keep the mark of an earlier one
        return f"{name} stands in generation {max(found)}, and the ledger in {newest.generation}: one was restored."
    return ""


def _generations_on(table: Table, stream: str, batch: BatchObservation) -> list[int]:
    """The generations that the marks of a stream show, or where they were removed its earlier marks and batches; those
    of its batches alone where it is delivered without marks."""
    own = (one for one in marked_outputs(table) if one.stream == stream)
    marks = (read_mark(table, stream=stream, output=one.output) for one in own)
    if found := [mark.generation for mark in marks if mark is not None]:
        return found
    target = ".".join(table.name())
    outputs = [*batch.published_rows, QUARANTINE_OUTPUT]
    lost = (find_lost_mark(table, StagedOutput(stream=stream, output=one, target=target)) for one in outputs)
    direct = (next(direct_batches(table, stream=stream, output=one), None) for one in outputs)
    return [one.generation for one in (*lost, *direct) if one is not None]
