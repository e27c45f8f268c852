"""Turns Spark's progress report of a batch into an observation, and hands it over."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.ledger.batches import BatchObservation
from sluice.record_values.block_facts import WrittenAs
from sluice_spark.delivery.delivery_port import DeliveredBatch, DeliveringRun
from sluice_spark.query.observed_rows import AGGREGATIONS, LATE_METRIC
from sluice_spark.query.stream_inputs import rejected_files, undeclared_fields, written_as
from sluice_spark.session.item_sessions import in_this_context
from sluice_spark.session.jvm import jvm_of
from sluice_spark.sources.input_decoding import INPUT_METRIC, REJECTED_METRIC, TOMBSTONES_METRIC

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_log = logging.getLogger(__name__)

_NO_WATERMARK = datetime(1970, 1, 1, tzinfo=UTC)
"""Spark's watermark before it has seen an event time."""

TOMBSTONES = "tombstones"
"""The place in the skipped input of a batch of records that were left out because they have no value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchOrigin:
    """The run whose batches are observed.

    sources: the input of each source, in Spark's order.
    judges_files: whether the metrics of the inputs see every record, so that a file without a good one is known.
    """

    run: DeliveringRun
    sources: Sequence[str]
    judges_files: bool = False


def observe_batch(progress: Mapping[str, Any], delivered: DeliveredBatch, origin: BatchOrigin) -> BatchObservation:
    """One batch as the ledger records it.

    Parameters
    ----------
    progress: Spark's progress report, parsed from its JSON.
    delivered: what the delivery counted.

    Source: https://spark.apache.org/docs/4.1.0/api/scala/org/apache/spark/sql/streaming/StreamingQueryProgress.html
    """
    operators = progress["stateOperators"]
    return BatchObservation(
        key=origin.run.key(progress["batchId"]),
        run_id=origin.run.run_id,
        started_at=datetime.fromisoformat(progress["timestamp"]),
        duration_ms=progress["durationMs"].get("triggerExecution", 0),
        input_rows=_input_rows(progress),
        published_rows=_published_rows(progress, delivered),
        refused_rows=delivered.rows.get(QUARANTINE_OUTPUT, 0),
        late_rows=_late_rows(progress),
        duplicate_rows=sum(operator["customMetrics"].get("numDroppedDuplicateRows", 0) for operator in operators),
        watermark=_watermark(progress),
        start_offsets=_offsets(progress, origin.sources, "startOffset"),
        end_offsets=_offsets(progress, origin.sources, "endOffset"),
        snapshot_ids={},  # the publication knows them
        durations_ms=progress["durationMs"],
        skipped_input={name: {TOMBSTONES: rows} for name, rows in _tombstones(progress).items()},
        state_rows=_sum_over(operators, "numRowsTotal"),
        state_bytes=_sum_over(operators, "memoryUsedBytes"),
        rejected_files=rejected_files(progress) if origin.judges_files else (),
        undeclared_fields=undeclared_fields(progress),
        rule_results=delivered.rule_results,
    )


def batch_line(batch: BatchObservation) -> str:
    """The one line of the driver's log about a batch."""
    parts = [f"{batch.input_rows} in"]
    parts += [f"{rows} {output}" for output, rows in batch.published_rows.items()]
    others = (("refused", batch.refused_rows), ("late", batch.late_rows), ("duplicate", batch.duplicate_rows))
    parts += [f"{rows} {word}" for word, rows in others if rows]
    parts.append(f"{batch.duration_ms / 1000:.2f} s")
    if batch.watermark is not None:
        parts.append(f"watermark {batch.watermark:%Y-%m-%d %H:%M}")
    return f"batch {batch.key.batch}: {', '.join(parts)}"


class _ReportsAsJson(JStreamingQueryListener):
    """The listener that Spark calls. PySpark reads a progress report field by field from the JVM, which takes 245 calls
    and 60 ms of each batch on two busy cores; its JSON holds the same and takes two calls.
    """

    def onQueryProgress(self, jevent: JavaObject) -> None:  # noqa: N802  # Spark's name
        """Pass a report on as PySpark would."""
        progress = json.loads(jevent.progress().json())
        self.pylistener.onQueryProgress(QueryProgressEvent.fromJson({"progress": progress}))


class ProgressListener(StreamingQueryListener):
    """Observes every delivered batch and hands the observation over. It never raises and never waits, because Spark's
    events queue up behind it.

    Parameters
    ----------
    spark: the session of the queries that it is added to.
    origin: whose batches they are.
    take_delivered: returns what the delivery counted of a batch; none for a progress report without a batch.
    hand_over: takes an observation, at once.
    see_written: takes what the values of a batch were written as, by input, and the number of the batch, at once.
    """

    def __init__(
        self,
        spark: SparkSession,
        origin: BatchOrigin,
        *,
        take_delivered: Callable[[int], DeliveredBatch | None],
        hand_over: Callable[[BatchObservation], None],
        see_written: Callable[[Mapping[str, WrittenAs], str], None],
    ) -> None:
        self._spark = spark
        self._origin = origin
        self._take_delivered = take_delivered
        self._observe = in_this_context(self._observe_progress)  # Spark calls it on a thread of its own
        self._hand_over = hand_over
        self._see_written = see_written
        self.terminated = threading.Event()

    @cached_property
    def _jlistener(self) -> JavaObject:
        """The listener that Spark is given, for PySpark's `addListener` and `removeListener`."""
        return jvm_of(self._spark).PythonStreamingQueryListenerWrapper(_ReportsAsJson(self))

    def release(self) -> None:
        """Let go of the listener that Spark was given, once it is removed.

        Java's object keeps this one, and this one keeps Java's: neither collector sees the whole circle, and with it
        everything that a run has planned and opened would stay.
        """
        self.__dict__.pop("_jlistener", None)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802  # Spark's name
        """There is nothing to observe yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802  # Spark's name
        """Observe a batch."""
        self._observe(event)

    def _observe_progress(self, event: QueryProgressEvent) -> None:
        try:
            progress = json.loads(event.progress.json)
            delivered = self._take_delivered(progress["batchId"])
            if delivered is None:
                return
            batch = observe_batch(progress, delivered, self._origin)
            _log.info("%s", batch_line(batch))
            self._hand_over(batch)
            self._see_written(written_as(progress), batch.key.number)
        except Exception:  # noqa: BLE001  # a defect here must not reach Spark's thread; the data is safe without this record
            _log.exception("a batch could not be observed")

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802  # Spark's name
        """An idle trigger has no batch."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802  # Spark's name
        """Note that all progress of the query was reported: Spark reports in order."""
        self.terminated.set()


def _sum_over(operators: Sequence[Mapping[str, Any]], name: str) -> int | None:
    """A figure of all stateful operators together; none for a query without state."""
    return sum(operator.get(name, 0) for operator in operators) if operators else None


def _input_rows(progress: Mapping[str, Any]) -> int:
    observed = progress.get("observedMetrics", {})
    ours = (metric for name, metric in observed.items() if name.startswith((INPUT_METRIC, REJECTED_METRIC)))
    counts = [metric["rows"] for metric in ours if "rows" in metric]
    return sum(counts) if counts else progress["numInputRows"] - sum(_tombstones(progress).values())


def _tombstones(progress: Mapping[str, Any]) -> dict[str, int]:
    """The records without a value that were left out, by input."""
    observed = progress.get("observedMetrics", {})
    counts = {
        name.removeprefix(TOMBSTONES_METRIC): int(metric["rows"])
        for name, metric in observed.items()
        if name.startswith(TOMBSTONES_METRIC)
    }
    return {name: rows for name, rows in counts.items() if rows}


def _late_rows(progress: Mapping[str, Any]) -> int:
    """Late rows, once for each operator that dropped them. An aggregation drops groups, so its rows are counted below
    it; where that is impossible, its own count is used.
    """
    observed = progress.get("observedMetrics", {})
    counted: list[int] = [metric["rows"] for name, metric in observed.items() if name.startswith(LATE_METRIC)]
    others: list[int] = [
        operator["numRowsDroppedByWatermark"]
        for operator in progress["stateOperators"]
        if not (counted and operator["operatorName"] in AGGREGATIONS)
    ]
    return sum(counted) + sum(others)


def _published_rows(progress: Mapping[str, Any], delivered: DeliveredBatch) -> dict[str, int]:
    if delivered.counted_by_spark is not None:
        return {delivered.counted_by_spark: progress["sink"]["numOutputRows"]}
    return {name: rows for name, rows in delivered.rows.items() if name != QUARANTINE_OUTPUT}


def _watermark(progress: Mapping[str, Any]) -> datetime | None:
    text = progress.get("eventTime", {}).get("watermark")
    watermark = datetime.fromisoformat(text) if text is not None else _NO_WATERMARK
    return watermark if watermark > _NO_WATERMARK else None


def _offsets(progress: Mapping[str, Any], sources: Sequence[str], which: str) -> dict[str, Any]:
    found = {}
    for index, source in enumerate(progress["sources"]):
        name = sources[index] if index < len(sources) else f"source {index}"
        found[name] = source.get(which)
    return found
