"""A rewind to a batch behind which a plan reads a snapshot file by file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.positions.test_repair_decision import WHOLE, entry, position, repair


@pytest.mark.parametrize(("scans", "kept"), [(True, True), (False, False)])
def test_the_plan_of_a_read_file_by_file_is_kept(*, scans: bool, kept: bool) -> None:
    """Spark would plan other files behind the same offset."""
    offset: dict[str, Any] = {"version": 1, "snapshot_id": 7, "position": 2, "scan_all_files": scans}
    line = json.dumps(offset, separators=(",", ":"))
    texts = WHOLE | {"offsets/3": "\n".join([*entry(3).splitlines()[:2], line])}
    seen = position(texts, visible=5)
    known = replace(seen.batches[3], ends=json.dumps({"records": offset}, separators=(",", ":"), sort_keys=True))
    seen = replace(seen.as_behind(3), batches={**seen.batches, 3: known}, back_from=5)

    done = repair(seen)

    assert done.stands_at == 3
    assert ("offsets/4" not in done.removes) is kept
    assert "offsets/5" in done.removes
