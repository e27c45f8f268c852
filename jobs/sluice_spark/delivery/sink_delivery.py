"""Delivers the batches of a stream that writes anywhere but into Iceberg tables, alone or beside such tables.

A batch is computed once and kept. The tables come first, by the delivery that knows them: what they refuse never
reaches another system. Then every sink takes its rows under the batch's key. A driver that dies in between leaves a
batch that Spark runs again: the tables tell that they hold it, and the sinks are written again, which is harmless by
what each sink promises.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation

from sluice.errors import DeliveryError
from sluice.ledger.records.stream_batch import PublicationKey
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.batch_gate import BatchGate
from sluice_spark.delivery.staged_delivery import DeliveredBatch
from sluice_spark.query.united_outputs import part, row_counts
from sluice_spark.session.spark_errors import first_line
from sluice_spark.sinks.port import Sink

_log = logging.getLogger(__name__)


class Delivery(Protocol):
    """What a run hands its batches to."""

    @property
    def failure(self) -> Exception | None:
        """The error that ended the query; Spark only passes its text on."""
        ...

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Deliver a batch; for `foreachBatch`."""
        ...

    def take(self, number: int) -> DeliveredBatch | None:
        """What was delivered of a batch, once; none when it was not delivered by this run."""
        ...


@dataclass(slots=True, kw_only=True)
class SinkDelivery:
    """Delivers the batches of one run into sinks, after its tables.

    stream, generation: whose batches they are.
    tables: delivers what goes into Iceberg tables; none when nothing does.
    sinks: where the rest goes, in the order in which it is written.
    gate: lets batches in.
    lease: the run's; asked before each output is written.
    """

    stream: str
    generation: int
    tables: Delivery | None
    sinks: Sequence[Sink]
    gate: BatchGate
    lease: HeldLease
    failure: Exception | None = None
    _delivered: dict[int, DeliveredBatch] = field(default_factory=dict)

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Deliver a batch; for `foreachBatch`."""
        self.gate.enter()
        try:
            key = PublicationKey(stream=self.stream, generation=self.generation, batch=number)
            self._delivered[number] = self._deliver(batch, key)
        except Exception as error:
            # Kept whole: the query's own exception carries nothing but its text.
            self.failure = self.tables.failure if self.tables is not None and self.tables.failure else error
            raise

    def take(self, number: int) -> DeliveredBatch | None:
        """What was delivered of a batch, once; none when it was not delivered by this run."""
        return self._delivered.pop(number, None)

    def _deliver(self, batch: DataFrame, key: PublicationKey) -> DeliveredBatch:
        counts = Observation()
        kept = batch.observe(counts, *row_counts(batch, {sink.output: sink for sink in self.sinks})).persist()
        try:
            # Counted here: Spark reports no observation from a write into Kafka or Delta.
            kept.write.format("noop").mode("overwrite").save()
            rows = {output: int(count) for output, count in counts.get.items()}
            of_tables = self._deliver_tables(kept, key.batch)
            for sink in self.sinks:
                if rows[sink.output] > 0:
                    self.lease.require()
                    _write(part(kept, sink.output), sink, key)
        finally:
            kept.unpersist()
        if of_tables is None:
            return DeliveredBatch(rows=rows, is_replay=False)
        return DeliveredBatch(rows={**of_tables.rows, **rows}, is_replay=of_tables.is_replay)

    def _deliver_tables(self, kept: DataFrame, number: int) -> DeliveredBatch | None:
        if self.tables is None:
            return None
        self.tables(kept, number)
        return self.tables.take(number)


def _write(rows: DataFrame, sink: Sink, key: PublicationKey) -> None:
    try:
        sink.write(rows, key=key)
    except (PySparkException, Py4JJavaError) as error:
        raise DeliveryError(
            f"Batch {key} cannot be written into {sink.place}, the output {sink.output}: {first_line(error)}."
        ) from error
