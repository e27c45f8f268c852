"""Batches and generations in a real PostgreSQL."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import pytest
from sqlalchemy import text

from sluice.errors import CheckpointError
from sluice.ledger.batch_findings import MOST_FIELDS, OTHERS, undeclared_fields
from sluice.ledger.batches import (
    BatchObservation,
    PublicationKey,
    StreamTotals,
    arrived_since,
    newest_batch,
    recent_batches,
    record_batch,
    totals,
)
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.generations import current_generation, record_query_id

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)


def a_batch(number: int, *, generation: int = 1, stream: str = "flights") -> BatchObservation:
    """A batch of 100 rows."""
    return BatchObservation(
        key=PublicationKey(stream=stream, generation=generation, batch=number),
        run_id="run-1",
        started_at=NOON + timedelta(seconds=number),
        duration_ms=420,
        input_rows=100,
        published_rows={"rows": 90, "copy": 45},
        refused_rows=4,
        late_rows=3,
        duplicate_rows=3,
        watermark=NOON - timedelta(hours=6),
        start_offsets={"records": {"flights": {"0": 100 * number}}},
        end_offsets={"records": {"flights": {"0": 100 * (number + 1)}}},
        skipped_input={"records": {"flights/0": 2}},
        snapshot_ids={"rows": 2**62 + number},
        durations_ms={"addBatch": 300},
    )


def test_a_batch_comes_back_as_it_was_recorded(ledger: Ledger) -> None:
    batch = replace(a_batch(0), end_offsets=MappingProxyType({"records": {"flights": {"0": 100}}}))
    assert record_batch(ledger, batch)
    known = newest_batch(ledger, "flights")
    assert known is not None
    assert known.recorded_at is not None
    assert replace(known, recorded_at=None) == replace(batch, end_offsets=dict(batch.end_offsets))


def test_what_was_recorded_first_stays(ledger: Ledger) -> None:
    assert record_batch(ledger, a_batch(0))
    assert not record_batch(ledger, replace(a_batch(0), input_rows=999, run_id="run-2"))
    assert totals(ledger, "flights").input_rows == 100


def test_the_newest_batch_is_the_last_of_the_newest_generation(ledger: Ledger) -> None:
    for batch in (a_batch(7), a_batch(8), a_batch(0, generation=2)):
        record_batch(ledger, batch)
    assert [batch.key.batch for batch in recent_batches(ledger, "flights", limit=2)] == [0, 8]
    assert newest_batch(ledger, "weather") is None


def test_totals_add_up_over_batches_and_generations(ledger: Ledger) -> None:
    for batch in (a_batch(0), a_batch(1), a_batch(0, generation=2), a_batch(0, stream="weather")):
        record_batch(ledger, batch)
    assert totals(ledger, "flights") == StreamTotals(
        stream="flights",
        batches=3,
        input_rows=300,
        published_rows={"copy": 135, "rows": 270},
        refused_rows=12,
        late_rows=9,
        duplicate_rows=9,
    )
    assert totals(ledger, "nothing").input_rows == 0


def test_the_first_generation_is_opened_once_by_whoever_comes_first(ledger: Ledger, ledger_url: str) -> None:
    def ask(_: int) -> object:
        with open_ledger(ledger_url) as own:
            return current_generation(own, "flights", checkpoints_root="file:///checkpoints/")

    with ThreadPoolExecutor(max_workers=8) as pool:
        answers = set(pool.map(ask, range(8)))
    assert len(answers) == 1
    generation = current_generation(ledger, "flights", checkpoints_root="s3a://elsewhere")
    assert (generation.generation, generation.checkpoint) == (1, "file:///checkpoints/flights/1")


def test_a_generation_is_bound_to_one_query_id(ledger: Ledger) -> None:
    current_generation(ledger, "flights", checkpoints_root="file:///checkpoints")
    assert record_query_id(ledger, "flights", 1, "query-1").query_id == "query-1"
    assert record_query_id(ledger, "flights", 1, "query-1").query_id == "query-1"
    with pytest.raises(CheckpointError, match="belongs to query query-1, got query-2"):
        record_query_id(ledger, "flights", 1, "query-2")
    with pytest.raises(CheckpointError, match="no generation 2"):
        record_query_id(ledger, "flights", 2, "query-1")


def test_undeclared_fields_are_summed_once_for_each_batch_and_first_seen_with_an_event(ledger: Ledger) -> None:
    rich = {f"f{number:02}": 1 for number in range(12)}
    for number, counts in enumerate(({"colour": 3}, {"colour": 2, "bad\x00 name": 1}, rich)):
        batch = replace(a_batch(number), undeclared_fields={"records": counts})
        assert record_batch(ledger, batch)
        assert not record_batch(ledger, batch)

    found = undeclared_fields(ledger, "flights")

    seen = [(one.input, one.field, one.times, one.first_batch, one.last_batch) for one in found[:2]]
    assert seen == [("records", r"bad\x00 name", 1, "1:1", "1:1"), ("records", "colour", 5, "1:0", "1:1")]
    assert undeclared_fields(ledger, "others") == ()
    events = recent_events(ledger, EventSubject.STREAM, "flights", limit=9)
    assert [(event.action, event.evidence["fields"]) for event in events] == [
        ("see_field", sorted(rich)),
        ("see_field", [r"bad\x00 name"]),
        ("see_field", ["colour"]),
    ]
    assert "the fields `f00`, `f01`" in events[0].explanation
    assert "`f09` and 2 more, which are not declared, since batch flights:1:2." in events[0].explanation
    assert "the field `colour`, which is not declared" in events[2].explanation


def test_undeclared_fields_without_end_have_one_sum(ledger: Ledger) -> None:
    counts = {f"id{number:04}": 1 for number in range(MOST_FIELDS + 5)}
    for number in range(2):
        record_batch(ledger, replace(a_batch(number), undeclared_fields={"records": counts}))

    found = {one.field: one.times for one in undeclared_fields(ledger, "flights")}

    assert (len(found), found[OTHERS], found["id0000"]) == (MOST_FIELDS + 1, 10, 2)


def test_what_became_visible_late_or_is_not_recorded_yet_has_arrived_since(ledger: Ledger) -> None:
    stream = "held"
    for number, days in ((0, 40), (1, 40), (2, 1), (3, 40)):
        record_batch(ledger, a_batch(number, stream=stream))
        with ledger.transaction() as connection:
            connection.execute(
                text("UPDATE sluice.batches SET recorded_at = :at WHERE stream = :stream AND batch = :batch"),
                {"at": NOON - timedelta(days=days), "stream": stream, "batch": number},
            )
    since = NOON - timedelta(days=30)

    assert arrived_since(ledger, stream, {(1, 1), (1, 2), (1, 4), (2, 0)}, since) == {(1, 2), (1, 4), (2, 0)}
    assert arrived_since(ledger, stream, {(1, 0), (1, 1)}, since) == frozenset()
    assert arrived_since(ledger, stream, set(), since) == frozenset()
    assert arrived_since(ledger, "forgotten", {(1, 0)}, since) == {(1, 0)}
