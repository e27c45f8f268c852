"""Where a stream stands that reads one table at several places. Pure."""

from __future__ import annotations

import pytest

from sluice.maintenance.table_readers import earliest_offset
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset


def offset(snapshot_id: int, position: int = 0) -> StreamOffset:
    """An offset in a table."""
    return StreamOffset(snapshot_id=snapshot_id, position=position, scan_all_files=False)


@pytest.mark.parametrize(
    ("offsets", "expected"),
    [
        ((), None),
        ((offset(9), offset(5)), offset(5)),
        ((offset(5, 2), offset(5, 1)), offset(5, 1)),
        ((offset(5), offset(BEGINNING)), offset(BEGINNING)),
        ((offset(5), offset(77)), offset(77)),
    ],
    ids=["none", "snapshots", "files", "empty table", "gone"],
)
def test_the_earliest_place_counts(offsets: tuple[StreamOffset, ...], expected: StreamOffset | None) -> None:
    assert earliest_offset(offsets, [7, 5, 9]) == expected
