"""The checkpoint that a run continues from: observed, bound to the planned query, and made ready for `availableNow`.

Iceberg's source plans the end of a run with `availableNow` from the *first* offset that the checkpoint ever had
(apache/iceberg#18000; decision 0065). Expiry removes that snapshot, and the walk from it grows with every run. And it
fails without a reason when there is nothing to read from there.

The first offset is read only for the first batch and for that plan. So once a batch is committed, the first offset is
moved to the snapshot where the committed batch ends, before its first file: from there the plan finds an end always,
and of that end it keeps the snapshot only. Before that, the first offset is where the first batch starts; if everything
of its snapshot is read there, it is moved one file further, which reads the same.

Where the first batch really starts is kept beside it, and put back when the first batch has to run again although it
was committed once: somebody removed its commit, or brought an older copy of the commit log back. A run that was killed
while it wrote the first offset leaves a damaged one; the next run writes it again before its query starts, from what
the checkpoint and the history of the table hold.

Source: `SparkMicroBatchStream.prepareForTriggerAvailableNow` and `SyncSparkMicroBatchPlanner` of Iceberg 1.12.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from sluice.checkpoints.compatibility import fingerprint_of, refused_changes, ways_out
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import CheckpointError
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import (
    GenerationObservation,
    current_generation,
    record_begun,
    record_fingerprint,
    record_query_id,
)
from sluice.maintenance.table_readers import streamed_tables
from sluice.publication.chain import CheckpointPosition
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, history_of, stream_offset_of
from sluice.tables.declared_tables import require_table
from sluice_spark.query.logical_plan import keyed_operators, processor_keys, state_meaning
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.session.checkpoint_metadata import (
    CheckpointState,
    keep_first_offset,
    mark_as_begun,
    read_checkpoint,
    read_first_offset,
    read_kept_offset,
    read_planned_offsets,
    require_own_checkpoint,
    write_first_offsets,
)
from sluice_spark.session.state_settings import take_up_state

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheckpoint:
    """The generation that a run continues, and what its checkpoint holds.

    state: what was found in the folder before the query started.
    """

    ledger: Ledger
    stream: LoadedStream
    generation: GenerationObservation
    state: CheckpointState

    @property
    def location(self) -> str:
        """The folder."""
        return self.generation.checkpoint

    @property
    def position(self) -> CheckpointPosition:
        """How far it goes, without the offsets of its batches."""
        return CheckpointPosition(
            generation=self.generation.generation,
            newest_planned=self.state.newest_planned,
            newest_committed=self.state.newest_committed,
        )

    def bind(self, plan: StreamPlan) -> None:
        """Bind the checkpoint to the plan at its first start, and compare them at every later one.

        Raises
        ------
        CheckpointError: when the checkpoint cannot follow a change of the declaration.
        """
        wanted = fingerprint_of(
            self.stream.declaration,
            sources=plan.sources,
            state_operators=keyed_operators(plan.rows),
            state_meaning=state_meaning(plan.rows),
            processor_keys=processor_keys(plan.rows),
        )
        bound = record_fingerprint(
            self.ledger,
            self.generation.stream,
            self.generation.generation,
            wanted,
            is_empty=self.state.newest_planned < 0,
        ).fingerprint
        if refused := refused_changes(bound, wanted):
            raise CheckpointError(
                f"The checkpoint of stream {self.generation.stream}, generation {self.generation.generation}, cannot "
                f"follow: {'; '.join(refused)}.",
                next_step=ways_out(self.generation.stream),
            )

    def begin(self) -> None:
        """Record that a run begins, before its query delivers anything."""
        if self.generation.begun_at is None:
            record_begun(self.ledger, self.generation.stream, self.generation.generation)

    def register_query(self, spark: SparkSession, query_id: str) -> None:
        """Record the id of the query that has started, and note in the checkpoint that it has.

        Raises
        ------
        CheckpointError: when it is not that of the checkpoint, which was replaced or lost since it was read.
        """
        record_query_id(self.ledger, self.generation.stream, self.generation.generation, query_id)
        mark_as_begun(spark, self.location, query_id)


def observe_checkpoint(
    spark: SparkSession, ledger: Ledger, stream: LoadedStream, *, run_id: str, checkpoints_root: str
) -> RunCheckpoint:
    """Read the checkpoint of the current generation, and set the session to the state that it keeps.

    Raises
    ------
    CheckpointError: when the checkpoint is not the one that the ledger has registered, or cannot be read.
    """
    generation = current_generation(ledger, stream.name, checkpoints_root=checkpoints_root)
    _log.info(
        "stream %s, run %s, generation %d, checkpoint %s",
        stream.name,
        run_id,
        generation.generation,
        generation.checkpoint,
    )
    found = read_checkpoint(spark, generation.checkpoint)
    require_own_checkpoint(found, generation)
    take_up_state(spark, stream, found)
    return RunCheckpoint(ledger=ledger, stream=stream, generation=generation, state=found)


_BEFORE_FIRST_FILE = -1
"""A position that no batch ends at, so that an end is never equal to it."""


def prepare_available_now(spark: SparkSession, plan: StreamPlan, checkpoint: RunCheckpoint, catalog: Catalog) -> None:
    """Move the first offsets of the Iceberg inputs to where a run with `availableNow` can start.

    Raises
    ------
    LakehouseError: when a table cannot be read.
    """
    tables = {name: source.table for name, source in streamed_tables(plan.declaration)}
    inputs = {number: tables[name] for number, name in enumerate(plan.sources) if name in tables}
    if not inputs:
        return
    committed = checkpoint.state.newest_committed
    if committed < 0:
        _put_back_first_offsets(spark, checkpoint.location, inputs)
        moved = dict(_behind_read_snapshots(spark, checkpoint.location, inputs, catalog))
    else:
        for number in inputs:
            keep_first_offset(spark, checkpoint.location, number)
        ends = read_planned_offsets(spark, checkpoint.location, (committed,)).get(committed, ())
        moved = {number: end for number, end in _before_snapshots(ends).items() if number in inputs}
    write_first_offsets(spark, checkpoint.location, moved)


def _put_back_first_offsets(spark: SparkSession, location: str, inputs: Mapping[int, str]) -> None:
    kept = {number: read_kept_offset(spark, location, number) for number in inputs}
    write_first_offsets(spark, location, {number: first for number, first in kept.items() if first is not None})


def _before_snapshots(ends: tuple[str | None, ...]) -> Mapping[int, StreamOffset]:
    """Where a batch ends, before the first file of each snapshot. A source without an offset keeps its first one."""
    offsets = {number: stream_offset_of(end) for number, end in enumerate(ends) if end is not None}
    return {
        number: StreamOffset(snapshot_id=offset.snapshot_id, position=_BEFORE_FIRST_FILE, scan_all_files=False)
        for number, offset in offsets.items()
        if offset is not None and offset.snapshot_id != BEGINNING
    }


def _behind_read_snapshots(
    spark: SparkSession, location: str, inputs: Mapping[int, str], catalog: Catalog
) -> Iterator[tuple[int, StreamOffset]]:
    """The first offsets with nothing to read in their snapshots, one file behind the last."""
    for number, name in inputs.items():
        first = read_first_offset(spark, location, number)
        if first is None:
            continue
        history = history_of(require_table(catalog, name))
        step = next((step for step in history if step.snapshot_id == first.snapshot_id), None)
        if step is None or not step.is_read_by(first):
            continue
        files = step.total_files if first.scan_all_files else step.appended_files
        yield number, replace(first, position=(files or 0) + 1)
