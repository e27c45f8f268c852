"""Delivers the batches of a stream with `delivery: direct`: Iceberg's own streaming sink writes them.

No batch is handed over, so Sluice neither delays a batch nor can hold one back. What the ledger records is read after
each batch from the table object through which the sink has just committed; it lies in the driver's memory, so no
request is sent. What this delivery promises: decision 0024.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.classic.column import Column as ClassicColumn
from pyspark.sql.streaming.query import StreamingQuery

from sluice.declarations.checks.combinations import DIRECT_PROMISE
from sluice.errors import DivergedError
from sluice.ledger.batches import BatchObservation, PublicationKey, newest_batch
from sluice.publication.crash_points import CrashPoint
from sluice.publication.direct_history import (
    ENTRIES,
    DirectBatch,
    DirectWriter,
    direct_batches,
    left_driver,
    read_direct_batch,
    recorded_snapshot,
    require_direct_start,
    stale,
)
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table
from sluice_spark.delivery.delivery_port import DeliveredBatch, DeliveryContext, OffsetLog
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.session.columns import quoted
from sluice_spark.session.jvm import jvm_of
from sluice_spark.sinks.iceberg import IcebergTarget

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class DirectDelivery:
    """The batches that Iceberg's own sink makes visible. Spark's listener thread reads them behind the sink.

    target: the table. writer: the run, as its snapshots name it.
    unrecorded: the batches that earlier runs made visible, that the checkpoint has committed and the ledger lacks.
    """

    plan: StreamPlan
    context: DeliveryContext
    target: IcebergTarget
    writer: DirectWriter
    unrecorded: Sequence[DirectBatch] = ()
    failure: Exception | None = None
    _table: JavaObject | None = None
    _seen: set[int] = field(default_factory=set)
    _has_written: bool = False

    def at_work(self) -> AbstractContextManager[None]:
        """There is nothing to publish before the query or after it."""
        return nullcontext()

    def start(self, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Start the query. How many files a task keeps open is the table's own setting, `write.spark.fanout.enabled`:
        unset, Iceberg keeps one for each partition unless the table is sorted, so that no batch is sorted for it.
        """
        plan = replace(self.plan, rows=in_order_of(self.plan.rows, self.target))
        properties = {f"snapshot-property.{name}": value for name, value in self.writer.properties().items()}
        writer = plan.writer(checkpoint=self.context.checkpoint).options(**properties).trigger(**trigger)
        _log.info("%s is delivered directly: %s", self.target.declared.table, DIRECT_PROMISE)
        query = writer.format("iceberg").toTable(self.target.identifier)
        self._table = query._jsq.streamingQuery().sink().table()
        offsets = OffsetLog(spark=plan.rows.sparkSession, query_name=query.name, sources=self.plan.sources, query=query)
        self._record_unrecorded(offsets)
        return query

    def stops_at_once(self, *, may_publish: bool) -> bool:
        """When the run may not publish any more: there is no gate before Iceberg's sink, and a batch that is
        interrupted runs again, which the sink recognises."""
        return not may_publish

    def take(self, number: int) -> DeliveredBatch | None:
        """What the table holds of a batch that Spark has reported. Of a batch that is not there any more only Spark
        has counted the rows.
        """
        output = self.target.output
        found = self._find(number)
        if found is None and self._is_taken_for_another(number):
            return None
        if found is None:
            self.context.recording.published(self.context.run.key(number), {})
            return DeliveredBatch(rows={}, counted_by_spark=output)
        self.context.reached(CrashPoint.PUBLISHED)
        self.context.recording.published(self.context.run.key(number), {output: found.snapshot_id})
        return DeliveredBatch(rows={output: found.rows})

    def _record_unrecorded(self, offsets: OffsetLog) -> None:
        if self.unrecorded:
            _log.info("recording %d batches that an earlier run has made visible", len(self.unrecorded))
        for batch in self.unrecorded:
            self.context.recording.recovered(self._recovered(batch, offsets))

    def _recovered(self, batch: DirectBatch, offsets: OffsetLog) -> BatchObservation:
        """A batch as its snapshot shows it. Its offsets are left out when the checkpoint does not have them: Spark
        keeps those of the newest batches, and a batch of an earlier generation has another checkpoint."""
        observation = BatchObservation(
            key=PublicationKey(stream=self.writer.stream, generation=batch.generation, batch=batch.batch),
            run_id=batch.run_id,
            started_at=batch.committed_at,
            duration_ms=0,
            input_rows=batch.rows,
            published_rows={self.target.output: batch.rows},
            snapshot_ids={self.target.output: batch.snapshot_id},
        )
        if batch.generation != self.writer.generation or not offsets.holds(batch.batch):
            _log.warning("batch %s is recorded without its offsets: the checkpoint has none of it", observation.key)
            return observation
        covered = offsets.range_of(batch.batch)
        return replace(
            observation,
            watermark=covered.watermark,
            start_offsets=json.loads(covered.start_offsets),
            end_offsets=json.loads(covered.end_offsets),
        )

    def _find(self, number: int) -> DirectBatch | None:
        """The batch in the table's history since the last look; every other new batch there is judged too."""
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

    def _is_taken_for_another(self, number: int) -> bool:
        """Whether the sink took a batch for one of a generation that a continuation has left; then the run fails."""
        left = next((one for one in self._history() if one.is_of_query_left_by(self.writer)), None)
        if left is None or left.batch < number:
            return False
        self._fail(left_driver(self.writer, left, is_skipped=True, target=self.target.declared.table))
        return True

    def _judge(self, batch: DirectBatch) -> None:
        """Check who wrote a batch, in the order of history: after this run's first batch no other run may write."""
        if batch.token == self.writer.token:
            self._has_written = True
        elif batch.token > self.writer.token:
            self._fail(stale(self.writer, batch, target=self.target.declared.table))
        elif self._has_written:
            self._fail(
                DivergedError(
                    f"{self.target.declared.table} got batch {batch.batch} from run {batch.run_id}, token "
                    f"{batch.token}, after this run, token {self.writer.token}, had begun: an old driver was still "
                    f"running. It is snapshot {batch.snapshot_id}.",
                    next_step="Make sure that no old driver runs; if the batch is there twice, delete the rows of that "
                    "snapshot. Then start the stream.",
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
            self.context.controls.on_failure()


def open_direct_delivery(plan: StreamPlan, target: IcebergTarget, context: DeliveryContext) -> DirectDelivery:
    """The delivery by Iceberg's own sink, once the table lets this run begin.

    Raises
    ------
    StaleTokenError, RolledBackError, DivergedError: when the table's history does not let the run begin.
    LeaseLostError: when the run may not publish any more.
    """
    run, state = context.run, context.found
    writer = DirectWriter(
        stream=run.stream,
        output=target.output,
        generation=run.generation,
        run_id=run.run_id,
        token=run.token,
        query_id=state.query_id,
    )
    table = require_table(open_catalog(context.settings), target.declared.table)
    require_direct_start(
        table,
        writer,
        planned=context.newest_delivered,
        committed=state.newest_committed,
        continues_behind=context.generation.continues_behind,
        unfinished_since=context.unfinished_since,
        recorded=recorded_snapshot(context.ledger, run.stream, target.output, query_id=state.query_id),
    )
    unrecorded = _find_unrecorded(direct_batches(table, stream=run.stream, output=target.output), context)
    context.controls.lease.require()
    return DirectDelivery(plan=plan, context=context, target=target, writer=writer, unrecorded=unrecorded)


def _find_unrecorded(newest_first: Iterable[DirectBatch], context: DeliveryContext) -> tuple[DirectBatch, ...]:
    """The batches that the table holds and the checkpoint has committed, and that the ledger lacks, oldest first."""
    newest = newest_batch(context.ledger, context.run.stream)
    recorded = (newest.key.generation, newest.key.batch) if newest is not None else (0, -1)
    committed = (context.run.generation, context.found.newest_committed)
    later = takewhile(lambda batch: batch.position > recorded, newest_first)
    return tuple(reversed([batch for batch in later if batch.position <= committed]))


def in_order_of(rows: DataFrame, target: IcebergTarget) -> DataFrame:
    """The rows with the table's columns in the table's order, which Iceberg's sink requires. A null in a required
    column fails the batch, as in every write of Spark into a table.
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
