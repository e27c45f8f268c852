"""Whether a generation that was opened by a reset has read as far as the one before it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.backfill.test_source_bounds import offset, table_of

from sluice.backfill.backfill_plan import are_topics_behind, is_table_behind


@pytest.mark.parametrize(
    ("before", "now", "is_behind"),
    [
        (offset(2, 2), offset(2, 2), False),
        (offset(2, 2), offset(2, 1), True),
        (offset(2, 2), offset(3, 0), False),
        (offset(3, 2), offset(2, 2), True),
        (offset(3, 2), offset(3, 6, scan_all_files=True), False),
        (offset(3, 2), offset(3, 5, scan_all_files=True), True),
        (offset(3, 6, scan_all_files=True), offset(3, 5, scan_all_files=True), True),
        (offset(3, 6, scan_all_files=True), offset(3, 2), False),
        (offset(3, 2), None, True),
        (offset(3, 2), offset(-1, -1), True),
        (offset(9, 2), offset(1, 0), False),
    ],
    ids=[
        "equal",
        "fewer files",
        "later",
        "earlier",
        "all of it",
        "not all of it",
        "fewer files of a scan",
        "after a scan",
        "nothing",
        "at the beginning",
        "expired",
    ],
)
def test_a_table_is_read_as_far_as_its_history_says(before: dict[str, Any], now: object, is_behind: bool) -> None:
    assert is_table_behind(table_of("append", "append", "append"), before=before, now=now) is is_behind


@pytest.mark.parametrize("position", [0, 1_000_000])
def test_a_scan_of_a_snapshot_that_does_not_count_its_files_may_not_be_complete(position: int) -> None:
    """The summary of another writer says only what it has added."""
    table = table_of("append")
    (snapshot,) = table.metadata.snapshots
    assert snapshot.summary is not None
    del snapshot.summary.additional_properties["total-data-files"]
    scanned = offset(1, position, scan_all_files=True)

    assert is_table_behind(table, before=offset(1, 2), now=scanned)
    assert not is_table_behind(table, before=scanned, now=scanned)


@pytest.mark.parametrize(
    ("now", "is_behind"),
    [
        ({"t": {"0": 5, "1": 7}}, False),
        ({"t": {"0": 9, "1": 7, "2": 0}}, False),
        ({"t": {"0": 5, "1": 6}}, True),
        ({"t": {"0": 5}}, True),
        ({}, True),
        (None, True),
    ],
)
def test_topics_are_read_as_far_as_each_of_their_partitions(now: object, is_behind: bool) -> None:
    assert are_topics_behind(before={"t": {"0": 5, "1": 7}}, now=now) is is_behind
