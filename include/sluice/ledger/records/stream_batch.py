"""A batch in the ledger: one micro-batch of a run, after it was delivered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationKey:
    """The name of a batch in the snapshots it becomes: stream, generation, batch number."""

    stream: str
    generation: int
    batch: int

    def __str__(self) -> str:
        return f"{self.stream}:{self.generation}:{self.batch}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchObservation:
    """One batch: its input and output rows, its duration, and its offsets.

    The rows add up for a stream that keeps or refuses rows: input = published + refused + late + duplicate.

    started_at: when Spark triggered the batch.
    duration_ms: from trigger to commit; `durations_ms` are its parts under Spark's names.
    published_rows: rows handed to each output, by output name; the quarantine is `refused_rows`.
    late_rows: rows that came behind the watermark and were dropped by a stateful operator.
    duplicate_rows: rows that a de-duplication dropped.
    watermark: the event-time watermark of the batch; unset without one.
    start_offsets, end_offsets: by input name, as the source writes them.
    snapshot_ids: the snapshot of each output, by output name.
    skipped_input: input that no batch will ever read, by input name and place: the offsets of a Kafka partition that
        were removed before they were read, the rows of an Iceberg snapshot that was skipped. Empty unless the
        declaration allows it.
    is_rejected: whether a person rejected the batch: no output gets its rows, and all of them are `refused_rows`.
    state_rows: the rows of all state stores of the query after the batch. state_bytes: the memory that they take in the
        executors, as Spark reports it. Both unset for a query without state.
    undeclared_fields: how often each field was sent that no column takes, by input name and field. The ledger adds them
        to the sums of the stream and does not keep them with the batch.
    """

    key: PublicationKey
    run_id: str
    started_at: datetime
    duration_ms: int
    input_rows: int
    published_rows: Mapping[str, int]
    refused_rows: int = 0
    late_rows: int = 0
    duplicate_rows: int = 0
    watermark: datetime | None = None
    start_offsets: Mapping[str, Any] = field(default_factory=dict)
    end_offsets: Mapping[str, Any] = field(default_factory=dict)
    snapshot_ids: Mapping[str, int] = field(default_factory=dict)
    durations_ms: Mapping[str, int] = field(default_factory=dict)
    skipped_input: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    is_rejected: bool = False
    state_rows: int | None = None
    state_bytes: int | None = None
    undeclared_fields: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    recorded_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTotals:
    """What all batches of a stream did together. `published_rows` is by output name."""

    stream: str
    batches: int
    input_rows: int
    published_rows: Mapping[str, int]
    refused_rows: int
    late_rows: int
    duplicate_rows: int
