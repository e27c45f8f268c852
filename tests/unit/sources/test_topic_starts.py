"""What a declared start of a Kafka input asks for and Kafka no longer has."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sluice.sources.topic_starts import missing_offsets, missing_times
from sluice.sources.unread_input import PartitionBounds

BOUNDS = {"flights": {0: PartitionBounds(first=10, end=20), 1: PartitionBounds(first=0, end=5)}}


@pytest.mark.parametrize(
    ("declared", "missing"),
    [
        ({"flights": {0: 9}}, ["flights/0 begins with offset 10, and 9 is declared"]),
        ({"flights": {0: 10, 1: 0}}, []),
        ({"flights": {0: -1, 1: -2}}, []),
        ({"flights": {7: 3}, "others": {0: 1}}, []),
    ],
)
def test_missing_offsets(declared: dict[str, dict[int, int]], missing: list[str]) -> None:
    assert list(missing_offsets(declared, BOUNDS)) == missing


@pytest.mark.parametrize(
    ("bounds", "since", "is_missing"),
    [
        (PartitionBounds(first=10, end=20), 10, True),
        (PartitionBounds(first=10, end=20), 11, False),
        (PartitionBounds(first=10, end=20), -1, False),
        (PartitionBounds(first=0, end=20), 0, False),
        (PartitionBounds(first=0, end=0), -1, False),
        (PartitionBounds(first=10, end=10), -1, True),
    ],
    ids=["removed", "an older one is left", "only older ones", "never removed", "empty", "all removed"],
)
def test_missing_times(bounds: PartitionBounds, since: int, is_missing: bool) -> None:
    instant = datetime(2026, 1, 31, tzinfo=UTC)
    found = list(missing_times(instant, {"flights": {0: since}}, {"flights": {0: bounds}}))
    assert found == (
        [f"flights/0 begins with offset {bounds.first}, and no record from before {instant.isoformat()} is left"]
        if is_missing
        else []
    )
