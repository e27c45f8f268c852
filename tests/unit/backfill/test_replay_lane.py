"""The lane of replays, on tables with real files: what is visible once stays visible once, whoever comes between."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from tests.unit.pages.test_quarantine_page import declared

from sluice.backfill import replay_lane
from sluice.backfill.replay_lane import ReplayLane, replay_key
from sluice.declarations.loaded_declarations import quarantine_declaration
from sluice.errors import IntervalChangedError, UnpublishableError
from sluice.publication.checked_commit import commit_checked
from sluice.publication.crash_points import CrashPoint
from sluice.publication.resolved_rejections import RejectedAt
from sluice.publication.staged_batch import StagedOutput
from sluice.tables.declared_tables import create_or_evolve_table

STREAM = declared("email")
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
TARGET, STAGING = "typed.orders", "typed.staging"
IDS = Schema(NestedField(1, "id", LongType(), required=False))


@dataclass(kw_only=True)
class Scene:
    """A target with one row, and a quarantine with the records 7 and 8. Replays begin a minute after one another."""

    catalog: Catalog
    now: datetime = field(default=NOON)

    @property
    def lane(self) -> ReplayLane:
        """The lane of the stream's one output."""
        output = StagedOutput(stream=STREAM.stream, output="main", target=TARGET)
        return ReplayLane(catalog=self.catalog, output=output, quarantine=STREAM.quarantine_table)

    def begin(self) -> tuple[str, int]:
        """The key and the head of a replay behind its fence."""
        self.now += timedelta(minutes=1)
        key = replay_key(STREAM.stream, now=self.now)
        return key, self.lane.fence(key, at=self.now)

    def publish(self, key: str, head: int, *ids: int, schema: Schema = IDS, **more: Any) -> int:
        """Make rows visible, as they are in the staging table."""
        if self.catalog.table_exists(STAGING):
            self.catalog.drop_table(STAGING)
        staging = self.catalog.create_table(STAGING, schema)
        staging.append(pa.table({"id": ids}).cast(staging.schema().as_arrow()))
        files = [task.file for task in staging.scan().plan_files()]
        return self.lane.publish(key, head=head, staging=staging, staged=files, rows=len(ids), **more)

    def replay(self, *ids: int) -> None:
        """The steps of a replay up to its commit, for the records that are open."""
        key, head = self.begin()
        self.lane.claim(key, claimed({str(one) for one in ids} & self.open()))
        self.publish(key, head, *sorted(map(int, self.open() & {str(one) for one in ids})))

    def ids(self) -> list[int]:
        """The rows of the target."""
        return sorted(row["id"] for row in self.catalog.load_table(TARGET).scan().to_arrow().to_pylist())

    def open(self) -> set[str]:
        """The positions of the rows that are open."""
        rows = self.catalog.load_table(STREAM.quarantine_table).scan().to_arrow().to_pylist()
        return {row["position"] for row in rows if row["resolved_at"] is None}


def claimed(places: set[str], *, batch: int = 1) -> set[RejectedAt]:
    """The rows of these positions, of one batch."""
    return {RejectedAt(place=place, generation=1, batch=batch, payload="{}") for place in places}


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """In pyiceberg's own catalog in a file."""
    catalog = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    create_or_evolve_table(catalog, quarantine_declaration(STREAM))
    catalog.create_namespace_if_not_exists("typed")
    catalog.create_table(TARGET, IDS).append(pa.table({"id": pa.array([1], pa.int64())}))
    quarantine = catalog.load_table(STREAM.quarantine_table)
    same = {"stream": STREAM.stream, "generation": 1, "batch": 1, "reason": "why", "refused_at": NOON}
    rows = [{**same, "position": position, "payload": "{}"} for position in ("7", "8")]
    quarantine.append(pa.Table.from_pylist(rows, schema=quarantine.schema().as_arrow()))
    yield Scene(catalog=catalog)
    catalog.close()


def test_what_a_replay_published_before_it_died_is_marked_by_the_next_fence(scene: Scene) -> None:
    scene.replay(7)
    assert (scene.ids(), scene.open()) == ([1, 7], {"7", "8"})

    scene.replay(7, 8)

    assert scene.ids() == [1, 7, 8]
    assert scene.lane.settle(at=scene.now) == 1
    assert (scene.open(), scene.lane.settle(at=scene.now)) == (set(), 0)


def test_what_a_replay_did_not_publish_before_it_died_stays_open(scene: Scene) -> None:
    key, _ = scene.begin()
    scene.lane.claim(key, claimed({"7"}))

    assert scene.lane.settle(at=scene.now) == 0
    scene.replay(7, 8)

    scene.lane.settle(at=scene.now)
    assert (scene.ids(), scene.open()) == ([1, 7, 8], set())


def test_an_older_replay_that_was_paused_is_refused(scene: Scene) -> None:
    key, head = scene.begin()
    scene.lane.claim(key, claimed({"7", "8"}))
    scene.replay(7, 8)

    with pytest.raises(IntervalChangedError, match="another replay"):
        scene.publish(key, head, 7, 8)

    scene.lane.settle(at=scene.now)
    assert (scene.ids(), scene.open()) == ([1, 7, 8], set())


def test_a_replay_that_another_overtakes_at_its_commit_is_refused(scene: Scene) -> None:
    key, head = scene.begin()
    scene.lane.claim(key, claimed({"7", "8"}))
    overtaken: list[CrashPoint] = []

    def reached(step: CrashPoint) -> None:
        if not overtaken:
            overtaken.append(step)
            scene.begin()

    with pytest.raises(IntervalChangedError, match="another replay"):
        scene.publish(key, head, 7, 8, reached=reached)

    assert (scene.ids(), scene.open()) == ([1], {"7", "8"})


def test_a_fence_does_not_pass_over_what_becomes_visible_while_it_settles(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.replay(8)
    key, head = scene.begin()
    scene.lane.claim(key, claimed({"7"}))
    published = commit_checked

    def late(*given: Any, **more: Any) -> Any:
        monkeypatch.setattr(replay_lane, "commit_checked", published)
        scene.publish(key, head, 7)
        return published(*given, **more)

    monkeypatch.setattr(replay_lane, "commit_checked", late)
    with pytest.raises(IntervalChangedError, match="another replay"):
        scene.begin()

    scene.begin()
    assert (scene.ids(), scene.open()) == ([1, 7, 8], set())


def test_a_repeated_commit_of_a_replay_adds_nothing(scene: Scene) -> None:
    key, head = scene.begin()
    scene.lane.claim(key, claimed({"7"}))
    made_visible = scene.publish(key, head, 7)

    assert scene.publish(key, head, 7) == made_visible

    assert scene.ids() == [1, 7]


def test_what_another_has_written_into_the_target_meanwhile_refuses_a_replay(scene: Scene) -> None:
    key, head = scene.begin()
    scene.lane.claim(key, claimed({"7"}))
    scene.catalog.load_table(TARGET).append(pa.table({"id": pa.array([7], pa.int64())}))

    with pytest.raises(IntervalChangedError, match="another writer's"):
        scene.publish(key, head, 7)

    assert scene.ids() == [1, 7]


def test_rows_that_do_not_fit_the_target_any_more_are_refused(scene: Scene) -> None:
    key, head = scene.begin()
    as_text = Schema(NestedField(1, "id", StringType(), required=False))

    with pytest.raises(UnpublishableError, match="staged under another schema"):
        scene.publish(key, head, 7, schema=as_text)

    assert scene.ids() == [1]


def test_a_row_of_another_batch_at_the_same_place_stays_open(scene: Scene) -> None:
    key, head = scene.begin()
    scene.lane.claim(key, claimed({"7"}) | claimed({"8"}, batch=2))
    scene.publish(key, head, 7)

    assert scene.lane.settle(at=scene.now) == 1
    assert scene.open() == {"8"}


def test_what_was_published_and_rolled_back_since_stays_open(scene: Scene) -> None:
    before = scene.catalog.load_table(TARGET).metadata.current_snapshot_id
    scene.replay(7)
    assert before is not None
    scene.catalog.load_table(TARGET).manage_snapshots().set_current_snapshot(before).commit()

    scene.replay(7)

    assert scene.lane.settle(at=scene.now) == 1
    assert (scene.ids(), scene.open()) == ([1, 7], {"8"})


def test_a_closed_lane_has_marked_what_is_visible_and_refuses_what_is_under_way(scene: Scene) -> None:
    scene.replay(7)
    key, head = scene.begin()
    scene.lane.claim(key, claimed({"8"}))

    scene.lane.close(stream=STREAM.stream, at=scene.now + timedelta(seconds=1))

    assert scene.open() == {"8"}
    with pytest.raises(IntervalChangedError, match="another replay"):
        scene.publish(key, head, 8)


def test_a_lane_without_a_replay_is_closed_without_a_commit(scene: Scene) -> None:
    before = scene.catalog.load_table(TARGET).metadata.current_snapshot_id
    scene.lane.close(stream=STREAM.stream, at=scene.now)
    assert scene.catalog.load_table(TARGET).metadata.current_snapshot_id == before


def test_what_an_older_replay_published_is_unknown_once_both_of_its_snapshots_are_expired(scene: Scene) -> None:
    """It is of one that published, and of one that died before: a property has the newest of each alone."""
    published, head = scene.begin()
    scene.publish(published, head, 7)
    dead, _ = scene.begin()
    newest, head = scene.begin()
    scene.publish(newest, head, 8)
    made = [one.snapshot_id for one in scene.catalog.load_table(TARGET).snapshots()]

    def unknown(*keys: str) -> list[bool]:
        return [scene.lane.has_unknown()(key) for key in keys]

    assert unknown(published, dead, newest) == [False, False, False]
    for number in made[1:3]:
        scene.catalog.load_table(TARGET).maintenance.expire_snapshots().by_id(number).commit()
    assert unknown(published, dead, newest) == [True, False, False]
    scene.catalog.load_table(TARGET).maintenance.expire_snapshots().by_id(made[3]).commit()
    assert unknown(published, dead, newest) == [True, True, False]
    last, _ = scene.begin()
    for number in made[4:]:
        scene.catalog.load_table(TARGET).maintenance.expire_snapshots().by_id(number).commit()
    assert unknown(newest, last) == [False, False], "the property has them"


def test_a_replay_that_sorts_before_the_newest_one_is_refused(scene: Scene) -> None:
    """Keys are compared to know which of two is older: the clock of a ledger that was restored may be behind."""
    scene.begin()
    scene.now -= timedelta(minutes=5)

    with pytest.raises(IntervalChangedError, match="another replay"):
        scene.begin()
