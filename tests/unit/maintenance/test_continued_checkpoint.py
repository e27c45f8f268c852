"""The checkpoint that continues another one behind a batch: moved offsets, the watermark, the state at one version."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest
from tests.fakes.checkpoint_files import FakeCheckpointFiles

from sluice.checkpoints.checkpoint_layout import BEGUN, EMPTY_COMMIT
from sluice.errors import CheckpointError
from sluice.maintenance.continuation import plan_checkpoint, write_checkpoint
from sluice.maintenance.reading_position import ReadingPosition, SourcePosition
from sluice.sources.iceberg_positions import StreamOffset

OLD = StreamOffset(snapshot_id=7, position=1, scan_all_files=False)
START = StreamOffset(snapshot_id=9, position=0, scan_all_files=True)
END = StreamOffset(snapshot_id=9, position=3, scan_all_files=False)
KAFKA = '{"topic":{"0":12}}'
OFFSETS = "\n".join(["v1", '{"batchWatermarkMs":1000,"batchTimestampMs":5,"conf":{}}', KAFKA, OLD.text()])
POSITION = ReadingPosition(
    batch=4,
    is_committed=True,
    planned=4,
    query_id="query",
    offsets=OFFSETS,
    sources=(SourcePosition(input="events", table="bronze.events", line=3, offset=OLD),),
)
WANTED_STATE = {
    "state/0/_metadata/v2/0": "operators",
    "state/0/0/4.snapshot": "full",
    "state/0/0/5.delta": "changes of batch 4",
    "state/0/0/5.delta.crc": "sizes",
    "state/0/1/5_a1b2.zip": "full",
    "state/0/1/SSTs/000012-4f.sst": "rows",
}
ABANDONED_STATE = {
    "state/0/0/6.delta": "changes of a batch that was planned",
    "state/0/0/6.delta.crc": "sizes",
    "state/0/1/6_c3d4.zip": "full",
    "state/0/0/.5.delta.crc": "Hadoop's own",
}


def old_checkpoint(*, commit: str = 'v1\n{"nextBatchWatermarkMs":2500}') -> FakeCheckpointFiles:
    """The checkpoint of a stream with state whose batch 4 is done; batch 5 was planned."""
    files = {
        "metadata": '{"id":"q"}',
        "sources/1/offsets/0": "first",
        "offsets/3": "of the batch before",
        "offsets/4": OFFSETS,
        "offsets/5": "of the batch that was planned",
        "commits/3": "commit of the batch before",
        "commits/4": commit,
    }
    return FakeCheckpointFiles({**files, **WANTED_STATE, **ABANDONED_STATE})


def test_only_the_cut_source_is_moved_and_the_range_is_the_next_batch() -> None:
    content = plan_checkpoint(old_checkpoint(), POSITION, starts={3: START.text()}, ends={3: END.text()})

    assert content.texts["offsets/4"].splitlines() == [*OFFSETS.splitlines()[:3], START.text()]
    assert content.texts["offsets/5"].splitlines()[2:] == [KAFKA, END.text()]
    assert (content.texts["metadata"], content.texts["sources/1/offsets/0"]) == ('{"id":"q"}', "first")


@pytest.mark.parametrize(("behind", "watermark"), [(2500, 2500), (0, 1000)])
def test_the_range_is_planned_with_the_watermark_that_the_batch_before_it_left(behind: int, watermark: int) -> None:
    old = old_checkpoint(commit=f'v1\n{{"nextBatchWatermarkMs":{behind}}}')

    content = plan_checkpoint(old, POSITION, starts={3: START.text()}, ends={3: END.text()})

    planned = json.loads(content.texts["offsets/5"].splitlines()[1])
    assert planned == {"batchWatermarkMs": watermark, "batchTimestampMs": 5, "conf": {}}


def test_without_a_range_the_next_batch_is_left_to_spark() -> None:
    content = plan_checkpoint(old_checkpoint(), POSITION, starts={3: START.text()}, ends={})

    assert "offsets/5" not in content.texts


def test_spark_finds_the_batch_before_the_newest_one_that_is_done() -> None:
    content = plan_checkpoint(old_checkpoint(), POSITION, starts={3: START.text()}, ends={})

    assert content.texts["offsets/3"] == "of the batch before"
    assert content.texts["commits/3"] == "commit of the batch before"


def test_a_batch_before_that_was_removed_is_replaced() -> None:
    old = old_checkpoint()
    del old.texts["offsets/3"], old.texts["commits/3"]

    content = plan_checkpoint(old, POSITION, starts={3: START.text()}, ends={3: END.text()})

    assert content.texts["offsets/3"] == OFFSETS
    assert json.loads(content.texts["commits/3"].splitlines()[1]) == {"nextBatchWatermarkMs": 0}


def test_there_is_no_batch_before_the_first_one() -> None:
    content = plan_checkpoint(old_checkpoint(), replace(POSITION, batch=0), starts={3: START.text()}, ends={})

    assert sorted(path for path in content.texts if path.startswith("offsets/")) == ["offsets/0"]


def test_the_state_is_copied_as_it_was_behind_the_batch() -> None:
    old, new = old_checkpoint(), FakeCheckpointFiles({})
    content = plan_checkpoint(old, POSITION, starts={3: START.text()}, ends={3: END.text()})

    for _ in range(2):  # a second try completes a first one
        write_checkpoint(old, new, content, stream="orders")

    assert {path: text for path, text in new.texts.items() if path.startswith("state/")} == WANTED_STATE
    assert content.state_bytes == sum(len(text) for text in WANTED_STATE.values())


def test_a_file_of_the_state_that_disappears_ends_the_copy() -> None:
    old, new = old_checkpoint(), FakeCheckpointFiles({})
    content = plan_checkpoint(old, POSITION, starts={3: START.text()}, ends={3: END.text()})
    del old.texts["state/0/0/5.delta"]

    with pytest.raises(CheckpointError, match=r"state/0/0/5\.delta of the checkpoint memory://checkpoint is gone"):
        write_checkpoint(old, new, content, stream="orders")

    assert "offsets/4" not in new.texts, "nothing can start from it"


def ran_on(old: FakeCheckpointFiles) -> FakeCheckpointFiles:
    """A checkpoint whose stream has run batches 5 and 6 since, each planned at a time of its own."""
    entries = {f"offsets/{one}": OFFSETS.replace(":5,", f":{one}0,") for one in (5, 6)}
    return FakeCheckpointFiles({**old.texts, **entries, "commits/5": EMPTY_COMMIT, "commits/6": EMPTY_COMMIT})


@pytest.mark.parametrize("is_removed", [False, True])
@pytest.mark.parametrize("ends", [{}, {3: END.text()}])
def test_a_try_that_died_at_any_of_its_files_is_replaced(ends: Mapping[int, str], *, is_removed: bool) -> None:
    """Also when the old checkpoint lacked the entry of the batch before, for which the one of the batch stands in."""
    old = old_checkpoint()
    old.texts["offsets/3"] = OFFSETS.replace(":5,", ":4,")
    if is_removed:
        del old.texts["offsets/3"]
    tried = plan_checkpoint(old, POSITION, starts={3: START.text()}, ends=ends).texts
    later = ran_on(old)
    wanted = plan_checkpoint(later, replace(POSITION, batch=6, planned=6), starts={3: START.text()}, ends={})

    for written in range(len(tried) + 1):
        new = FakeCheckpointFiles(dict(list(tried.items())[:written]))
        write_checkpoint(later, new, wanted, stream="orders")
        assert {path: new.texts[path] for path in new.texts if not path.startswith("state/")} == wanted.texts


def test_a_plan_of_a_run_is_not_taken_for_that_of_a_try() -> None:
    old = old_checkpoint()
    content = plan_checkpoint(old, POSITION, starts={3: START.text()}, ends={})
    new = FakeCheckpointFiles({**content.texts, "offsets/5": OFFSETS.replace(":5,", ":51,")})

    with pytest.raises(CheckpointError, match="contains offsets/5 already"):
        write_checkpoint(ran_on(old), new, content, stream="orders")


def test_a_checkpoint_that_has_begun_is_not_written_over() -> None:
    """An older copy of the ledger does not know it."""
    old = old_checkpoint()
    new = FakeCheckpointFiles({})
    content = plan_checkpoint(old, POSITION, starts={3: START.text()}, ends={3: END.text()})
    write_checkpoint(old, new, content, stream="orders")
    new.write_text(BEGUN, "query")

    with pytest.raises(CheckpointError, match="contains begun already"):
        write_checkpoint(old, new, content, stream="orders")

    assert new.read_text(BEGUN) == "query"


def test_files_of_another_origin_are_not_mixed_with() -> None:
    old, new = old_checkpoint(), FakeCheckpointFiles({"offsets/9": "of somebody else"})

    content = plan_checkpoint(old, POSITION, starts={3: START.text()}, ends={3: END.text()})
    with pytest.raises(CheckpointError, match=r"contains offsets/9 already.* ledger does not know") as refused:
        write_checkpoint(old, new, content, stream="orders")

    assert "`sluice stream repair orders --dry-run`" in (refused.value.next_step or "")
