"""Starts a query whose batches Spark hands over (`foreachBatch`), and keeps what was delivered of each batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from sluice_spark.delivery.delivery_port import BatchGate, DeliveredBatch, DeliveryContext
from sluice_spark.query.lateness import LateWatermark, count_late
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.session.garbage import swept


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
        looked_at = self.context.controls.skipped_input.ahead_of(self.handover)
        deliver = swept(self.late_watermark.ahead_of(looked_at))
        writer = self.plan.writer(checkpoint=self.context.checkpoint)
        return writer.foreachBatch(deliver).trigger(**trigger).start()

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
