"""Reads the offsets of a batch from the running query. The key and the offsets together identify a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.errors import CheckpointError
from sluice.publication.staged_batch import canonical_offsets

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """The offsets that a batch covers, and the watermark it starts with.

    start_offsets, end_offsets: from `canonical_offsets`.
    watermark: the event-time watermark by which rows of the batch are late; none before Spark has seen an event time.
    """

    start_offsets: str
    end_offsets: str
    watermark: datetime | None


def canonical_end(texts: Sequence[str | None], sources: Sequence[str]) -> str:
    """The offsets of an entry of the offset log, which has one for each source.

    Parameters
    ----------
    texts: as the sources write them; none for a source without an offset.
    sources: the input of each source, in Spark's order.
    """
    offsets: dict[str, str | None] = dict.fromkeys(sources)
    for index, text in enumerate(texts):
        offsets[sources[index] if index < len(sources) else f"source {index}"] = text
    return canonical_offsets(offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetLog:
    """The offset log of a stream's query, which Spark writes before it hands a batch over.

    It is read from the query itself, which keeps the newest entries in memory, so no file of the checkpoint is read.

    sources: the input of each source, in Spark's order.
    query: the query, where it is known; it answers after its end too. Otherwise the active query of the name is used.
    """

    spark: SparkSession
    query_name: str
    sources: Sequence[str]
    query: StreamingQuery | None = None

    def range_of(self, number: int) -> BatchRange:
        """The offsets that a batch covers.

        Raises
        ------
        CheckpointError: when the log does not hold the batch.
        """
        log = self._log()
        planned = self._entry(log, number)
        before = self._entry(log, number - 1) if number > 0 else None
        metadata = planned.metadata()
        watermark_ms = int(metadata.get().batchWatermarkMs()) if metadata.isDefined() else 0
        return BatchRange(
            start_offsets=self._canonical(before),
            end_offsets=self._canonical(planned),
            watermark=datetime.fromtimestamp(watermark_ms / 1000, UTC) if watermark_ms > 0 else None,
        )

    def holds(self, number: int) -> bool:
        """Whether the log still has the offsets at which a batch starts and ends: Spark keeps those of the newest."""
        log = self._log()
        return not any(log.get(one).isEmpty() for one in (number - 1, number) if one >= 0)

    def _log(self) -> JavaObject:
        active = (query for query in self.spark.streams.active if query.name == self.query_name)
        query = self.query if self.query is not None else next(active)
        return query._jsq.streamingQuery().offsetLog()

    def _entry(self, log: JavaObject, number: int) -> JavaObject:
        found = log.get(number)
        if found.isEmpty():
            raise CheckpointError(
                f"The checkpoint of stream {self.query_name} has no offsets of batch {number}.",
                next_step="Restore it.",
            )
        return found.get()

    def _canonical(self, entry: JavaObject | None) -> str:
        if entry is None:
            return canonical_end((), self.sources)
        planned = entry.offsets()
        offsets = [planned.apply(index) for index in range(planned.size())]
        return canonical_end([str(one.get().json()) if one.isDefined() else None for one in offsets], self.sources)
