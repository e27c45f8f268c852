"""Delivers the batches of a stream that writes anywhere but into Iceberg tables, alone or beside such tables.

A batch is computed once and kept. The tables are written first: a batch that they refuse never reaches another system.
Then every sink writes its rows under the key of the batch. When a driver dies in between, Spark runs the batch again:
the tables already hold it, and the sinks are written again, which the promise of each sink allows.

A static input may have changed since then: computed again, a row would be in the table and not in the sink, or differ.
So the rows of the sinks are written into the checkpoint before the first table is staged (decision 0062), and a batch
that runs again reads them once its tables no longer change.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Observation, SparkSession

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.source_declarations import IcebergSource
from sluice.errors import DeliveryError
from sluice.ledger.batches import PublicationKey
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.delivery_port import DeliveredBatch, DeliveringRun
from sluice_spark.delivery.staged_delivery import StagedDelivery
from sluice_spark.query.static_copies import CopyFolder, is_copied
from sluice_spark.query.stream_outputs import only, part, row_counts
from sluice_spark.session.jvm import first_line
from sluice_spark.sinks import Sink

_log = logging.getLogger(__name__)

SINK_ROWS = "sink_rows"
"""The folder of a checkpoint with the rows of one batch. Spark does not know it."""


def may_change(declared: InputDeclaration) -> bool:
    """Whether a batch that runs again may see another state of a static input."""
    source = declared.declared_source.source
    is_fixed = isinstance(source, IcebergSource) and (source.snapshot_id, source.as_of) != (None, None)
    return not declared.is_stream and not is_copied(declared) and not is_fixed


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptSinkRows:
    """The rows of a stream's sinks. checkpoint: its folder. sinks: the outputs that are no tables."""

    spark: SparkSession
    checkpoint: str
    sinks: Collection[str]

    def keep(self, rows: DataFrame, number: int) -> None:
        """Write the rows of a batch; those of earlier batches and computations are removed."""
        folder = self._folder(rows)
        folder.keep_only(folder.write(only(rows, self.sinks), number, now=datetime.now(UTC)))

    def find(self, rows: DataFrame, number: int) -> DataFrame | None:
        """The rows of a batch as they were kept; none when they were not, and the batch is to be computed again.

        Parameters
        ----------
        rows: the batch as it is computed now, whose columns they have.
        """
        folder = self._folder(rows)
        kept = [copy for copy in folder.complete() if copy.batch == number]
        if not kept:
            _log.warning(
                "batch %d is in its tables, and what it brings to %s was not kept: it is computed again, and differs "
                "where a static input has changed since",
                number,
                ", ".join(sorted(self.sinks)),
            )
            return None
        newest = max(kept, key=lambda copy: copy.made_at)
        return self.spark.read.schema(rows.schema).parquet(newest.path)

    def _folder(self, rows: DataFrame) -> CopyFolder:
        content = hashlib.sha256(rows.schema.json().encode()).hexdigest()[:16]
        return CopyFolder(spark=self.spark, location=f"{self.checkpoint.rstrip('/')}/{SINK_ROWS}", content=content)


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkDelivery:
    """Writes the batches of one run into sinks, after its tables.

    tables: writes the outputs that are Iceberg tables; none when there is no such output.
    sinks: the other outputs, in the order in which they are written.
    lease: the run's; it is asked before each output is written.
    kept: the rows of the sinks beside such tables; none when a batch that is computed again brings the same.
    """

    run: DeliveringRun
    tables: StagedDelivery | None
    sinks: Sequence[Sink]
    lease: HeldLease
    kept: KeptSinkRows | None = None

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
        computed = rows.observe(counts, *self._row_counts(rows)).persist()
        try:
            # Counted here: Spark reports no observation from a write into Kafka or Delta.
            computed.write.format("noop").mode("overwrite").save()
            of_sinks = {output: int(count) for output, count in counts.get.items()}
            for_sinks = self._kept(computed, number)
            if for_sinks is not None:
                of_sinks = for_sinks.agg(*self._row_counts(for_sinks)).collect()[0].asDict()
            in_tables = self.tables.deliver(computed, number) if self.tables is not None else DeliveredBatch(rows={})
            if in_tables.is_rejected:
                of_sinks = dict.fromkeys(of_sinks, 0)
            else:
                self._write_sinks(computed if for_sinks is None else for_sinks, of_sinks, self.run.key(number))
        finally:
            computed.unpersist()
        return replace(in_tables, rows={**in_tables.rows, **of_sinks})

    def _row_counts(self, rows: DataFrame) -> list[Column]:
        return row_counts(rows, {sink.output: sink for sink in self.sinks})

    def _kept(self, computed: DataFrame, number: int) -> DataFrame | None:
        """What an earlier driver kept of a batch that is settled in its tables; otherwise this one is kept."""
        if self.tables is None or self.kept is None:
            return None
        if self.tables.is_settled(number):
            return self.kept.find(computed, number)
        self.lease.require()
        self.kept.keep(computed, number)
        return None

    def _write_sinks(self, rows: DataFrame, counted: Mapping[str, int], key: PublicationKey) -> None:
        for sink in self.sinks:
            if counted[sink.output] > 0 or sink.replaces:
                self.lease.require()
                _write(part(rows, sink.output), sink, key)


def _write(rows: DataFrame, sink: Sink, key: PublicationKey) -> None:
    try:
        sink.write(rows, key=key)
    except (PySparkException, Py4JJavaError) as error:
        raise DeliveryError(
            f"Batch {key} cannot be written into {sink.place}, the output {sink.output}: {first_line(error)}."
        ) from error
