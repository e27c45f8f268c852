"""Up to which offsets a backfill reads, of a query that reads its sources at several places: for several outputs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.unit.backfill.test_published_batch import OUTPUT_OF_S, published
from tests.unit.backfill.test_source_bounds import table_of

from sluice.backfill.observe_backfill import published_batch
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice.positions.stream_position import canonical_end
from sluice.publication.chain import MarkPosition
from sluice.publication.marks import Mark, TargetState
from sluice.publication.staged_batch import offsets_digest

TOPIC, CLICKS = {"flights": {"0": 21, "1": 20}}, {"clicks": {"0": 3}}
A, B = ('{"flights":{"0":21,"1":20}}', '{"clicks":{"0":3}}')


def found(ledger: Ledger, *texts: str, ends: dict[str, Any], snapshot_id: int = 1, is_expired: bool = True) -> Any:
    """The end of the marked batch, whose lines of the offset log are these.

    ends: what the ledger has. snapshot_id: by which the ledger says that it was made visible; the mark has 1.
    """
    record_batch(
        ledger,
        BatchObservation(
            key=PublicationKey(stream="s", generation=2, batch=3),
            run_id="r",
            started_at=datetime(2026, 11, 20, tzinfo=UTC),
            duration_ms=1,
            input_rows=1,
            published_rows={},
            end_offsets=ends,
            snapshot_ids={"main": snapshot_id},
        ),
    )
    canonical = canonical_end(texts, tuple(ends))
    position = MarkPosition(generation=2, batch=3, token=1, end_offsets_digest=offsets_digest(canonical))
    table = table_of("append")
    if not is_expired:
        listed = [published(table.metadata.snapshots[0], canonical)]
        table.metadata = table.metadata.model_copy(update={"snapshots": listed})
    mark = Mark.set_to(position, snapshot_id=1, sequence_number=1)
    batch = published_batch(ledger, TargetState(table=table, mark=mark), OUTPUT_OF_S, position)
    return None if batch is None else batch.end_offsets


@pytest.mark.parametrize("is_expired", [True, False])
@pytest.mark.parametrize("places", [1, 2, 5])
def test_a_source_that_is_read_at_several_places_ends_at_one(ledger: Ledger, places: int, *, is_expired: bool) -> None:
    """As that of a stream with a quarantine, also where a driver has set the mark again since."""
    ends = {"records": TOPIC}
    assert found(ledger, *[A] * places, ends=ends, snapshot_id=9, is_expired=is_expired) == ends


@pytest.mark.parametrize("is_expired", [True, False])
def test_a_line_is_not_taken_for_that_of_another_input(ledger: Ledger, *, is_expired: bool) -> None:
    """The query reads the first of two sources twice, and then the second: its second line is not of the second."""
    ends = {"records": TOPIC, "clicks": CLICKS}
    assert found(ledger, A, A, B, ends=ends, is_expired=is_expired) == ends


def test_another_batch_of_the_number_is_none(ledger: Ledger) -> None:
    """A ledger that was restored has another one."""
    assert found(ledger, B, B, ends={"records": TOPIC}, snapshot_id=9) is None
