"""Runs the triggers that hand records on one by one: continuous processing and real-time mode, from Kafka to Kafka.

There is no batch to deliver, so Spark's own Kafka sink writes, at least once. In real-time mode Spark plans batches all
the same, some seconds long, and reports what went through each. Continuous processing reports nothing: its runs have a
heartbeat and a checkpoint, and no batches in the ledger.

A task of either mode holds its core for as long as the query runs, one task for each partition of the topics: with
fewer cores than partitions Spark never comes to read some of them.

Sources: https://spark.apache.org/docs/4.1.0/streaming/performance-tips.html#continuous-processing, and
`org.apache.spark.sql.streaming.Trigger.RealTime` of Spark 4.1, which has no name in Python yet.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark.sql.streaming.query import StreamingQuery

from sluice.declarations.values import duration_text
from sluice_spark.delivery.staged_delivery import DeliveredBatch
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.session.jvm import jvm_of
from sluice_spark.sinks.kafka import KafkaSink

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordDelivery:
    """The counts of batches that Spark's own sink delivers: Spark tells them itself, in the report of the batch."""

    failure: Exception | None = None

    def __call__(self, batch: object, number: int) -> None:
        """Never called: a query of this kind hands no batch over."""
        raise AssertionError(f"batch {number} was handed over by a query without batches")

    def take(self, number: int) -> DeliveredBatch | None:
        """A batch whose counts are in Spark's report."""
        return DeliveredBatch(rows={}, is_replay=False)


def record_sink(plan: StreamPlan) -> KafkaSink | None:
    """Where records go one by one; none for a stream of batches."""
    if not plan.declaration.hands_on_records:
        return None
    return next((sink for sink in plan.sinks if isinstance(sink, KafkaSink)), None)


def start_records(plan: StreamPlan, sink: KafkaSink, *, checkpoint: str) -> StreamingQuery:
    """Start the query of a stream whose trigger hands records on one by one."""
    trigger = plan.declaration.trigger
    rows = sink.records(plan.rows)
    mode = plan.declaration.outputs[sink.output].mode
    writer = rows.writeStream.queryName(plan.declaration.stream).outputMode(mode)
    writer = writer.format("kafka").options(**sink.options()).option("checkpointLocation", checkpoint)
    _log.info("records go to %s one by one, at least once", sink.place)
    if trigger is not None and trigger.real_time is not None:
        java_trigger = jvm_of(rows.sparkSession).org.apache.spark.sql.streaming.Trigger
        milliseconds = round(trigger.real_time.total_seconds() * 1000)
        writer._jwrite = writer._jwrite.trigger(java_trigger.RealTime(milliseconds))
        return writer.start()
    if trigger is not None and trigger.continuous_processing is not None:
        writer = writer.trigger(continuous=duration_text(trigger.continuous_processing))
    return writer.start()
