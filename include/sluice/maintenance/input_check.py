"""Checks at the start of a run that the history of its Iceberg inputs reaches back to where the stream continues."""

from __future__ import annotations

import logging

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError, InputGapError, InputReplacedError
from sluice.ledger.generations import GenerationObservation
from sluice.maintenance.reading_position import SourcePosition, observe_reading_position
from sluice.settings import ObjectStoreSettings
from sluice.sources.iceberg_positions import BEGINNING, history_of
from sluice.sources.input_branch import find_branch
from sluice.sources.input_gap import find_gap
from sluice.sources.table_starts import observe_files
from sluice.tables.declared_tables import load_table

_log = logging.getLogger(__name__)


def require_unbroken_input(
    catalog: Catalog,
    stream: StreamDeclaration,
    generation: GenerationObservation,
    *,
    object_store: ObjectStoreSettings,
) -> None:
    """Check that no snapshot is missing between where a stream continues and the newest one.

    Iceberg's source finds that out as well, and names neither the snapshots nor the rows.

    Raises
    ------
    InputGapError: when snapshots are missing: which, and how many rows they had.
    InputReplacedError: when an input was rolled back or replaced: what is withdrawn, and what is new.
    DeliveryError, LakehouseError: when a table cannot be read.
    """
    try:
        checkpoint = open_checkpoint_files(generation.checkpoint, object_store)
        position = observe_reading_position(catalog, checkpoint, stream, generation=generation.generation)
    except CheckpointError as error:  # a file system that only Spark reads: Iceberg's own check remains
        _log.debug("the input is not checked for a gap: %s", error)
        return
    for source in position.sources if position is not None else ():
        table = load_table(catalog, source.table)
        if table is not None:
            _require_unbroken(stream, source, table)


def _require_unbroken(stream: StreamDeclaration, position: SourcePosition, table: Table) -> None:
    _require_first_snapshots(stream, position, table)
    branch = find_branch(table, name=position.table, position=position.offset.snapshot_id)
    if branch is not None:
        raise InputReplacedError(
            f"Stream {stream.stream}, input {position.input}: {branch}.",
            next_step=f"`sluice stream continue {stream.stream} --dry-run` shows where it can continue, what stays in "
            "the outputs and what is read.",
        )
    gap = find_gap(table, name=position.table, position=position.offset.snapshot_id)
    if gap is not None:
        raise InputGapError(
            f"Stream {stream.stream}, input {position.input}: {gap}.",
            next_step=f"`sluice stream continue {stream.stream} --dry-run` shows whether these rows can still be read "
            "exactly once; it names the choices otherwise.",
        )


def _require_first_snapshots(stream: StreamDeclaration, position: SourcePosition, table: Table) -> None:
    """A reader that found its table empty continues with the oldest snapshot. That has to be the table's first one."""
    oldest = next(reversed(tuple(history_of(table))), None)
    if position.offset.snapshot_id != BEGINNING or oldest is None:
        return
    if not observe_files(table, oldest.snapshot_id).adds_all:
        raise InputGapError(
            f"Stream {stream.stream}, input {position.input}: {position.table} was empty when the stream began, and "
            "its first snapshots were expired before they were read; the oldest one that can be reached is "
            f"{oldest.snapshot_id}.",
            next_step=f"Read the whole table into a new generation: `sluice stream reset {stream.stream}`.",
        )
