"""A copy in the place of a checkpoint without its state: when it helps, and what a restore that broke off leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.fakes.checkpoint_files import WRITTEN_AT, FakeCheckpointFiles
from tests.unit.positions.test_repair_decision import (
    NOON,
    QUERY,
    STATEFUL,
    applied,
    entry,
    files,
    found,
    line,
    position,
    without,
)

from sluice.checkpoints.checkpoint_copies import CheckpointCopy, copies_location, copy_checkpoint, list_copies
from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.checkpoints.checkpoint_layout import metadata_of, replayed_entry, replayed_through
from sluice.errors import CheckpointError
from sluice.operations import Refusal
from sluice.positions.repair_decision import CheckpointRepair, decide_repair
from sluice.positions.restore_copy import decide_replay, decide_restore, put_copy
from sluice.positions.stream_position import StreamPosition
from sluice.publication.chain import MarkPosition
from sluice.publication.crash_points import CrashPoint, unnoticed
from sluice.settings import ObjectStoreSettings

LOST = without(STATEFUL, *(path for path in STATEFUL if path.startswith("state/")))
WITH_FILES = STATEFUL | {"state/0/0/sst/1.sst": "to what a full state refers, and no check misses"}
DAMAGES = {
    "lost": LOST | {".metadata.crc": "of Hadoop"},
    "of another batch": {path: "y" if path.startswith("state/") else text for path, text in STATEFUL.items()}
    | {"offsets/5": entry(90)},
}
STEPS = [(name, step) for name, contents in DAMAGES.items() for step in range(1, len(contents) + len(WITH_FILES))]
"""The files that go, and those that come: `metadata` comes with the repair."""


def put_into(root: Path, contents: Mapping[str, str]) -> LocalCheckpointFiles:
    """A checkpoint on the disk."""
    checkpoint = LocalCheckpointFiles(root.as_uri())
    for path, text in contents.items():
        checkpoint.write_text(path, text)
    return checkpoint


def copied(root: Path, contents: Mapping[str, str], *, hours: int = 1) -> CheckpointCopy:
    """The copy that a stop has made, `hours` after all was written."""
    store = LocalCheckpointFiles(copies_location(root.as_uri()))
    now = WRITTEN_AT + timedelta(hours=hours)
    copy = copy_checkpoint(FakeCheckpointFiles(dict(contents)), store, now=now, token=1, require=lambda: None)
    assert copy is not None
    return copy


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The folder of the checkpoint."""
    return tmp_path / "silver" / "1"


def helped(seen: StreamPosition) -> CheckpointRepair | None:
    """What a copy helps, whose storage answers."""
    found = decide_restore(seen, ObjectStoreSettings())
    assert not isinstance(found, Refusal)
    return found


def restore(root: Path, contents: Mapping[str, str], *, visible: int) -> CheckpointRepair | None:
    """What a copy helps a stream whose tables hold batches up to `visible`."""
    seen = position(contents, visible=visible, state=True, checkpoint=root.as_uri())
    assert isinstance(decide_repair(seen), Refusal)
    return helped(seen)


@pytest.mark.parametrize(
    ("set_back_to", "by", "staged_by", "is_restored"),
    [
        (3, 2, None, False),
        (3, 2, 2, False),
        (3, 1, 2, False),
        (3, 2, 1, True),
        (5, 2, 2, True),
        (3, 0, 2, True),
    ],
)
def test_a_copy_of_a_batch_that_was_read_again_since_is_not_restored(
    root: Path, set_back_to: int, by: int, staged_by: int | None, is_restored: bool
) -> None:
    """The copy is of run 1. What was staged before is published again after a table was set back, and is the same."""
    copied(root, STATEFUL)
    seen = position(LOST, visible=5, state=True, checkpoint=root.as_uri())
    move = MarkPosition(generation=1, batch=set_back_to, token=by, end_offsets_digest=None)
    seen = replace(
        seen,
        tables=tuple(replace(one, adopted=(move,)) for one in seen.tables),
        batches={**seen.batches, 5: replace(seen.batches[5], token=staged_by)},
    )

    assert (helped(seen) is not None) is is_restored


def test_a_copy_at_the_batch_of_the_tables_is_put_in_place(root: Path) -> None:
    copy = copied(root, STATEFUL)

    found = restore(root, LOST, visible=5)

    assert found is not None
    assert (found.restores, found.stands_at, found.runs_again, found.rows_read_again) == (copy, 5, None, 0)
    assert (found.removes, list(found.writes)) == ((), ["metadata"])


def test_behind_a_copy_that_is_one_batch_old_spark_runs_the_newest_again(root: Path) -> None:
    copied(root, files(planned=4, committed=4, state=5))

    found = restore(root, {}, visible=5)

    assert found is not None
    assert (found.stands_at, found.runs_again, found.rows_read_again) == (4, 5, 10)
    assert list(found.writes) == ["offsets/5", "metadata"]


def test_from_a_copy_that_is_older_the_next_run_takes_the_state_on(root: Path) -> None:
    copied(root, files(planned=3, committed=3, state=4))

    found = restore(root, LOST, visible=5)

    assert found is not None
    assert (found.stands_at, found.runs_again, found.replays, found.rows_read_again) == (3, None, (4, 5), 20)
    assert list(found.writes) == ["replay/4", "replay/5", "metadata"]
    assert found.removes == ()


def test_a_copy_of_another_query_of_the_name_does_not_help(root: Path) -> None:
    copied(root, STATEFUL | {"metadata": STATEFUL["metadata"].replace(QUERY, str(uuid4()))})
    assert restore(root, LOST, visible=5) is None


@pytest.mark.parametrize("committed", [4, 5])
def test_a_copy_of_what_was_read_in_other_batches_does_not_help(root: Path, committed: int) -> None:
    """As when a table was rolled back and its rows were read again: the state is of what was read before that."""
    other = files(planned=committed, committed=committed, state=committed + 1)
    copied(root, other | {f"offsets/{committed}": entry(committed + 90)})
    assert restore(root, LOST, visible=5) is None


def test_a_copy_that_nobody_confirms_does_not_help(root: Path) -> None:
    copied(root, files(planned=4, committed=4, state=5))
    seen = position(LOST, visible=5, state=True, checkpoint=root.as_uri())
    unknown = {5: replace(seen.batches[5], starts=None)}
    assert helped(seen) is not None
    assert helped(replace(seen, batches=unknown)) is None


def test_a_copy_does_not_know_the_files_of_a_batch_behind_it(root: Path) -> None:
    copy = files(planned=4, committed=4, state=5) | {"sources/0/4": "v1"}
    copied(root, copy)
    seen = position(LOST, visible=5, state=True, checkpoint=root.as_uri(), own_memory=("records",))
    assert helped(seen) is None
    copied(root, copy | {"offsets/5": entry(5), "sources/0/5": "v1"}, hours=2)  # the stop interrupted it

    found = helped(seen)

    assert found is not None
    assert (found.stands_at, found.runs_again) == (4, 5)


def test_without_a_copy_there_is_none(root: Path) -> None:
    assert restore(root, LOST, visible=5) is None


def test_where_the_newest_copy_is_damaged_the_one_before_it_helps(root: Path) -> None:
    older = copied(root, files(planned=4, committed=4, state=5))
    newer = copied(root, STATEFUL, hours=2)
    store = LocalCheckpointFiles(copies_location(root.as_uri()))
    store.write_text(next(one.kept_at for one in newer.files if one.path == "offsets/5"), "zeros")

    found = restore(root, LOST, visible=5)

    assert found is not None
    assert found.restores == older
    with pytest.raises(CheckpointError, match="is not what was copied"):
        put_copy(put_into(root, LOST), store, newer, unnoticed)
    assert {one.path for one in LocalCheckpointFiles(root.as_uri()).list_files()} == set(LOST), "nothing is changed"


class _KilledError(Exception):
    """Stands for the death of the process."""


@pytest.mark.parametrize(("damage", "step"), STEPS)
def test_a_restore_that_was_killed_is_completed_by_another(root: Path, damage: str, step: int) -> None:
    copied(root, WITH_FILES)
    store = LocalCheckpointFiles(copies_location(root.as_uri()))
    checkpoint = put_into(root, DAMAGES[damage])
    passed: list[CrashPoint] = []

    def die(point: CrashPoint) -> None:
        passed.append(point)
        if len(passed) == step:
            raise _KilledError

    with pytest.raises(_KilledError):
        put_copy(checkpoint, store, list_copies(store)[0], die)
    half = {one.path: checkpoint.read_text(one.path) or "" for one in checkpoint.list_files()}

    assert "metadata" not in half, "no run starts from what is half restored"
    seen = position(half, visible=5, state=True, checkpoint=root.as_uri())
    again = decide_repair(seen)
    if isinstance(again, CheckpointRepair):  # only the last entries are missing, and they follow from the tables
        done = applied(half, again)
        assert again.stands_at >= 4
        assert (
            done.items() >= {path: text for path, text in WITH_FILES.items() if path.startswith("state/0/0/")}.items()
        )
        assert set(done) >= {"metadata", "offsets/5", f"commits/{again.stands_at}"}
        return
    found = helped(seen)
    assert found is not None
    assert found.restores is not None
    put_copy(checkpoint, store, found.restores, unnoticed)
    whole = {one.path: checkpoint.read_text(one.path) or "" for one in checkpoint.list_files()}
    assert applied(whole, found) == WITH_FILES


COPY = files(planned=2, committed=2, state=3)
"""What a stop has left; the tables are at batch 5."""


def behind(contents: Mapping[str, str] = COPY, **more: Any) -> StreamPosition:
    """A stream whose checkpoint is the copy."""
    return position(contents, visible=5, state=True, **more)


def replay(seen: StreamPosition) -> CheckpointRepair:
    """The repair, which is not refused."""
    decided = decide_replay(seen)
    assert decided is not None
    return decided


def test_each_batch_up_to_the_tables_is_left_to_the_next_run_as_it_was() -> None:
    decided = replay(behind())

    assert (decided.stands_at, decided.runs_again, decided.replays) == (2, None, (3, 4, 5))
    assert (decided.removes, decided.rows_read_again) == ((), 30)
    assert list(decided.writes) == ["replay/3", "replay/4", "replay/5"]
    header, metadata, offset = decided.writes["replay/4"].splitlines()
    assert (header, offset) == ("v1", line(4))
    assert json.loads(metadata) == {
        "batchWatermarkMs": 0,
        "batchTimestampMs": round(NOON.timestamp() * 1000),
        "conf": {"spark.sql.shuffle.partitions": "2"},
    }
    assert json.loads(decided.reads_from or "") == {"records": {"t": {"0": 30}}}


def test_a_batch_has_the_watermark_that_it_had() -> None:
    seen = behind()
    known = {number: replace(one, watermark=NOON) for number, one in seen.batches.items()}
    text = replay(replace(seen, batches=known)).writes["replay/3"]
    assert json.loads(metadata_of(text))["batchWatermarkMs"] == round(NOON.timestamp() * 1000)


@pytest.mark.parametrize(("behind_it", "wanted"), [(3, 7), (9, 9)])
def test_where_the_batch_before_it_leads_further_that_is_its_watermark(behind_it: int, wanted: int) -> None:
    text = replayed_entry(entry(4, watermark=7), before=entry(3), commit=f'v1\n{{"nextBatchWatermarkMs":{behind_it}}}')
    assert json.loads(metadata_of(text))["batchWatermarkMs"] == wanted
    assert text.splitlines()[2:] == [line(4)]


def test_the_batch_that_the_stop_interrupted_stays_planned() -> None:
    assert "offsets/3" not in replay(behind(files(planned=3, committed=2, state=3))).removes
    other = files(planned=2, committed=2, state=3) | {"offsets/3": entry(90)}
    assert decide_replay(behind(other)) is None, "its state is of another batch 3"


@pytest.mark.parametrize(
    "more",
    [
        {"own_memory": ("records",)},
        {"has_static_inputs": True},
        {"has_other_outputs": True},
    ],
)
def test_what_may_read_something_else_or_shows_no_mark_is_not_run_again(more: dict[str, Any]) -> None:
    assert decide_replay(behind(**more)) is None


@pytest.mark.parametrize("number", [3, 4, 5])
def test_a_batch_of_which_nothing_is_known_is_not_run_again(number: int) -> None:
    seen = behind()
    known = {one: batch for one, batch in seen.batches.items() if one != number}
    assert decide_replay(replace(seen, batches=known)) is None


def test_state_that_is_not_whole_is_taken_nowhere() -> None:
    assert decide_replay(behind(without(COPY, "state/0/0/3.delta"))) is None


def test_what_some_output_is_ahead_of_is_not_run_again() -> None:
    seen = behind()
    (table,) = seen.tables
    assert table.position is not None
    ahead = replace(table, newest_waiting=6, position=replace(table.position, batch=6))
    assert decide_replay(replace(seen, tables=(table, ahead))) is None


def test_one_batch_back_is_no_replay() -> None:
    assert decide_replay(behind(files(planned=4, committed=4, state=5))) is None


def test_what_is_left_to_run_counts_as_planned_while_none_is_missing() -> None:
    left = replay(behind()).writes

    assert found(behind(COPY | dict(left))) == []
    half = files(planned=4, committed=3, state=4) | {path: left[path] for path in ("replay/4", "replay/5")}
    assert found(behind(half)) == [], "a run was killed within batch 4"
    contents = behind(half).contents
    assert contents is not None
    assert replayed_through(contents.files) == 5
    assert found(behind(without(COPY | dict(left), "replay/4"))) == ["checkpoint behind"]
    assert found(behind(without(COPY | dict(left), "replay/3"))) == ["checkpoint behind"]
