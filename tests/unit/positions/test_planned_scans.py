"""A rewind to a batch behind which a plan reads a snapshot file by file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.positions.test_repair_decision import WHOLE, entry, position, repair

SCAN: dict[str, Any] = {"version": 1, "snapshot_id": 7, "position": 2, "scan_all_files": True}


@pytest.mark.parametrize(
    ("offset", "following", "is_kept"),
    [
        (SCAN, SCAN | {"position": 5, "scan_all_files": False}, True),
        (SCAN, SCAN | {"position": 5}, True),
        (SCAN, SCAN, False),  # another input moves
        (SCAN, SCAN | {"snapshot_id": 8}, False),  # the snapshot is read
        (SCAN | {"scan_all_files": False}, SCAN | {"position": 5, "scan_all_files": False}, False),
    ],
)
def test_the_plan_of_a_read_file_by_file_is_kept(
    offset: dict[str, Any], following: dict[str, Any], *, is_kept: bool
) -> None:
    """Spark would plan other files behind the same offset."""

    def reading(batch: int, end: dict[str, Any]) -> str:
        return "\n".join([*entry(batch).splitlines()[:2], json.dumps(end, separators=(",", ":"))])

    seen = position(WHOLE | {"offsets/3": reading(3, offset), "offsets/4": reading(4, following)}, visible=5)
    ends = json.dumps({"records": offset}, separators=(",", ":"), sort_keys=True)
    known = replace(seen.batches[3], ends=ends)
    seen = replace(seen.as_behind(3), batches={**seen.batches, 3: known}, back_from=5)

    done = repair(seen)

    assert done.stands_at == 3
    assert ("offsets/4" not in done.removes) is is_kept
    assert "offsets/5" in done.removes
