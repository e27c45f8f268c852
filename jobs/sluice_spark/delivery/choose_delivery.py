"""Chooses the way in which a stream delivers its batches, once for a run.

The shortest way stands here: record by record, from Kafka to Kafka, for the triggers continuous processing and
real-time mode. There is no batch to deliver, so Spark's own Kafka sink writes, at least once. Real-time mode still
plans batches, a few seconds long, and reports the rows of each. Continuous processing reports nothing: its runs have a
heartbeat and a checkpoint, and no batches in the ledger.

A task of either mode holds its core for as long as the query runs, one task for each partition of the topics: with
fewer cores than partitions Spark never reads some of them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice.declarations.scalar_types import duration_text
from sluice_spark.delivery.batch_delivery import deliver_batches
from sluice_spark.delivery.delivery_port import DeliveredBatch, Delivery, DeliveryContext
from sluice_spark.delivery.direct_delivery import open_direct_delivery
from sluice_spark.delivery.sink_delivery import KeptSinkRows, SinkDelivery, may_change
from sluice_spark.delivery.staged_delivery import open_staged_delivery
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.session.jvm import jvm_of
from sluice_spark.sinks.kafka import KafkaSink

_log = logging.getLogger(__name__)


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
    DeliveryError, LakehouseError: when a table that Iceberg's own sink writes does not let the run begin.
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
    kept = _kept_sink_rows(plan, context) if tables is not None else None
    sinks = SinkDelivery(run=context.run, tables=tables, sinks=plan.sinks, lease=context.controls.lease, kept=kept)
    return deliver_batches(plan, context, sinks)


def _kept_sink_rows(plan: StreamPlan, context: DeliveryContext) -> KeptSinkRows | None:
    """What keeps the rows of sinks beside tables; none when a batch that runs again is the same without it."""
    if not any(map(may_change, plan.declaration.inputs.values())):
        return None
    sinks = frozenset(sink.output for sink in plan.sinks)
    return KeptSinkRows(spark=plan.rows.sparkSession, checkpoint=context.checkpoint, sinks=sinks)
