"""Skipped input, counted from offsets as Spark's sources write them and heads as the services report them."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.sources.iceberg_positions import StreamOffset, TableStep
from sluice.sources.input_watch import declared_offsets, lost_offsets, skipped_rows

FIRSTS = {"flights": {0: 10, 1: 0}}


@pytest.mark.parametrize(
    ("start", "end", "lost"),
    [
        (None, {"flights": {"0": 20}}, {}),
        ({"flights": {"0": 4}}, {"flights": {"0": 20}}, {"flights/0": 6}),
        ({"flights": {"0": 4}}, {"flights": {"0": 7}}, {"flights/0": 3}),
        ({"flights": {"0": 10, "1": 0}}, {"flights": {"0": 20, "1": 5}}, {}),
        ({"flights": {"1": 3}}, {"flights": {"0": 20, "1": 5}}, {"flights/0": 10}),
        ({"flights": {"0": 12}}, {"flights": {"0": 3}}, {}),
    ],
)
def test_lost_offsets(start: Any, end: Any, lost: dict[str, int]) -> None:
    assert lost_offsets(start, end, firsts=FIRSTS) == lost


def test_offsets_before_the_first_record_are_lost_to_a_first_batch_that_declares_them() -> None:
    start = declared_offsets({"flights": {0: 4, 1: -2}})
    assert lost_offsets(start, {"flights": {"0": 20, "1": 9}}, firsts={"flights": {0: 10, 1: 3}}) == {"flights/0": 6}
    assert declared_offsets("earliest") is None


HISTORY = (
    TableStep(snapshot_id=5, appended_rows=7, appended_files=1, committed_at_ms=5000),
    TableStep(snapshot_id=4, changed_rows=40, committed_at_ms=4000),
    TableStep(snapshot_id=3, committed_at_ms=3000),
    TableStep(snapshot_id=2, changed_rows=20, committed_at_ms=2000),
    TableStep(snapshot_id=1, appended_rows=1, appended_files=1, committed_at_ms=1000),
)


def at(snapshot_id: int) -> dict[str, Any]:
    """An offset as Iceberg's source writes it."""
    return {"version": 1, "snapshot_id": snapshot_id, "position": 1, "scan_all_files": False}


@pytest.mark.parametrize(
    ("start", "end", "skipped"),
    [
        (None, at(5), {"snapshot 4": 40, "snapshot 2": 20}),
        (at(1), at(5), {"snapshot 4": 40, "snapshot 2": 20}),
        (at(1), at(3), {"snapshot 2": 20}),
        (at(2), at(5), {"snapshot 4": 40}),
        (at(4), at(5), {}),
        (at(5), at(5), {}),
    ],
)
def test_skipped_rows(start: Any, end: Any, skipped: dict[str, int]) -> None:
    assert skipped_rows(start, end, history=HISTORY) == skipped


@pytest.mark.parametrize(
    ("first", "skipped"),
    [
        (StreamOffset(snapshot_id=3, position=0, scan_all_files=False), {"snapshot 4": 40}),
        (StreamOffset(snapshot_id=4, position=0, scan_all_files=False), {"snapshot 4": 40}),
        (StreamOffset(snapshot_id=4, position=1, scan_all_files=False), {}),
        (StreamOffset(snapshot_id=3, position=0, scan_all_files=True), {"snapshot 4": 40}),
    ],
    ids=["with a snapshot", "with a skipped one", "behind it", "with all files of a snapshot"],
)
def test_what_lies_before_the_first_batch_is_not_left_out(first: StreamOffset, skipped: dict[str, int]) -> None:
    assert skipped_rows(None, at(5), history=HISTORY, first=first) == skipped
