"""State from a copy that is several batches behind the tables: when the batches between are run again, and how."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.positions.test_repair_decision import NOON, entry, files, found, line, position, without

from sluice.checkpoints.checkpoint_logs import metadata_of
from sluice.checkpoints.replayed_batches import replayed_entry, replayed_through
from sluice.positions.repair_decision import CheckpointRepair
from sluice.positions.restore_copy import decide_replay
from sluice.positions.stream_position import StreamPosition

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
