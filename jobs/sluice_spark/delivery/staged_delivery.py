"""Delivers the batches of a stream into its Iceberg tables: stages each batch and publishes it once.

    stage all outputs ─► publish each output, its mark with it ─► (the ledger records) ─► clear

A staged batch is never lost: whatever fails afterwards, the next run publishes what it finds staged before its query
begins, and Spark's replay of the last batch finds the staged batch or the mark. The protocol and the reason for each
step: decision 0001.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame

from sluice.errors import StaleTokenError
from sluice.ledger.batches import rejected_batches
from sluice.ledger.locks import PublicationLocks
from sluice.positions.stream_position import canonical_end
from sluice.publication.chain import CheckpointPosition
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import PlannedBatch, recovered_observation
from sluice.tables.catalog import open_catalog
from sluice_spark.delivery.batch_audit import BatchAudit, RejectionHold
from sluice_spark.delivery.batch_recording import DeclaredMasks, KeptFigures
from sluice_spark.delivery.batch_separation import BatchSeparation
from sluice_spark.delivery.batch_staging import BatchCounts, BatchStaging, StagingLook, log_difference
from sluice_spark.delivery.delivery_port import DeliveredBatch, DeliveryContext, OffsetLog
from sluice_spark.delivery.publisher import FencedMerge, Publisher, StagedByOutput
from sluice_spark.delivery.staged_publication import PublicationRhythm, StagedPublication
from sluice_spark.delivery.stream_takeover import (
    complete_rejections,
    marked_batches,
    publish_staged,
    take_stream_over,
)
from sluice_spark.delivery.waiting_batches import HeldBatches
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.session.checkpoint_metadata import read_checkpoint, read_planned_offsets

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class StagedDelivery:
    """Delivers the batches of one run. Spark calls it on a thread of its own, one batch after the other.

    offsets: says which offsets of the sources a batch covers.
    """

    context: DeliveryContext
    staging: BatchStaging
    publisher: Publisher
    publication: StagedPublication
    held: HeldBatches
    offsets: OffsetLog
    _newest: int | None = None
    _rejected: frozenset[int] = frozenset()

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Deliver while the block runs; before it, take the stream over and publish what an earlier run has staged."""
        with closing(self.publisher.merging):
            self._take_over()
            with self.publication.at_work():
                yield

    def deliver(self, rows: DataFrame, number: int) -> DeliveredBatch:
        """Stage a batch and publish it, unless it is staged or visible already.

        Raises
        ------
        StaleTokenError: when a newer run has taken the stream over.
        DeliveryError, LakehouseError: when the batch cannot be staged or published.
        """
        self.publication.before_batch()
        delivered = self._deliver(rows, number)
        self._newest = number
        return delivered

    def is_settled(self, number: int) -> bool:
        """Whether an earlier run has staged all outputs of a batch, or made one visible: its rows change no more."""
        if self._is_next(number):
            return False
        batch = self._planned(number)
        visible = self.publisher.published_outputs(batch)
        return bool(visible) or not self.publisher.outputs - self.staging.find(batch).keys()

    def _take_over(self) -> None:
        context, generation = self.context, self.context.run.generation
        take_stream_over(
            self.publisher,
            generation=generation,
            newest_committed=context.found.newest_committed,
            new=context.tables.new_outputs,
        )
        checkpoint = self._checkpoint()
        recorded = rejected_batches(context.ledger, context.run.stream, generation=generation)
        self._rejected = recorded | context.tables.rejected
        complete_rejections(self.publisher, self._rejected, checkpoint)
        published, held, now = publish_staged(self.publisher, checkpoint)
        if self.staging.hold is not None:
            self.staging.hold.take_up(recovered_observation(batch) for batch in (*published, *held))
        for batch in published:
            recovered = recovered_observation(batch)
            if not (comes_again := checkpoint.runs_again(recovered.key)):
                earlier = self.publisher.snapshots_of(recovered.key)  # a group has the key of its last batch alone
                recovered = replace(recovered, snapshot_ids={**earlier, **now.get(recovered.key, {})})
                recovered = self.publication.with_figures(recovered)
            self.publication.note_recovered(recovered, comes_again=comes_again)
        self.held.take_up(held)

    def _checkpoint(self) -> CheckpointPosition:
        """How far the checkpoint goes now that no older run can publish any more."""
        spark, location, generation = self.offsets.spark, self.context.checkpoint, self.context.run.generation
        state = read_checkpoint(spark, location)
        first = min((state.newest_committed, *marked_batches(self.publisher, generation=generation)))
        planned = read_planned_offsets(spark, location, range(first, state.newest_planned + 1))
        return CheckpointPosition(
            generation=generation,
            newest_planned=state.newest_planned,
            newest_committed=state.newest_committed,
            end_offsets={number: canonical_end(texts, self.offsets.sources) for number, texts in planned.items()},
        )

    def _deliver(self, rows: DataFrame, number: int) -> DeliveredBatch:
        self.context.reached(CrashPoint.BATCH_BEGUN)
        batch = self._planned(number)
        is_new = self._is_next(number)
        found = {} if is_new else self.staging.find(batch)
        visible = frozenset() if is_new else self.publisher.published_outputs(batch)
        missing = self.publisher.outputs - found.keys() - visible
        if missing and not visible:
            # An earlier driver died between two outputs. What it staged is of another computation: a static input may
            # have changed since, and a row would be in both outputs or in neither.
            missing, found = self.publisher.outputs, {}
        counted = self._stage(rows, batch, found=found, missing=missing)
        look = self._require_staged(batch, missing) if missing else StagingLook(batches=found)
        self.context.reached(CrashPoint.STAGED)
        self.context.reached(CrashPoint.AUDITED)
        if visible == self.publisher.outputs:  # the marks may have moved on since, without rows
            self.publication.note_visible([batch.key], self.publisher.snapshots_of(batch.key))
        else:
            self.publication.publish(look.batches, look.tables)
        summaries = {output: one.summary for output, one in look.batches.items()}
        staged_with = {output: one.rules for output, one in summaries.items() if one.rules is not None}
        return DeliveredBatch(
            rows={**counted.rows, **{output: one.rows or 0 for output, one in summaries.items()}},
            is_rejected=number in self._rejected,
            rule_results=tuple({**counted.rules, **staged_with}.values()),
        )

    def _is_next(self, number: int) -> bool:
        """Whether this run has delivered the batch before: only its first one can be one that an earlier driver had."""
        return self._newest is not None and self._newest == number - 1

    def _stage(
        self, rows: DataFrame, batch: PlannedBatch, *, found: StagedByOutput, missing: Collection[str]
    ) -> BatchCounts:
        """Stage what is missing. A batch that is staged or visible is computed all the same: its state has to move, and
        only Spark knows how many rows it read and dropped.
        """
        if not missing:
            _log.info("batch %s is staged already; it is computed for its state and its counts alone", batch.key)
        counted = self.staging.stage(rows, batch, missing)
        log_difference(batch.key, found, counted.rows)
        return counted

    def _require_staged(self, batch: PlannedBatch, missing: frozenset[str]) -> StagingLook:
        """The batch as it is staged now.

        Raises
        ------
        StaleTokenError: when what this run has staged does not count, because a newer run had begun before.
        """
        look = self.staging.look(batch)
        if missing - look.batches.keys():
            raise StaleTokenError(
                f"Batch {batch.key} was staged with token {self.context.run.token} after a newer run had taken the "
                "stream over.",
                next_step="Nothing is to be done: the newer run delivers the batch.",
            )
        return look

    def _planned(self, number: int) -> PlannedBatch:
        covered, run = self.offsets.range_of(number), self.context.run
        return PlannedBatch(
            key=run.key(number),
            run_id=run.run_id,
            token=run.token,
            start_offsets=covered.start_offsets,
            end_offsets=covered.end_offsets,
            watermark=covered.watermark,
        )


def open_staged_delivery(plan: StreamPlan, context: DeliveryContext) -> StagedDelivery:
    """The delivery into a plan's tables. Nothing is read or written before it is at work."""
    every = plan.declaration.publish_every
    rhythm = PublicationRhythm(
        every_seconds=every.total_seconds() if every is not None else None, is_overlapped=plan.publishes_beside
    )
    masks = DeclaredMasks(declaration=plan.declaration, folder=context.settings.pipelines)
    publisher = _publisher(plan, context, masks, merges_small=every is not None)
    publication = StagedPublication(
        publisher=publisher,
        recording=context.recording,
        rhythm=rhythm,
        on_failure=context.controls.on_failure,
    )
    staging = BatchStaging(
        catalog=open_catalog(context.settings),  # of its own: publications may run on another thread
        targets=plan.targets,
        carried=plan.carried,
        rejected=plan.rejected,
        is_computed_once=not plan.writes_directly,
        audit=BatchAudit(
            rules=plan.rules,
            masked=plan.declaration.masked_names,
            masked_of=masks.of,
        ),
        hold=_hold(plan, context),
        reached=context.reached,
        rejected_as=context.run.rejected_as,
    )
    held = HeldBatches(
        context.ledger,
        plan.declaration,
        publisher,
        publish=publication.publish_held,
        separation=BatchSeparation(
            spark=plan.rows.sparkSession, staging=replace(staging, catalog=publisher.catalog), run=context.run
        ),
        forget=context.recording.forget,
        on_failure=context.controls.on_failure,
        gate=context.controls.gate,
        reached=context.reached,
    )
    publication.held = held
    return StagedDelivery(
        context=context,
        staging=staging,
        publisher=publisher,
        publication=publication,
        held=held,
        offsets=OffsetLog(spark=plan.rows.sparkSession, query_name=plan.declaration.stream, sources=plan.sources),
    )


def _hold(plan: StreamPlan, context: DeliveryContext) -> RejectionHold | None:
    """What holds the batches of a stream beyond its limit of rejected rows; none where the limit holds none."""
    limit = plan.declaration.rejections_held_beyond
    if limit is None:
        return None
    return RejectionHold(
        spark=plan.rows.sparkSession,
        query_name=plan.declaration.stream,
        ledger=context.ledger,
        limit=limit,
        quarantine=plan.declaration.quarantine_table,
    )


def _publisher(plan: StreamPlan, context: DeliveryContext, masks: DeclaredMasks, *, merges_small: bool) -> Publisher:
    catalog, token = open_catalog(context.settings), context.run.token
    merging = FencedMerge(
        spark=plan.rows.sparkSession,
        catalog=catalog,
        token=token,
        turn=PublicationLocks(ledger=context.ledger).acquire,
        reached=context.reached,
    )
    return Publisher(
        catalog=catalog,
        targets=plan.targets,
        token=token,
        merging=merging,
        lease=context.controls.lease,
        merges_small=merges_small,
        reached=context.reached,
        figures=KeptFigures(masked_of=masks.of, is_kept=context.run.rejected_as is None),
    )
