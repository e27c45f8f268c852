"""The batches that fake drivers record: one row each, published into the main output."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from sluice.ledger.batches import BatchObservation, PublicationKey, newest_batch, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import current_generation


def publish_batch(ledger: Ledger, stream: str, *, run_id: str) -> None:
    """Publish one batch, after those that are there."""
    generation = current_generation(ledger, stream, checkpoints_root=os.environ["SLUICE_CHECKPOINTS"]).generation
    newest = newest_batch(ledger, stream)
    number = newest.key.batch + 1 if newest is not None else 0
    record_batch(ledger, batch_of(PublicationKey(stream=stream, generation=generation, batch=number), run_id))


def batch_of(key: PublicationKey, run_id: str) -> BatchObservation:
    """A batch of one row."""
    return BatchObservation(
        key=key,
        run_id=run_id,
        started_at=datetime.now(UTC),
        duration_ms=1,
        input_rows=1,
        published_rows={"main": 1},
        snapshot_ids={"main": key.batch + 1},
    )
