"""The port between a run and the way in which its query delivers batches.

There are four ways; `choose_delivery` picks the one that the declaration asks for:

| way      | who writes the rows                                     | a stop waits for a pause | who counts the rows |
|----------|---------------------------------------------------------|--------------------------|---------------------|
| staged   | Sluice, into staging tables that it then publishes      | while the run may publish | Sluice, staging     |
| sinks    | Sluice, into other systems, after the tables if any     | while the run may publish | Sluice, before      |
| direct   | Iceberg's own streaming sink                            | while the run may publish | the table          |
| records  | Spark's own Kafka sink, record by record                | no                       | Spark's report      |

Beside the port stands what they share: what each uses of its run, the gate that every batch passes, and the offsets
that a batch covers. The key of a batch and its offsets together identify it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice.errors import CheckpointError
from sluice.ledger.batch_findings import RuleResult
from sluice.ledger.batches import PublicationKey
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import GenerationObservation
from sluice.positions.stream_position import canonical_end
from sluice.publication.crash_points import Reached
from sluice.settings import Settings
from sluice.sources.input_watch import InputWatch, SkippedInputWatch
from sluice.sources.seen_schemas import SchemaSightings
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.batch_recording import Recording
from sluice_spark.session.checkpoint_metadata import CheckpointState

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredBatch:
    """What a batch brought to each output.

    rows: the number of rows by output, as the delivery counted them.
    counted_by_spark: the output whose rows only Spark's progress report counts; none when `rows` holds all of them.
    is_rejected: whether a person rejected the batch, so that no output gets it.
    rule_results: what the rules of the outputs found.
    """

    rows: Mapping[str, int]
    counted_by_spark: str | None = None
    is_rejected: bool = False
    rule_results: tuple[RuleResult, ...] = ()


class Delivery(Protocol):
    """One way in which the rows of a stream's query reach its outputs."""

    @property
    def failure(self) -> Exception | None:
        """The error of the delivery that ended the query; Spark's own exception carries only its text."""
        ...

    def at_work(self) -> AbstractContextManager[None]:
        """Recover what earlier runs left before the block; finish the publications after it, unless it failed.

        Raises
        ------
        DeliveryError, LakehouseError: when the stream cannot be taken over, or a staged batch cannot be published.
        """
        ...

    def start(self, trigger: Mapping[str, Any]) -> StreamingQuery:
        """Start the query.

        Parameters
        ----------
        trigger: the arguments of `DataStreamWriter.trigger`; a stream that delivers record by record has its own.
        """
        ...

    def stops_at_once(self, *, may_publish: bool) -> bool:
        """Whether a stop ends the query without waiting for a pause between two batches.

        Parameters
        ----------
        may_publish: whether the run may still publish.
        """
        ...

    def take(self, number: int) -> DeliveredBatch | None:
        """What was delivered of a batch, for the progress listener; none when this run did not deliver it.

        A batch can be taken once.
        """
        ...


class TurnedAwayError(Exception):
    """A batch came to a closed gate. Spark has planned the batch and runs the same batch again at the next start."""


class BatchGate:
    """Stops a run between two batches: every batch passes the gate before it starts, and none passes a closed one.

    `waits` is set while a batch waits behind it for earlier ones, so that nothing of it has begun.
    """

    def __init__(self) -> None:
        self._closed = threading.Event()
        self.turned_away = threading.Event()
        self.waits = threading.Event()

    @property
    def is_closed(self) -> bool:
        """Whether no further batch is to start."""
        return self._closed.is_set()

    def close(self) -> None:
        """Let no further batch start."""
        self._closed.set()

    def enter(self) -> None:
        """Start a batch.

        Raises
        ------
        TurnedAwayError: when the gate is closed.
        """
        if self._closed.is_set():
            self.turn_away()

    def turn_away(self) -> NoReturn:
        """End the run before the batch begins.

        Raises
        ------
        TurnedAwayError: always.
        """
        self.turned_away.set()
        raise TurnedAwayError("the run is stopping")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveringRun:
    """The run that delivers.

    token: its fencing token, which every publication carries.
    rejected_as: the stream and the generation that its rejected rows name; unset: its own.
    """

    stream: str
    generation: int
    run_id: str
    token: int
    rejected_as: tuple[str, int] | None = None

    def key(self, batch: int) -> PublicationKey:
        """The key of one of its batches."""
        return PublicationKey(stream=self.stream, generation=self.generation, batch=batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControls:
    """What decides whether a batch may begin and become visible.

    lease: is asked before each publication. skipped_input: looks at the sources before each batch.
    inputs: compares them with the plan before each batch. sightings: keeps the schemas of what is read.
    on_failure: asks the run to stop, because a publication outside the query failed.
    gate: every batch that Spark hands over passes it.
    """

    lease: HeldLease
    skipped_input: SkippedInputWatch
    inputs: InputWatch
    sightings: SchemaSightings
    on_failure: Callable[[], None]
    gate: BatchGate = field(default_factory=BatchGate)


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesAtStart:
    """What the tables of a stream have shown, once they agree with the ledger.

    new_outputs: the outputs without a mark: they never had one.
    rejected: the batches of the generation that a person has rejected. The ledger may have no record of those that are
        not staged any more.
    """

    new_outputs: frozenset[str] = frozenset()
    rejected: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """What a way of delivery uses of its run.

    checkpoint: its folder. found: what lay in it before the query started. generation, tables: what the ledger and the
        tables have shown then.
    recording: takes what becomes known of each batch. reached: is called at each crash point.
    """

    run: DeliveringRun
    checkpoint: str
    found: CheckpointState
    generation: GenerationObservation
    tables: TablesAtStart
    controls: RunControls
    recording: Recording
    settings: Settings
    ledger: Ledger
    reached: Reached

    @property
    def is_begun(self) -> bool:
        """Whether a run has begun in the generation. A ledger that is new or an older copy may not know it."""
        return self.generation.begun_at is not None or self.found.is_begun

    @property
    def newest_delivered(self) -> int:
        """The newest batch that this generation may have delivered; -1 without any. A batch that is planned and not
        committed may be, once a run has begun."""
        return self.found.newest_planned if self.is_begun else self.found.newest_committed

    @property
    def unfinished_since(self) -> datetime | None:
        """Since when a batch may be delivered that is not committed; none where there is no such batch."""
        planned_at = self.found.unfinished_since
        if planned_at is None or not self.is_begun:
            return None
        return max(planned_at, self.generation.may_deliver_since)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """The offsets that a batch covers, and the watermark it starts with.

    start_offsets, end_offsets: from `canonical_offsets`.
    watermark: the event-time watermark by which rows of the batch are late; none before Spark has seen an event time.
    """

    start_offsets: str
    end_offsets: str
    watermark: datetime | None


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
