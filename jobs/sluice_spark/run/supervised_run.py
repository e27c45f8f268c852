"""One run of a stream, from its session to its end: it beats, obeys, observes and stops between batches."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import takewhile

from pyspark.sql import SparkSession

from sluice.checkpoints.compatibility import fingerprint_of, refused_changes, ways_out
from sluice.declarations.loaded import LoadedStream
from sluice.errors import CheckpointError, LeaseLostError
from sluice.ledger.batches import newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import current_generation, record_fingerprint, record_query_id
from sluice.ledger.records.generation import GenerationObservation
from sluice.ledger.records.run import RunObservation
from sluice.ledger.table_locks import PublicationLocks
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.direct_history import DirectWriter, direct_batches, require_direct_start
from sluice.settings import Settings
from sluice.sources.skipped_input_watch import SkippedInputWatch
from sluice.supervision.held_lease import HeldLease
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table
from sluice_spark.delivery.batch_gate import BatchGate
from sluice_spark.delivery.batch_recording import HandOver, Recording
from sluice_spark.delivery.batch_staging import BatchStaging
from sluice_spark.delivery.direct_delivery import DirectDelivery
from sluice_spark.delivery.fenced_merge import FencedMerge
from sluice_spark.delivery.offset_log import OffsetLog
from sluice_spark.delivery.publisher import Publisher
from sluice_spark.delivery.record_delivery import RecordDelivery, record_sink
from sluice_spark.delivery.sink_delivery import Delivery, SinkDelivery
from sluice_spark.delivery.staged_delivery import StagedDelivery
from sluice_spark.query.lateness import LateWatermark, count_late
from sluice_spark.query.state_operators import keyed_operators
from sluice_spark.query.stream_plan import StreamPlan, plan_stream, trigger_of
from sluice_spark.run.heartbeat import Heartbeat
from sluice_spark.run.ledger_writer import LedgerWriter
from sluice_spark.run.progress_listener import BatchOrigin, ProgressListener
from sluice_spark.run.query_run import QueryRun
from sluice_spark.run.stop_request import LEASE_ENDS, StopReason, StopRequest, stop_on_signals
from sluice_spark.session.checkpoint_metadata import CheckpointState, read_checkpoint, require_own_checkpoint
from sluice_spark.session.session import open_session
from sluice_spark.session.state_settings import take_up_state

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedRun:
    """A run that the ledger has admitted, and what it needs to work.

    reached: is told the places that each batch passes.
    """

    settings: Settings
    ledger: Ledger
    stream: LoadedStream
    run: RunObservation
    reached: Reached = unnoticed

    def work(self) -> StopReason:
        """Run the stream: a continuous one until it is asked to stop, an incremental one over what is there now.

        Raises
        ------
        CheckpointError: when the checkpoint is not the one that the ledger has registered, or cannot follow a change of
            the declaration.
        LeaseLostError: when it stopped for its lease: another run has it, or the ledger was away for too long.
        DeclarationError, DeliveryError, SettingsError: as `plan_stream` and the delivery raise them.
        Exception: whatever else made the query fail.
        """
        stop = StopRequest()
        lease = HeldLease(stream=self.run.stream, token=self.run.token)
        heartbeat = Heartbeat(self.ledger, self.run.run_id, stop, lease=lease)
        with heartbeat, LedgerWriter(self.ledger) as writer:
            declaration = self.stream.declaration
            spark = open_session(
                self.settings,
                name=self.stream.name,
                state=declaration.state,
                with_delta=declaration.uses_delta,
                cores=declaration.engine.cores,
            )
            try:
                stop_on_signals(spark, stop)
                reason = self.work_in(spark, stop=stop, lease=lease, hand_over=writer.hand_over)
            finally:
                spark.stop()
        if reason in LEASE_ENDS:
            raise LeaseLostError(f"Run {self.run.run_id} of {self.run.stream}, token {self.run.token}: {reason}.")
        return reason

    def work_in(
        self,
        spark: SparkSession,
        *,
        stop: StopRequest,
        lease: HeldLease,
        hand_over: HandOver,
    ) -> StopReason:
        """The same in a session that is open.

        Parameters
        ----------
        stop: what may ask the run to stop.
        lease: the run's lease; `require` of it comes before each publication, which carries its token.
        hand_over: takes the observation of each batch, at once, and says when the ledger has it.
        """
        generation = current_generation(self.ledger, self.stream.name, checkpoints_root=self.settings.checkpoints)
        _log.info(
            "stream %s, run %s, generation %d, checkpoint %s",
            self.stream.name,
            self.run.run_id,
            generation.generation,
            generation.checkpoint,
        )
        found = read_checkpoint(spark, generation.checkpoint)
        require_own_checkpoint(found, generation)
        take_up_state(spark, self.stream, found)
        plan = plan_stream(spark, self.stream, self.settings, checkpoint=generation.checkpoint)
        self._bind(generation, plan, is_empty=found.newest_planned < 0)
        recording = Recording(hand_over, awaits_publication=bool(plan.targets), reached=self.reached)
        gate = BatchGate()
        direct = self._direct(plan, generation, found, recording, lease, stop)
        is_staged = bool(plan.targets) and direct is None
        tables = self._tables(plan, generation, gate, lease, recording, stop) if is_staged else None
        delivery = direct or self._delivery(plan, generation, gate, lease, tables)
        query_run = self._assemble(plan, stop, delivery, generation, gate, recording)
        publication = tables.at_work(found) if tables is not None else nullcontext()
        with query_run.late_watermark.starting_at(found.watermark_ms), plan.renewals.kept(), publication:
            if self.stream.declaration.mode == "continuous":
                return query_run.keep_running(trigger_of(self.stream.declaration))
            return query_run.exhaust(has_unfinished_batch=found.has_unfinished_batch)

    def _bind(self, generation: GenerationObservation, plan: StreamPlan, *, is_empty: bool) -> None:
        """Bind the checkpoint to the plan at its first start, and compare them at every later one."""
        wanted = fingerprint_of(
            self.stream.declaration, sources=plan.sources, state_operators=keyed_operators(plan.rows)
        )
        bound = record_fingerprint(
            self.ledger, generation.stream, generation.generation, wanted, is_empty=is_empty
        ).fingerprint
        if refused := refused_changes(bound, wanted):
            raise CheckpointError(
                f"The checkpoint of stream {generation.stream}, generation {generation.generation}, cannot follow: "
                f"{'; '.join(refused)}.",
                next_step=ways_out(generation.stream),
            )

    def _assemble(
        self,
        planned: StreamPlan,
        stop: StopRequest,
        delivery: Delivery,
        generation: GenerationObservation,
        gate: BatchGate,
        recording: Recording,
    ) -> QueryRun:
        spark = planned.rows.sparkSession
        late_watermark = LateWatermark(spark=spark, stream=self.stream.name, run_id=self.run.run_id)
        # `complete` keeps every group for ever and takes every row. What Iceberg's own sink takes passes no place where
        # the watermark could be kept up with the batches.
        counts_late_rows = planned.output_mode != "complete" and not isinstance(delivery, DirectDelivery)
        plan = replace(planned, rows=count_late(planned.rows, late_watermark)) if counts_late_rows else planned
        records_to = record_sink(plan)
        origin = BatchOrigin(
            stream=self.stream.name,
            generation=generation.generation,
            run_id=self.run.run_id,
            sources=plan.sources,
            counted_by_spark=records_to.output if records_to is not None else self.stream.declaration.direct_output,
        )
        skipped_input = SkippedInputWatch(self.stream.declaration, self.settings)
        return QueryRun(
            spark=spark,
            plan=plan,
            delivery=delivery,
            checkpoint=generation.checkpoint,
            stop=stop,
            gate=gate,
            new_listener=lambda: ProgressListener(
                spark, origin, take_delivered=delivery.take, hand_over=skipped_input.completing(recording.observed)
            ),
            on_started=self._register_query(generation),
            late_watermark=late_watermark,
            skipped_input=skipped_input,
            records_to=records_to,
            direct=delivery if isinstance(delivery, DirectDelivery) else None,
        )

    def _direct(
        self,
        plan: StreamPlan,
        generation: GenerationObservation,
        found: CheckpointState,
        recording: Recording,
        lease: HeldLease,
        stop: StopRequest,
    ) -> DirectDelivery | None:
        """The delivery by Iceberg's own sink, once the table says that this run may begin; none for all other ways."""
        target = plan.direct_target
        if target is None:
            return None
        names = target.names
        writer = DirectWriter(
            stream=names.stream,
            output=names.output,
            generation=generation.generation,
            run_id=self.run.run_id,
            token=self.run.token,
            query_id=found.query_id,
        )
        table = require_table(open_catalog(self.settings), names.target)
        require_direct_start(table, writer, unfinished_since=found.unfinished_since)
        newest = newest_batch(self.ledger, self.stream.name)
        recorded = (newest.key.generation, newest.key.batch) if newest is not None else (0, -1)
        unrecorded = [
            batch
            for batch in takewhile(
                lambda batch: batch.position > recorded,
                direct_batches(table, stream=names.stream, output=names.output),
            )
            if batch.position <= (generation.generation, found.newest_committed)
        ]
        lease.require()
        return DirectDelivery(
            target=target,
            writer=writer,
            recording=recording,
            on_failure=lambda: stop.make(StopReason.UNPUBLISHED),
            unrecorded=tuple(reversed(unrecorded)),
            reached=self.reached,
        )

    def _tables(
        self,
        plan: StreamPlan,
        generation: GenerationObservation,
        gate: BatchGate,
        lease: HeldLease,
        recording: Recording,
        stop: StopRequest,
    ) -> StagedDelivery:
        spark, catalog, token = plan.rows.sparkSession, open_catalog(self.settings), self.run.token
        publish_every = self.stream.declaration.publish_every
        return StagedDelivery(
            stream=self.stream.name,
            generation=generation.generation,
            run_id=self.run.run_id,
            token=token,
            staging=BatchStaging(
                catalog=open_catalog(self.settings),  # of its own: publications may go on on another thread
                targets=plan.targets,
                is_computed_once=not plan.writes_directly,
                reached=self.reached,
            ),
            publisher=Publisher(
                catalog=catalog,
                targets=plan.targets,
                token=token,
                merging=FencedMerge(
                    spark=spark,
                    catalog=catalog,
                    token=token,
                    turn=PublicationLocks(ledger=self.ledger).acquire,
                    reached=self.reached,
                ),
                lease=lease,
                merges_small=publish_every is not None,
                reached=self.reached,
            ),
            recording=recording,
            publish_every_seconds=publish_every.total_seconds() if publish_every is not None else None,
            is_overlapped=plan.publishes_beside,
            on_failure=lambda: stop.make(StopReason.UNPUBLISHED),
            offsets=OffsetLog(spark=spark, query_name=self.stream.name, sources=plan.sources),
            is_stateful=plan.is_stateful,
            gate=gate,
            reached=self.reached,
        )

    def _delivery(
        self,
        plan: StreamPlan,
        generation: GenerationObservation,
        gate: BatchGate,
        lease: HeldLease,
        tables: StagedDelivery | None,
    ) -> Delivery:
        if record_sink(plan) is not None:
            return RecordDelivery()
        if tables is not None and not plan.sinks:
            return tables
        return SinkDelivery(
            stream=self.stream.name,
            generation=generation.generation,
            tables=tables,
            sinks=plan.sinks,
            gate=gate,
            lease=lease,
        )

    def _register_query(self, generation: GenerationObservation) -> Callable[[str], None]:
        def register(query_id: str) -> None:
            record_query_id(self.ledger, generation.stream, generation.generation, query_id)

        return register
