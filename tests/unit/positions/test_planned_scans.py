"""A rewind to a batch behind which a plan reads a snapshot file by file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.checkpoint_files import FakeCheckpointFiles
from tests.fixtures.sample_settings import sample_settings
from tests.unit.positions.test_repair_decision import WHOLE, applied, entry, position, repair, without

from sluice.checkpoints.checkpoint_layout import offsets_of
from sluice.checkpoints.observe_checkpoint import observe_checkpoint
from sluice.operations import Refusal
from sluice.positions.repair_decision import decide_repair
from sluice.positions.repair_writes import plans_of_others, write_log_entries
from sluice.positions.stream_position import StreamPosition
from sluice.publication.crash_points import unnoticed

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


def rewound(offset: dict[str, Any], following: dict[str, Any], *lost: str, state: int = 0) -> StreamPosition:
    """The stream is to go from batch 5 back behind batch 3, which a continuation gave its first checkpoint as done.

    state: the newest version; 0 for none.
    """
    contents = read(offset, following, *lost) | {f"state/0/0/{one + 1}.delta": "x" for one in range(state)}
    seen = position(contents, visible=5, state=state > 0)
    known = {number: batch for number, batch in seen.batches.items() if number < 3}
    known[4] = replace(seen.batches[4], starts=canonical(offset), ends=canonical(following))
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
    done = repair(rewound(offset, following, *lost))

    assert done.stands_at == 3
    left = applied(read(offset, following, *lost), done)
    assert ("offsets/4" in left) is is_kept
    if is_kept:
        assert offsets_of(left["offsets/4"]) == (text(following),)
    assert "offsets/5" in done.removes


def refusal(seen: StreamPosition) -> str:
    """Why a rewind is refused."""
    refused = decide_repair(seen)
    assert isinstance(refused, Refusal)
    return refused.sentence


def test_a_plan_behind_a_batch_that_has_to_be_run_again_cannot_be_kept() -> None:
    within = rewound(SCAN, SCAN | {"position": 5}, state=3)

    assert "has to be run again, and then the plan of batch 4 is lost" in refusal(within)
    assert repair(rewound(SCAN, SCAN | {"snapshot_id": 8}, state=3)).runs_again == 3
    assert repair(rewound(SCAN, SCAN | {"position": 5}, state=4)).stands_at == 3


def without_record(seen: StreamPosition) -> StreamPosition:
    """The ledger has forgotten the batches behind the third, and the tables show none of them."""
    batches = {number: one for number, one in seen.batches.items() if number < 4}
    return replace(seen, batches=batches, back_from=max(seen.committed, 3))


def with_files_of(seen: StreamPosition, contents: dict[str, str]) -> StreamPosition:
    """The same beside other files."""
    return replace(seen, contents=observe_checkpoint(FakeCheckpointFiles(contents), is_whole=True))


def as_spark_sees(contents: dict[str, str]) -> dict[str, object]:
    """What counts of a checkpoint without state: where its batches end, and which of them are committed."""
    return {path: offsets_of(text) if path.startswith("offsets") else "" for path, text in contents.items()}


def up_to(batch: int) -> tuple[str, ...]:
    """The entries that an older copy of the checkpoint does not have."""
    return tuple(f"{log}/{number}" for log in ("offsets", "commits") for number in range(batch + 1, 6))


@pytest.mark.parametrize("torn", [{}, {"offsets/4": ""}, {"offsets/3": entry(9)}], ids=["whole", "torn", "another"])
@pytest.mark.parametrize(
    "lost",
    [(), ("offsets/3", "commits/3"), ("offsets/3", "offsets/4"), up_to(2), ("commits/3", *up_to(3)), up_to(-1)],
    ids=["none", "an entry", "two plans", "an older copy", "a commit", "all"],
)
@pytest.mark.parametrize("following", [SCAN | {"position": 5}, SCAN | {"snapshot_id": 8}, SCAN], ids=str)
def test_a_rewind_that_is_interrupted_at_any_step_comes_to_the_same_end(
    following: dict[str, Any], lost: tuple[str, ...], torn: dict[str, str]
) -> None:
    contents = {path: text for path, text in (read(SCAN, following, *lost) | torn).items() if path not in lost}
    seen = with_files_of(rewound(SCAN, following), contents)
    first = repair(seen)
    wanted = as_spark_sees(applied(contents, first))
    ahead = [(path, text) for path, text in first.writes.items() if path != "metadata"]
    others = [(path, None) for path in plans_of_others(seen, first)]
    steps = [*others, *ahead, *((path, None) for path in first.removes), *first.writes.items()]

    for number in range(len(steps) + 1):
        changed = contents | dict(steps[:number])
        left = {path: text for path, text in changed.items() if text is not None}
        now = with_files_of(seen, left)
        assert as_spark_sees(applied(left, repair(now))) == wanted, "as the ledger still knows"
        if number >= len(others) + len(ahead):
            assert as_spark_sees(applied(left, repair(without_record(now)))) == wanted


def test_a_repair_keeps_the_plan_that_the_ledger_knows_of_a_read_within_a_snapshot() -> None:
    """Its tables were set back, which a person agreed to, and Spark has purged the log."""
    set_back = replace(rewound(SCAN, SCAN | {"position": 5}, "offsets/3", "offsets/4"), back_from=None)

    assert offsets_of(repair(set_back).writes["offsets/4"]) == (text(SCAN | {"position": 5}),)
    stands_still = replace(rewound(SCAN, SCAN, "offsets/3", "offsets/4"), back_from=None)
    assert "offsets/4" not in repair(stands_still).writes


def test_a_batch_behind_which_more_is_planned_was_committed() -> None:
    """The commit is lost. Spark has planned the batch behind it, which may be visible in one of two outputs."""
    seen = position(without(WHOLE | {"offsets/6": entry(6)}, "commits/5"), visible=5)

    done = repair(seen)

    assert (done.stands_at, done.runs_again, "offsets/6" in done.removes) == (5, None, False)
    assert "commits/5" in done.writes


@pytest.mark.parametrize("following", [SCAN | {"position": 5}, SCAN | {"snapshot_id": 8}], ids=str)
def test_a_plan_behind_another_batch_is_not_kept_by_whoever_completes_a_rewind(
    following: dict[str, Any], tmp_path: Path
) -> None:
    """An earlier life of the stream has planned it, behind a batch 3 that ended elsewhere. Once that batch is written
    as it is now, and the ledger has forgotten the next one, nothing would show it."""
    contents = read(SCAN | {"position": 0}, following)
    for path, content in contents.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    seen = with_files_of(rewound(SCAN, SCAN | {"snapshot_id": 9}), contents)
    first = repair(seen)

    write_log_entries(replace(seen, checkpoint=tmp_path.as_uri()), first, sample_settings(tmp_path), unnoticed)

    left = {path: (tmp_path / path).read_text() for path in contents if (tmp_path / path).exists()}
    assert offsets_of(left["offsets/3"]) == (text(SCAN),)
    half = without_record(with_files_of(seen, left))
    for now in (half, replace(half, back_from=None)):
        assert "offsets/4" not in applied(left, repair(now))


def test_a_plan_that_ends_before_its_batch_does_not_read_on() -> None:
    behind = rewound(SCAN, SCAN | {"position": 1}, "offsets/3")

    assert "offsets/4" not in applied(read(SCAN, SCAN | {"position": 1}, "offsets/3"), repair(behind))
