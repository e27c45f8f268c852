"""What a person rejected stays out of topics that are read again, and is named where it cannot."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.backfill.old_input_rows import without_rejected
from sluice.backfill.read_bounds import FilesBound, InputBound, OffsetRange, TableBound, TopicBound
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.ledger.batches import BatchObservation, PublicationKey

FILE = FileObservation(path="f", size_bytes=1, modified_at=datetime(2026, 1, 1, tzinfo=UTC))
TOPIC = TopicBound(input="rows", ranges={"t": {0: OffsetRange(first=0, end=50), 1: OffsetRange(first=20, end=30)}})


def rejected(batch: int, start: Any, end: Any) -> BatchObservation:
    """A rejected batch of the input `rows`."""
    return BatchObservation(
        key=PublicationKey(stream="flights", generation=2, batch=batch),
        run_id="r",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_ms=0,
        input_rows=3,
        published_rows={},
        start_offsets={"rows": start},
        end_offsets={"rows": end},
        is_rejected=True,
    )


def test_the_records_of_rejected_batches_are_left_out_of_topics() -> None:
    batches = [
        rejected(1, None, {"t": {"0": 5, "1": 22}}),
        rejected(4, {"t": {"0": 40, "1": 30}}, {"t": {"0": 99, "1": 31}}),
        rejected(5, {"t": {"0": 40}}, {"t": {"0": 40}}),
    ]
    bound = without_rejected(replace(TOPIC, everything=TOPIC), batches)

    assert isinstance(bound, TopicBound)
    assert bound.everything is not None
    assert bound.left_out == bound.everything.left_out
    assert bound.left_out == {
        "t": {
            0: (OffsetRange(first=0, end=5), OffsetRange(first=40, end=50)),
            1: (OffsetRange(first=20, end=22),),
        }
    }
    assert bound.what == "60 offsets of t, without 17 of them that a person rejected"
    assert bound.returning == ()


def test_what_was_rejected_of_an_earlier_topic_is_not_left_out() -> None:
    batches = [rejected(1, None, {"t": {"0": 5}}), rejected(2, {"t": {"0": 0}}, {"t": {"0": 3}})]

    bound = without_rejected(TOPIC, batches, is_of=lambda batch, topic: batch.key.batch > 1)

    assert isinstance(bound, TopicBound)
    assert bound.left_out == {"t": {0: (OffsetRange(first=0, end=3),)}}


@pytest.mark.parametrize(
    ("bound", "what"),
    [
        (TableBound(input="rows", table="a.b", snapshot_id=7), "a.b at snapshot 7"),
        (FilesBound(input="rows", files={"f": FILE}), "1 files"),
    ],
    ids=["table", "files"],
)
def test_rows_that_come_back_are_named(bound: InputBound, what: str) -> None:
    found = without_rejected(bound, [rejected(1, {"logOffset": 1}, {"logOffset": 2})])

    assert found.returning == ("2:1",)
    assert found.what == f"{what}, with the rows of the rejected batches 2:1"
    assert without_rejected(bound, [rejected(1, {"logOffset": 1}, {"logOffset": 1})]) == bound
    assert without_rejected(bound, []) == bound
