"""Chooses the way in which a stream delivers its batches, once for a run, and hands them over.

The shortest way stands here: record by record, from Kafka to Kafka, for the triggers continuous processing and
real-time mode. There is no batch to deliver, so Spark's own Kafka sink writes, at least once. Real-time mode still
plans batches, a few seconds long, and reports the rows of each. Continuous processing reports nothing: its runs have a
heartbeat and a checkpoint, and no batches in the ledger.

A task of either mode holds its core for as long as the query runs, one task for each partition of the topics: with
fewer cores than partitions Spark never reads some of them.

Python's garbage is collected after every batch that is handed over. Every loaded table has a file system of its own,
whose connections are only closed by Python's cyclic garbage collector. By default the collector runs after many
allocations: by then, 60 batches of a small stream had 550 open files, and a process may have 1,024.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice.declarations.scalar_types import duration_text
from sluice.errors import DeliveryError
from sluice.publication.direct_history import older_checkpoint
from sluice_spark.delivery.delivery_port import (
    BatchGate,
    DeliveredBatch,
    Delivery,
    DeliveryContext,
    OffsetLog,
    TurnedAwayError,
)
from sluice_spark.delivery.direct_delivery import open_direct_delivery
from sluice_spark.delivery.sink_delivery import KeptSinkRows, SinkDelivery, may_change
from sluice_spark.delivery.staged_delivery import open_staged_delivery
from sluice_spark.query.file_watch import FilesWatch
from sluice_spark.query.observed_rows import LateWatermark, count_late
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.session.item_sessions import in_this_context
from sluice_spark.session.jvm import first_line, jvm_of
from sluice_spark.sinks.delta import DeltaSink
from sluice_spark.sinks.files import FilesSink
from sluice_spark.sinks.kafka import KafkaSink

_log = logging.getLogger(__name__)


@cache
def exclude_imports() -> None:
    """Exclude the objects that exist now, above all imported modules, from collections: once in a process.

    A collection of those 240,000 objects takes 0.16 s and blocks all other threads of Python. A collection of the 500
    objects that a batch leaves takes 1 ms.
    """
    gc.collect()
    gc.freeze()


def swept(deliver: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """Wrap a delivery for `foreachBatch`: garbage is collected after every batch. It has the context of the run."""
    deliver = in_this_context(deliver)

    def deliver_and_sweep(batch: DataFrame, number: int) -> None:
        deliver(batch, number)
        gc.collect()

    return deliver_and_sweep


class BatchWriter(Protocol):
    """Where the batches go: staged tables, or sinks alone or beside such tables."""

    def at_work(self) -> AbstractContextManager[None]:
        """Recover before the block and finish after it, as `Delivery.at_work` describes."""
        ...

    def deliver(self, rows: DataFrame, number: int) -> DeliveredBatch:
        """Write a batch. Spark calls it on a thread of its own, one batch after the other."""
        ...


@dataclass(slots=True, kw_only=True)
class BatchHandover:
    """Takes the batches that Spark hands over, and keeps what was delivered of each.

    gate: is passed before each batch.
    failure: the error that ended the query; Spark passes only its text on.
    """

    gate: BatchGate
    writer: BatchWriter
    failure: Exception | None = None
    _delivered: dict[int, DeliveredBatch] = field(default_factory=dict)

    def __call__(self, rows: DataFrame, number: int) -> None:
        """Deliver a batch; for `foreachBatch`.

        Raises
        ------
        TurnedAwayError: when the gate is closed.
        """
        self.gate.enter()
        try:
            self._delivered[number] = self.writer.deliver(rows, number)
        except Exception as error:
            self.failure = error
            raise

    def guarded(self, deliver: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        """Keep the error of what looks at a batch ahead of this."""

        def keep_failure(rows: DataFrame, number: int) -> None:
            try:
                deliver(rows, number)
            except TurnedAwayError:
                raise
            except Exception as error:
                self.failure = error
                raise

        return keep_failure

    def take(self, number: int) -> DeliveredBatch | None:
        """What was delivered of a batch, once; none when this run did not deliver it."""
        return self._delivered.pop(number, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDelivery:
    """The delivery of a stream whose batches are handed over.

    late_watermark: follows the batches.
    """

    plan: StreamPlan
    context: DeliveryContext
    handover: BatchHandover
    late_watermark: LateWatermark

    @property
    def failure(self) -> Exception | None:
        """The error of the batch that ended the query."""
        return self.handover.failure

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Follow the watermark from where the checkpoint left it, while the writer is at work."""
        with self.late_watermark.starting_at(self.context.found.watermark_ms), self.handover.writer.at_work():
            yield

    def start(self, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Start the query; before each batch the watermark is read and the sources are looked at."""
        controls = self.context.controls
        counted = controls.skipped_input.ahead_of(self.handover)
        looked_at = self.handover.guarded(controls.inputs.ahead_of(self._files().ahead_of(counted)))
        deliver = swept(self.late_watermark.ahead_of(looked_at))
        writer = self.plan.writer(checkpoint=self.context.checkpoint)
        return writer.foreachBatch(deliver).trigger(**trigger).start()

    def _files(self) -> FilesWatch:
        spark, plan = self.plan.rows.sparkSession, self.plan
        log = OffsetLog(spark=spark, query_name=self.context.run.stream, sources=plan.sources)

        def ends_of(batch: int) -> tuple[str, str]:
            found = log.range_of(batch)
            return found.start_offsets, found.end_offsets

        return FilesWatch(
            spark=spark,
            declaration=plan.declaration,
            settings=self.context.settings,
            checkpoint=self.context.checkpoint,
            sources=plan.sources,
            ends_of=ends_of,
            sightings=self.context.controls.sightings,
        )

    def stops_at_once(self, *, may_publish: bool) -> bool:
        """When the run may not publish any more: what is left of the batch would be refused, or reach a sink beside the
        next run's. Otherwise the running batch is waited for, and the next one is turned away at the gate."""
        return not may_publish

    def take(self, number: int) -> DeliveredBatch | None:
        """What was delivered of a batch, once; none when this run did not deliver it."""
        return self.handover.take(number)


def deliver_batches(plan: StreamPlan, context: DeliveryContext, writer: BatchWriter) -> BatchDelivery:
    """The delivery of a plan's batches by a writer.

    Late rows are counted, except in the output mode `complete`, which keeps every group for ever and takes every row.
    """
    late_watermark = LateWatermark(spark=plan.rows.sparkSession, stream=context.run.stream, run_id=context.run.run_id)
    if plan.output_mode != "complete":
        plan = replace(plan, rows=count_late(plan.rows, late_watermark))
    handover = BatchHandover(gate=context.controls.gate, writer=writer)
    return BatchDelivery(plan=plan, context=context, handover=handover, late_watermark=late_watermark)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDelivery:
    """The delivery of a stream whose trigger hands records on one by one.

    sink: the topic that the records go to. checkpoint: the folder.
    """

    plan: StreamPlan
    sink: KafkaSink
    checkpoint: str
    failure: Exception | None = None

    def at_work(self) -> AbstractContextManager[None]:
        """There is nothing to recover and nothing to finish."""
        return nullcontext()

    def start(self, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Start the query with the trigger of its declaration: Python's writer has no word for real-time mode."""
        declared = self.plan.declaration.trigger
        writer = self._writer()
        _log.info("records go to %s one by one, at least once", self.sink.place)
        if declared is not None and declared.real_time is not None:
            java_trigger = jvm_of(self.plan.rows.sparkSession).org.apache.spark.sql.streaming.Trigger
            milliseconds = round(declared.real_time.total_seconds() * 1000)
            writer._jwrite = writer._jwrite.trigger(java_trigger.RealTime(milliseconds))
            return writer.start()
        if declared is not None and declared.continuous_processing is not None:
            writer = writer.trigger(continuous=duration_text(declared.continuous_processing))
        return writer.start()

    def stops_at_once(self, *, may_publish: bool) -> bool:
        """Always: records follow each other without a pause."""
        return True

    def take(self, number: int) -> DeliveredBatch | None:
        """A batch whose rows only Spark's report counts."""
        return DeliveredBatch(rows={}, counted_by_spark=self.sink.output)

    def _writer(self) -> DataStreamWriter:
        declaration = self.plan.declaration
        mode = declaration.outputs[self.sink.output].mode
        writer = self.sink.records(self.plan.rows).writeStream.queryName(declaration.stream).outputMode(mode)
        return writer.format("kafka").options(**self.sink.options()).option("checkpointLocation", self.checkpoint)


def record_sink(plan: StreamPlan) -> KafkaSink | None:
    """The topic that records go to one by one; none for a stream of batches."""
    if not plan.declaration.hands_on_records:
        return None
    return next((sink for sink in plan.sinks if isinstance(sink, KafkaSink)), None)


def choose_delivery(plan: StreamPlan, context: DeliveryContext) -> Delivery:
    """The delivery that a planned stream asks for.

    Raises
    ------
    DeliveryError, LakehouseError: when a table that Iceberg's own sink writes, or a sink that has a later batch than
        the checkpoint, does not let the run begin.
    LeaseLostError: when the run's lease is over before it begins to write directly.
    """
    if plan.direct_target is not None:
        return open_direct_delivery(plan, plan.direct_target, context)
    records_to = record_sink(plan)
    if records_to is not None:
        return RecordDelivery(plan=plan, sink=records_to, checkpoint=context.checkpoint)
    tables = open_staged_delivery(plan, context) if plan.targets else None
    if tables is not None and not plan.sinks:
        return deliver_batches(plan, context, tables)
    _require_newest(plan, context)
    kept = _kept_sink_rows(plan, context) if tables is not None else None
    sinks = SinkDelivery(run=context.run, tables=tables, sinks=plan.sinks, lease=context.controls.lease, kept=kept)
    return deliver_batches(plan, context, sinks)


def _require_newest(plan: StreamPlan, context: DeliveryContext) -> None:
    """Refuse a checkpoint that has not delivered a batch which a sink has: another one would be taken for that."""
    key, spark = context.run.key(context.newest_delivered), plan.rows.sparkSession
    for sink in plan.sinks:
        if not isinstance(sink, FilesSink | DeltaSink):
            continue
        try:
            found = sink.newest_behind(spark, key)
        except (PySparkException, Py4JJavaError) as error:
            raise DeliveryError(
                f"{sink.place} cannot be looked at: {first_line(error)}.",
                next_step="See that its storage answers, and that the deployment's connection may read it.",
            ) from error
        if found is not None:
            shows = f"The output {sink.output}, {sink.place}, shows batch {key.generation}:{found}"
            raise older_checkpoint(plan.declaration.stream, planned=key.batch, shows=shows)


def _kept_sink_rows(plan: StreamPlan, context: DeliveryContext) -> KeptSinkRows | None:
    """What keeps the rows of sinks beside tables; none when a batch that runs again is the same without it."""
    if not any(map(may_change, plan.declaration.inputs.values())):
        return None
    sinks = frozenset(sink.output for sink in plan.sinks)
    return KeptSinkRows(spark=plan.rows.sparkSession, checkpoint=context.checkpoint, sinks=sinks)
