"""Runs the query of a stream with `delivery: direct`: Iceberg's own streaming sink writes, Sluice watches.

No batch is handed over, so nothing of ours stands in a batch's way, and nothing of ours can hold one back. What the
ledger is to know is read behind each batch from the table object that the sink itself has just committed through; it
lies in the driver's memory, so no request goes anywhere. Decision 0024 says what is promised.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.streaming.query import StreamingQuery

from sluice.declarations.promises import DIRECT_PROMISE
from sluice.errors import DivergedError
from sluice.ledger.records.stream_batch import BatchObservation, PublicationKey
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.direct_history import ENTRIES, DirectBatch, DirectWriter, read_direct_batch, stale
from sluice_spark.delivery.batch_recording import Recording
from sluice_spark.delivery.offset_log import OffsetLog
from sluice_spark.delivery.staged_delivery import DeliveredBatch
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.session.identifiers import quoted
from sluice_spark.session.jvm import jvm_of
from sluice_spark.sinks.iceberg import IcebergTarget

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class DirectDelivery:
    """The batches that Iceberg's own sink makes visible, as they are seen behind it. Used by Spark's listener thread.

    target: where they go. writer: the run.
    on_failure: is called when what is seen must end the run; `failure` then says why.
    unrecorded: what earlier runs made visible, and the checkpoint has as done, and the ledger does not know.
    reached: is told `PUBLISHED` when a batch is seen in the table.
    """

    target: IcebergTarget
    writer: DirectWriter
    recording: Recording
    on_failure: Callable[[], None]
    unrecorded: Sequence[DirectBatch] = ()
    reached: Reached = unnoticed
    failure: Exception | None = None
    _table: JavaObject | None = None
    _seen: set[int] = field(default_factory=set)
    _has_written: bool = False

    def __call__(self, batch: DataFrame, number: int) -> None:
        """Never called: a query of this kind hands no batch over."""
        raise AssertionError(f"batch {number} was handed over by a query that writes by itself")

    def start(self, plan: StreamPlan, *, checkpoint: str, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Start the query. How many files a task keeps open is the table's own setting, `write.spark.fanout.enabled`:
        unset, Iceberg keeps one for each partition unless the table is sorted, so that no batch is sorted for it.
        """
        sources = plan.sources
        plan = replace(plan, rows=in_order_of(plan.rows, self.target))
        properties = {f"snapshot-property.{name}": value for name, value in self.writer.properties().items()}
        writer = plan.writer(checkpoint=checkpoint).options(**properties).trigger(**trigger)
        _log.info("%s is delivered directly: %s", self.target.declared.table, DIRECT_PROMISE)
        query = writer.format("iceberg").toTable(self.target.identifier)
        self._table = query._jsq.streamingQuery().sink().table()
        self._recover(OffsetLog(spark=plan.rows.sparkSession, query_name=query.name, sources=sources, query=query))
        return query

    def take(self, number: int) -> DeliveredBatch | None:
        """What the table holds of a batch that Spark has reported. Of one that is not there any more nobody but Spark
        has counted the rows.
        """
        found = self._find(number)
        if found is None:
            self.recording.published(number, {})
            return DeliveredBatch(rows={}, is_replay=False)
        self.reached(CrashPoint.PUBLISHED)
        self.recording.published(number, {self.target.output: found.snapshot_id})
        is_replay = found.run_id != self.writer.run_id
        return DeliveredBatch(rows={self.target.output: found.rows}, is_replay=is_replay)

    def _recover(self, offsets: OffsetLog) -> None:
        if self.unrecorded:
            _log.info("recording %d batches that an earlier run has made visible", len(self.unrecorded))
        for batch in self.unrecorded:
            covered = offsets.range_of(batch.batch)
            observation = BatchObservation(
                key=PublicationKey(stream=self.writer.stream, generation=batch.generation, batch=batch.batch),
                run_id=batch.run_id,
                started_at=batch.committed_at,
                duration_ms=0,
                input_rows=batch.rows,
                published_rows={self.target.output: batch.rows},
                watermark=covered.watermark,
                start_offsets=json.loads(covered.start_offsets),
                end_offsets=json.loads(covered.end_offsets),
                snapshot_ids={self.target.output: batch.snapshot_id},
            )
            self.recording.recovered(observation)

    def _find(self, number: int) -> DirectBatch | None:
        """The batch in the table's history, as far as it is new since the last look; and what else is new there."""
        found: DirectBatch | None = None
        new: list[DirectBatch] = []
        for batch in self._history():
            is_of_earlier_runs = not self._seen and found is not None and batch.position < found.position
            if batch.snapshot_id in self._seen or is_of_earlier_runs:
                break
            new.append(batch)
            if batch.position == (self.writer.generation, number) and (found is None or batch.token > found.token):
                found = batch
        for batch in reversed(new):
            self._seen.add(batch.snapshot_id)
            self._judge(batch)
        return found

    def _judge(self, batch: DirectBatch) -> None:
        """See who wrote a batch, in the order of history: after this run's first one nobody else's may come."""
        if batch.token == self.writer.token:
            self._has_written = True
        elif batch.token > self.writer.token:
            self._fail(stale(self.writer, batch, target=self.target.declared.table))
        elif self._has_written:
            self._fail(
                DivergedError(
                    f"{self.target.declared.table} got batch {batch.batch} from run {batch.run_id}, token "
                    f"{batch.token}, after this run, token {self.writer.token}, had begun: an old driver was still at "
                    f"work. It is snapshot {batch.snapshot_id}.",
                    next_step="See that no old driver lives; if the batch is there twice, take the rows of that "
                    "snapshot out. Then start the stream.",
                )
            )

    def _history(self) -> Iterator[DirectBatch]:
        """The batches in the history of the sink's own table object, the newest first."""
        table, names = self._table, self.target.names
        snapshot = table.currentSnapshot() if table is not None else None
        while snapshot is not None:
            summary = snapshot.summary()
            found = read_direct_batch(
                {name: value for name in ENTRIES if (value := summary.get(name)) is not None},
                snapshot_id=int(snapshot.snapshotId()),
                committed_at_ms=int(snapshot.timestampMillis()),
                stream=names.stream,
                output=names.output,
            )
            if found is not None:
                yield found
            parent = snapshot.parentId()
            snapshot = table.snapshot(parent) if table is not None and parent is not None else None

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
            _log.error("%s", error)
            self.on_failure()


def in_order_of(rows: DataFrame, target: IcebergTarget) -> DataFrame:
    """The rows with the table's columns in the table's order, which Iceberg's sink insists on; a null in a required
    column stops the batch, as it does in every write of Spark into a table.
    """
    spark = rows.sparkSession
    jvm = jvm_of(spark)
    nothing = jvm.org.apache.spark.api.python.PythonUtils.toSeq([])
    output = rows._jdf.queryExecution().analyzed().output()
    given = {output.apply(index).name(): output.apply(index) for index in range(output.size())}

    def column(name: str, *, is_required: bool) -> Column:
        if not (is_required and given[name].nullable()):
            return fn.col(quoted(name))
        checked = jvm.org.apache.spark.sql.catalyst.expressions.objects.AssertNotNull(given[name], nothing)
        return ClassicColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(checked)).alias(name)

    table = spark.table(target.identifier).schema
    return rows.select(*(column(field.name, is_required=not field.nullable) for field in table))
