"""The port between a run and the way in which its query delivers batches.

There are four ways, one module for each; `choose_delivery` picks the one that the declaration asks for:

| way      | who writes the rows                                     | a stop waits for a pause | who counts the rows |
|----------|---------------------------------------------------------|--------------------------|---------------------|
| staged   | Sluice, into staging tables that it then publishes      | while the run may publish | Sluice, staging     |
| sinks    | Sluice, into other systems, after the tables if any     | while the run may publish | Sluice, before      |
| direct   | Iceberg's own streaming sink                            | while the run may publish | the table          |
| records  | Spark's own Kafka sink, record by record                | no                       | Spark's report      |
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from pyspark.sql.streaming.query import StreamingQuery


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
