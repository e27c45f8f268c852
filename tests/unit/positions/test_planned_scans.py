"""A rewind to a batch behind which a plan reads a snapshot file by file."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.positions.test_repair_decision import WHOLE, applied, entry, position, repair, without

from sluice.checkpoints.checkpoint_logs import offsets_of
from sluice.operations import Refusal
from sluice.positions.repair_decision import decide_repair
from sluice.positions.stream_position import StreamPosition

SCAN: dict[str, Any] = {"version": 1, "snapshot_id": 7, "position": 2, "scan_all_files": True}


def text(end: dict[str, Any]) -> str:
    """As a line of the offset log."""
    return json.dumps(end, separators=(",", ":"))


def canonical(end: dict[str, Any]) -> str:
    """As the tables have it."""
    return json.dumps({"records": end}, separators=(",", ":"), sort_keys=True)


def read(offset: dict[str, Any], following: dict[str, Any], *lost: str) -> dict[str, str]:
    """A checkpoint up to batch 5. offset, following: where batches 3 and 4 end. lost: entries of the log."""

    def reading(batch: int, end: dict[str, Any]) -> str:
        return "\n".join([*entry(batch).splitlines()[:2], text(end)])

    logged = {"offsets/3": reading(3, offset), "offsets/4": reading(4, following)}
    return without(WHOLE | logged, *lost)


def rewound(offset: dict[str, Any], following: dict[str, Any] | None, *lost: str) -> StreamPosition:
    """The stream is to go from batch 5 back behind batch 3. following: none where the tables do not know batch 4."""
    seen = position(read(offset, following or offset, *lost), visible=5)
    known = {number: batch for number, batch in seen.batches.items() if number < 4}
    known[3] = replace(known[3], ends=canonical(offset))
    if following is not None:
        known[4] = replace(seen.batches[4], ends=canonical(following))
    return replace(seen.as_behind(3), batches=known, back_from=5)


@pytest.mark.parametrize("lost", [(), ("offsets/3",), ("offsets/3", "offsets/4")], ids=" ".join)
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
    offset: dict[str, Any], following: dict[str, Any], lost: tuple[str, ...], *, is_kept: bool
) -> None:
    """Spark would plan other files behind the same offset. What Spark has purged of the log is written back."""
    seen = rewound(offset, following, *lost)

    done = repair(seen)

    assert done.stands_at == 3
    left = applied(read(offset, following, *lost), done)
    assert ("offsets/4" in left) is is_kept
    if is_kept:
        assert offsets_of(left["offsets/4"]) == (text(following),)
    assert "offsets/5" in done.removes


def test_a_plan_of_which_nothing_is_known_any_more_is_no_plan_of_sparks() -> None:
    refused = decide_repair(rewound(SCAN, None, "offsets/4"))

    assert isinstance(refused, Refusal)
    assert "which files batch 4 has read is unknown" in refused.sentence
    assert repair(rewound(SCAN | {"scan_all_files": False}, None, "offsets/4")).stands_at == 3


def test_a_rewind_to_the_newest_batch_waits_for_no_plan() -> None:
    seen = replace(rewound(SCAN, None, "offsets/4"), back_from=3)

    assert repair(seen).stands_at == 3
