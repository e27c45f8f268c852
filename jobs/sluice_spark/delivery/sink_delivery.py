"""Delivers the batches of a stream that writes anywhere but into Iceberg tables, alone or beside such tables.

A batch is computed once and kept. The tables are written first: a batch that they refuse never reaches another system.
Then every sink writes its rows under the key of the batch. When a driver dies in between, Spark runs the batch again:
the tables already hold it, and the sinks are written again, which the promise of each sink allows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation

from sluice.errors import DeliveryError
from sluice.ledger.records.stream_batch import PublicationKey
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.batch_delivery import BatchWriter
from sluice_spark.delivery.delivery_context import DeliveringRun
from sluice_spark.delivery.delivery_port import DeliveredBatch
from sluice_spark.query.united_outputs import part, row_counts
from sluice_spark.session.spark_errors import first_line
from sluice_spark.sinks.port import Sink


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDelivery:
    """Writes the batches of one run into sinks, after its tables.

    tables: writes the outputs that are Iceberg tables; none when there is no such output.
    sinks: the other outputs, in the order in which they are written.
    lease: the run's; it is asked before each output is written.
    """

    run: DeliveringRun
    tables: BatchWriter | None
    sinks: Sequence[Sink]
    lease: HeldLease

    def at_work(self) -> AbstractContextManager[None]:
        """What the tables do around a run; sinks have nothing to recover."""
        return self.tables.at_work() if self.tables is not None else nullcontext()

    def deliver(self, rows: DataFrame, number: int) -> DeliveredBatch:
        """Compute a batch once and write it everywhere.

        Raises
        ------
        LeaseLostError: when the run may not write any more.
        DeliveryError: when an output cannot be written.
        """
        counts = Observation()
        kept = rows.observe(counts, *row_counts(rows, {sink.output: sink for sink in self.sinks})).persist()
        try:
            # Counted here: Spark reports no observation from a write into Kafka or Delta.
            kept.write.format("noop").mode("overwrite").save()
            of_sinks = {output: int(count) for output, count in counts.get.items()}
            in_tables = self.tables.deliver(kept, number) if self.tables is not None else DeliveredBatch(rows={})
            if in_tables.is_rejected:
                of_sinks = dict.fromkeys(of_sinks, 0)
            else:
                self._write_sinks(kept, of_sinks, self.run.key(number))
        finally:
            kept.unpersist()
        return replace(in_tables, rows={**in_tables.rows, **of_sinks})

    def _write_sinks(self, kept: DataFrame, counted: Mapping[str, int], key: PublicationKey) -> None:
        for sink in self.sinks:
            if counted[sink.output] > 0 or sink.replaces:
                self.lease.require()
                _write(part(kept, sink.output), sink, key)


def _write(rows: DataFrame, sink: Sink, key: PublicationKey) -> None:
    try:
        sink.write(rows, key=key)
    except (PySparkException, Py4JJavaError) as error:
        raise DeliveryError(
            f"Batch {key} cannot be written into {sink.place}, the output {sink.output}: {first_line(error)}."
        ) from error
