"""Delivers the batches of a stream: stages each, publishes it once, and knows what became of it.

    stage all outputs ─► audit ─► publish each output, its mark with it ─► (the ledger records) ─► clear

A batch that is staged is never lost: whatever dies afterwards, the next run publishes what it finds staged before its
query begins, and Spark's replay of the last batch meets what is staged or the mark. The protocol and the
reason for each step: decision 0001.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyiceberg.table import Table
from pyspark.sql import DataFrame

from sluice.declarations.streams import QUARANTINE_OUTPUT
from sluice.errors import StaleTokenError
from sluice.ledger.records.stream_batch import BatchObservation, PublicationKey
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.staged_batch import BatchSummary, StagedBatch
from sluice_spark.delivery.batch_gate import BatchGate
from sluice_spark.delivery.batch_recording import Recording
from sluice_spark.delivery.batch_staging import BatchStaging, StagingLook, tell_difference
from sluice_spark.delivery.offset_log import OffsetLog
from sluice_spark.delivery.overlapped_publication import OverlappedPublication
from sluice_spark.delivery.publisher import Publisher, StagedByOutput, no_tables
from sluice_spark.session.checkpoint_metadata import CheckpointState

_log = logging.getLogger(__name__)

CLEARED_TOGETHER = 20
"""How many visible batches the staging tables keep before they are cleared: it costs a commit or two for each output,
which small batches should not pay every time."""

_SETTLING_SECONDS = 5.0
"""How long the end of a run waits for the ledger before it leaves the clearing to the next run."""

Audit = Callable[[PublicationKey, Mapping[str, StagedBatch]], None]
"""Judges a batch that is staged and not visible yet; what it raises keeps the batch from becoming visible."""


def let_pass(_key: PublicationKey, _staged: Mapping[str, StagedBatch]) -> None:
    """The audit of a stream without rules for whole batches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredBatch:
    """What a batch brought to each output.

    is_replay: it was staged, or visible, before this run; nothing was written.
    """

    rows: Mapping[str, int]
    is_replay: bool


@dataclass(slots=True, kw_only=True)
class StagedDelivery:
    """Delivers the batches of one run. Spark calls it on a thread of its own, one batch after the other.

    stream, generation, run_id, token: whose batches they are; the token is the run's fencing token.
    offsets: says which stretch of the sources a batch covers.
    publish_every_seconds: how long staged batches wait to be published together; none when each is visible at once.
    is_overlapped: whether each is published while Spark works on the next; groups always are.
    on_failure: is called when a publication on a thread of its own has failed; it is to end the run.
    is_stateful: a batch that is staged already is computed all the same, so that state and watermark move.
    gate: lets batches in.
    failure: the error that ended the query; Spark only passes its text on.
    """

    stream: str
    generation: int
    run_id: str
    token: int
    staging: BatchStaging
    publisher: Publisher
    recording: Recording
    offsets: OffsetLog
    is_stateful: bool
    gate: BatchGate
    publish_every_seconds: float | None = None
    is_overlapped: bool = False
    on_failure: Callable[[], None] = lambda: None
    audit: Audit = let_pass
    reached: Reached = unnoticed
    failure: Exception | None = None
    _delivered: dict[int, DeliveredBatch] = field(default_factory=dict)
    _newest: int | None = None
    _uncleared: int = 0
    _publication: OverlappedPublication | None = None

    @contextmanager
    def at_work(self, checkpoint: CheckpointState) -> Iterator[None]:
        """Deliver while the block runs: before it, take the stream over and publish what an earlier run has staged;
        after it, unless it failed, publish what still waits, and clear what is visible and recorded.

        Raises
        ------
        DeliveryError, LakehouseError: when the stream cannot be taken over, or a staged batch not be published.
        """
        self._begin(checkpoint)
        if self.publish_every_seconds is None and not self.is_overlapped:
            yield
        else:
            publication = OverlappedPublication(
                self._publish_group, every_seconds=self.publish_every_seconds, on_failure=self.on_failure
            )
            with publication as self._publication:
                yield
        self._finish()

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Deliver a batch; for `foreachBatch`."""
        self.gate.enter()
        try:
            if self._publication is None:
                self._clear_when_worthwhile()
            self._delivered[number] = self._deliver(batch, number)
            self._newest = number
        except Exception as error:
            self.failure = error  # kept whole: the query's own exception carries nothing but its text
            raise

    def take(self, number: int) -> DeliveredBatch | None:
        """What was delivered of a batch, once; none when it was not delivered by this run."""
        return self._delivered.pop(number, None)

    def _begin(self, checkpoint: CheckpointState) -> None:
        self.publisher.open(generation=self.generation, newest_committed=checkpoint.newest_committed)
        for batch in self.publisher.recover():
            self._uncleared += 1
            observation = recovered_observation(batch)
            # A batch that the checkpoint does not know as done comes again, and is then recorded with all that Spark
            # knows of it. One of a generation that was left behind never does.
            is_left = observation.key.generation < self.generation
            if is_left or observation.key.batch <= checkpoint.newest_committed:
                self.recording.recovered(observation)

    def _finish(self) -> None:
        if self._uncleared and self.recording.await_settled(_SETTLING_SECONDS):
            self.publisher.clear()
            self._uncleared = 0

    def _deliver(self, rows: DataFrame, number: int) -> DeliveredBatch:
        self.reached(CrashPoint.BATCH_BEGUN)
        batch = self._summary(number)
        # Only the first batch of a query can be one that an earlier driver worked on.
        is_known = self._newest is not None and self._newest == number - 1
        found = {} if is_known else self.staging.find(batch)
        visible = frozenset() if is_known else self.publisher.published_outputs(batch)
        missing = self.publisher.outputs - found.keys() - visible
        counted = self._stage(rows, batch, found=found, missing=missing)
        look = self._require_staged(batch, missing) if missing else None
        staged = look.batches if look is not None else found
        self.reached(CrashPoint.STAGED)
        self.audit(batch.key, staged)
        self.reached(CrashPoint.AUDITED)
        rows_of_staged = {output: one.summary.rows or 0 for output, one in staged.items()}
        delivered = {**counted, **rows_of_staged}
        if visible == self.publisher.outputs:  # the marks may have moved on since, without rows
            self._note_published([number], self.publisher.snapshots_of(batch.key))
        elif self._publication is not None:
            self._publication.add(staged)
        else:
            self._publish_group([staged], look.tables if look is not None else {})
        return DeliveredBatch(rows=delivered, is_replay=not missing)

    def _publish_group(self, batches: Sequence[StagedByOutput], staging: Mapping[str, Table] = no_tables) -> None:
        snapshot_ids = self.publisher.publish(batches, staging=staging)
        numbers = [next(iter(batch.values())).summary.key.batch for batch in batches]
        self._note_published(numbers, snapshot_ids)
        if self._publication is not None:
            self._clear_when_worthwhile()

    def _note_published(self, numbers: Sequence[int], snapshot_ids: Mapping[str, int]) -> None:
        for number in numbers:
            self._uncleared += 1
            self.recording.published(number, snapshot_ids)

    def _require_staged(self, batch: BatchSummary, missing: frozenset[str]) -> StagingLook:
        """The batch as it is staged now.

        Raises
        ------
        StaleTokenError: when what this run has staged does not count, because a newer run had begun before.
        """
        look = self.staging.look(batch)
        if missing - look.batches.keys():
            raise StaleTokenError(
                f"Batch {batch.key} was staged with token {self.token} after a newer run had taken the stream over.",
                next_step="Nothing is to be done: the newer run delivers the batch.",
            )
        return look

    def _stage(
        self, rows: DataFrame, batch: BatchSummary, *, found: StagedByOutput, missing: Collection[str]
    ) -> Mapping[str, int]:
        """Stage what is missing; compute a batch again only for its state, or when nobody knows its counts any more."""
        is_counted = found.keys() == self.publisher.outputs
        if not missing and is_counted and not self.is_stateful:
            _log.info("batch %s is staged already; nothing is computed again", batch.key)
            return {}
        if not missing:
            _log.info("batch %s is staged already; it is computed for its state and its counts alone", batch.key)
        counted = self.staging.stage(rows, batch, missing)
        tell_difference(batch.key, found, counted)
        return counted

    def _clear_when_worthwhile(self) -> None:
        # Batches that follow each other without a pause leave the ledger one behind for ever: what it has can go.
        unrecorded = self.recording.unrecorded
        if self._uncleared - len(unrecorded) >= CLEARED_TOGETHER:
            self.publisher.clear(unrecorded=unrecorded)
            self._uncleared = len(unrecorded)

    def _summary(self, number: int) -> BatchSummary:
        covered = self.offsets.range_of(number)
        return BatchSummary(
            key=PublicationKey(stream=self.stream, generation=self.generation, batch=number),
            output="",
            run_id=self.run_id,
            token=self.token,
            start_offsets=covered.start_offsets,
            end_offsets=covered.end_offsets,
            watermark=covered.watermark,
        )


def recovered_observation(batch: StagedByOutput) -> BatchObservation:
    """What the ledger gets to know of a batch whose driver died before it recorded it: what its snapshots tell."""
    summaries = [staged.summary for staged in batch.values()]
    rows = {summary.output: summary.rows or 0 for summary in summaries}
    return BatchObservation(
        key=summaries[0].key,
        run_id=summaries[0].run_id,
        started_at=min(staged.staged_at for staged in batch.values()),
        duration_ms=0,
        input_rows=sum(rows.values()),
        published_rows={output: count for output, count in rows.items() if output != QUARANTINE_OUTPUT},
        refused_rows=rows.get(QUARANTINE_OUTPUT, 0),
        late_rows=0,
        duplicate_rows=0,
        watermark=summaries[0].watermark,
        start_offsets=json.loads(summaries[0].start_offsets),
        end_offsets=json.loads(summaries[0].end_offsets),
        snapshot_ids={},
        durations_ms={},
    )
