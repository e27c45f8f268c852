"""What the increments of a stream have published and not announced yet."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.ledger.announcements import UnannouncedPublications, find_unannounced, note_announcement
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


def record(ledger: Ledger, number: int, *, rows: int, generation: int = 1, **parts: Any) -> None:
    """Record a batch of an increment."""
    record_batch(
        ledger,
        BatchObservation(
            key=PublicationKey(stream="daily", generation=generation, batch=number),
            run_id="an increment",
            started_at=NOW,
            duration_ms=1,
            input_rows=rows,
            published_rows={"main": rows},
            **{"snapshot_ids": {"main": 100 + number}, **parts},
        ),
    )


def unannounced(ledger: Ledger, output: str = "main") -> UnannouncedPublications | None:
    """What was published into the table since the last announcement."""
    return find_unannounced(ledger, table="gold.daily", stream="daily", output=output)


def test_everything_since_the_last_announcement_is_announced_once(ledger: Ledger) -> None:
    assert unannounced(ledger) is None
    record(ledger, 0, rows=3)
    record(ledger, 1, rows=4)

    found = unannounced(ledger)

    assert found is not None
    assert (str(found.newest), found.batches, found.rows, found.snapshot_id) == ("daily:1:1", 2, 7, 101)
    assert unannounced(ledger, "another_output") is None
    note_announcement(ledger, found)
    assert unannounced(ledger) is None
    record(ledger, 0, rows=1, generation=2)
    again = unannounced(ledger)
    assert again is not None
    assert (str(again.newest), again.batches) == ("daily:2:0", 1)


@pytest.mark.parametrize(
    ("parts", "is_announced"),
    [
        ({"rows": 2, "snapshot_ids": {}}, True),
        ({"rows": 0}, False),
        ({"rows": 2, "is_rejected": True}, False),
    ],
    ids=["recorded by the next run, without its snapshot", "no row", "rejected by a person"],
)
def test_only_rows_that_became_visible_are_announced(ledger: Ledger, parts: dict[str, Any], is_announced: bool) -> None:
    record(ledger, 0, **parts)

    found = unannounced(ledger)

    assert (found is not None) is is_announced
    assert found is None or found.snapshot_id is None
