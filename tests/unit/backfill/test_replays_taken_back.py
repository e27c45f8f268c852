"""Replays of a table that somebody rolls back or forward, or whose snapshots are expired: their rows are open again, or
marked again."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from tests.unit.backfill.test_replay_lane import NOON, STREAM, TARGET, Scene, claimed, scene

from sluice.backfill import replay_lane
from sluice.errors import IntervalChangedError
from sluice.publication.checked_commit import commit_checked
from sluice.publication.resolved_rejections import Resolution, ResolvedRows, mark_resolved
from sluice.stored_keys import PUBLICATION_KEY

__all__ = ["scene"]


def roll_back(scene: Scene, *, to: int | None) -> None:
    """As somebody else does it."""
    assert to is not None
    scene.catalog.load_table(TARGET).manage_snapshots().set_current_snapshot(to).commit()


def expire(scene: Scene, *, key: str) -> None:
    """As maintenance does with what no reference leads to."""
    table = scene.catalog.load_table(TARGET)
    (made,) = (one.snapshot_id for one in table.snapshots() if one.summary and one.summary.get(PUBLICATION_KEY) == key)
    table.maintenance.expire_snapshots().by_id(made).commit()


@pytest.mark.parametrize("expired", [False, True])
def test_what_was_marked_and_rolled_back_since_is_open_again_and_replayed_once(scene: Scene, *, expired: bool) -> None:
    scene.replay(7)
    scene.lane.settle(at=scene.now)
    key, head = scene.begin()
    scene.lane.claim(key, claimed({"8"}))
    scene.publish(key, head, 8)
    scene.lane.settle(at=scene.now)
    assert (scene.ids(), scene.open()) == ([1, 7, 8], set())
    roll_back(scene, to=head)
    if expired:
        expire(scene, key=key)
    assert scene.ids() == [1, 7]

    assert scene.lane.settle(at=scene.now) == 0
    assert scene.open() == {"8"}
    scene.replay(7, 8)

    assert scene.lane.settle(at=scene.now) == 1
    assert (scene.ids(), scene.open()) == ([1, 7, 8], set())


def test_a_rollback_is_noticed_after_a_replay_that_has_published_nothing(scene: Scene) -> None:
    before = scene.catalog.load_table(TARGET).metadata.current_snapshot_id
    scene.replay(7)
    scene.lane.settle(at=scene.now)
    scene.begin()
    roll_back(scene, to=before)

    scene.lane.notice_rollback()

    assert (scene.ids(), scene.open()) == ([1], {"7", "8"})


def test_a_tag_on_a_replay_whose_descendants_are_expired_in_part_is_no_rollback(scene: Scene) -> None:
    scene.replay(7)
    scene.lane.settle(at=scene.now)
    table = scene.catalog.load_table(TARGET)
    tagged = table.metadata.current_snapshot_id
    assert tagged is not None
    table.manage_snapshots().create_tag(tagged, "month_end").commit()
    for record in (100, 101):
        table = scene.catalog.load_table(TARGET)
        table.append(pa.table({"id": pa.array([record], pa.int64())}))
    table = scene.catalog.load_table(TARGET)
    main = table.current_snapshot()
    assert main is not None
    assert main.parent_snapshot_id is not None
    table.maintenance.expire_snapshots().by_id(main.parent_snapshot_id).commit()

    scene.lane.notice_rollback()

    assert (scene.ids(), scene.open()) == ([1, 7, 100, 101], {"8"})


def test_a_rollback_below_several_replays_opens_the_rows_of_all_of_them(scene: Scene) -> None:
    before = scene.catalog.load_table(TARGET).metadata.current_snapshot_id
    for record in (7, 8):
        scene.replay(record)
        scene.lane.settle(at=scene.now)
    scene.lane.notice_rollback()
    assert scene.open() == set()
    roll_back(scene, to=before)
    scene.lane.notice_rollback()
    assert scene.open() == {"7", "8"}

    scene.replay(7, 8)

    scene.lane.settle(at=scene.now)
    assert (scene.ids(), scene.open()) == ([1, 7, 8], set())


def test_what_is_rolled_back_and_forward_is_marked_again(scene: Scene) -> None:
    before = scene.catalog.load_table(TARGET).metadata.current_snapshot_id
    scene.replay(7, 8)
    made = scene.catalog.load_table(TARGET).metadata.current_snapshot_id
    scene.lane.settle(at=scene.now)
    roll_back(scene, to=before)
    scene.lane.settle(at=scene.now)
    assert scene.open() == {"7", "8"}
    roll_back(scene, to=made)

    assert scene.lane.settle(at=scene.now) == 2
    assert (scene.ids(), scene.open()) == ([1, 7, 8], set())


@pytest.mark.parametrize("between", ["nothing", "a discard", "a look behind the first"])
def test_what_is_rolled_back_below_several_replays_and_forward_is_marked_again(scene: Scene, between: str) -> None:
    heads = [scene.catalog.load_table(TARGET).metadata.current_snapshot_id]
    for record in (7, 8):
        scene.replay(record)
        scene.lane.settle(at=scene.now)
        heads.append(scene.catalog.load_table(TARGET).metadata.current_snapshot_id)
    roll_back(scene, to=heads[0])
    scene.lane.settle(at=scene.now)
    assert scene.open() == {"7", "8"}
    if between == "a discard":
        scene.begin()
    elif between == "a look behind the first":
        roll_back(scene, to=heads[1])
        scene.lane.settle(at=scene.now)
        assert (scene.ids(), scene.open()) == ([1, 7], {"8"})
    roll_back(scene, to=heads[2])

    scene.lane.settle(at=scene.now)

    assert (scene.ids(), scene.open()) == ([1, 7, 8], set())


def test_what_was_claimed_and_never_published_stays_open_when_nothing_of_its_replay_is_left(scene: Scene) -> None:
    scene.replay(7)
    key, _ = scene.begin()
    scene.lane.claim(key, claimed({"8"}))
    scene.begin()
    expire(scene, key=f"{key}/fence")

    scene.lane.settle(at=scene.now)

    assert (scene.ids(), scene.open()) == ([1, 7], {"8"})


def test_what_a_replay_published_before_it_died_is_marked_when_all_of_it_is_expired(scene: Scene) -> None:
    key, head = scene.begin()
    scene.lane.claim(key, claimed({"7"}))
    scene.publish(key, head, 7)
    scene.catalog.load_table(TARGET).append(pa.table({"id": pa.array([100], pa.int64())}))
    for one in (key, f"{key}/fence"):
        expire(scene, key=one)

    assert scene.lane.settle(at=scene.now) == 1
    assert (scene.ids(), scene.open()) == ([1, 7, 100], {"8"})


def test_a_rollback_while_a_fence_is_set_refuses_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    before = scene.catalog.load_table(TARGET).metadata.current_snapshot_id
    scene.replay(7)
    scene.lane.settle(at=scene.now)
    published = commit_checked

    def late(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(replay_lane, "commit_checked", published)
        roll_back(scene, to=before)
        return published(*given, **more)

    monkeypatch.setattr(replay_lane, "commit_checked", late)
    with pytest.raises(IntervalChangedError, match="rolled back"):
        scene.begin()

    scene.begin()
    assert (scene.ids(), scene.open()) == ([1], {"7", "8"})


def test_what_was_resolved_otherwise_stays_so_below_a_rollback(scene: Scene) -> None:
    before = scene.catalog.load_table(TARGET).metadata.current_snapshot_id
    discarded = ResolvedRows(
        stream=STREAM.stream, rows=claimed({"8"}), resolution=Resolution.DISCARDED, by="a person", at=NOON
    )
    mark_resolved(scene.catalog, STREAM.quarantine_table, discarded)
    scene.replay(7)
    scene.lane.settle(at=scene.now)
    roll_back(scene, to=before)

    scene.lane.settle(at=scene.now)

    assert scene.open() == {"7"}
