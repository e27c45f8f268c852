"""The port between a run and the way in which its query delivers batches.

There are four ways, one module for each; `choose_delivery` picks the one that the declaration asks for:

| way      | who writes the rows                                     | a stop waits for a pause | who counts the rows |
|----------|---------------------------------------------------------|--------------------------|---------------------|
| staged   | Sluice, into staging tables that it then publishes      | while the run may publish | Sluice, staging     |
| sinks    | Sluice, into other systems, after the tables if any     | while the run may publish | Sluice, before      |
| direct   | Iceberg's own streaming sink                            | while the run may publish | the table          |
| records  | Spark's own Kafka sink, record by record                | no                       | Spark's report      |

Beside the port stands what each of them uses of its run, with the gate before each batch: built once for a run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from pyspark.sql.streaming.query import StreamingQuery

from sluice.ledger.batches import PublicationKey
from sluice.ledger.connection import Ledger
from sluice.publication.crash_points import Reached
from sluice.settings import Settings
from sluice.sources.skipped_input_watch import SkippedInputWatch
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.batch_recording import Recording
from sluice_spark.session.checkpoint_metadata import CheckpointState


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveredBatch:
    """What a batch brought to each output.

    rows: the number of rows by output, as the delivery counted them.
    counted_by_spark: the output whose rows only Spark's progress report counts; none when `rows` holds all of them.
    is_rejected: whether a person rejected the batch, so that no output gets it.
    """

    rows: Mapping[str, int]
    counted_by_spark: str | None = None
    is_rejected: bool = False


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
    """Stops a run between two batches: every batch passes the gate before it starts, and none passes a closed one."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self.turned_away = threading.Event()

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
            self.turned_away.set()
            raise TurnedAwayError("the run is stopping")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveringRun:
    """The run that delivers.

    token: its fencing token, which every publication carries.
    """

    stream: str
    generation: int
    run_id: str
    token: int

    def key(self, batch: int) -> PublicationKey:
        """The key of one of its batches."""
        return PublicationKey(stream=self.stream, generation=self.generation, batch=batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControls:
    """What decides whether a batch may begin and become visible.

    lease: is asked before each publication. skipped_input: looks at the sources before each batch.
    on_failure: asks the run to stop, because a publication outside the query failed.
    gate: every batch that Spark hands over passes it.
    """

    lease: HeldLease
    skipped_input: SkippedInputWatch
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

    checkpoint: its folder. found: what lay in it before the query started. tables: what the tables have shown then.
    recording: takes what becomes known of each batch. reached: is called at each crash point.
    """

    run: DeliveringRun
    checkpoint: str
    found: CheckpointState
    tables: TablesAtStart
    controls: RunControls
    recording: Recording
    settings: Settings
    ledger: Ledger
    reached: Reached
