"""What a table asks other expiries to keep."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta

import pytest

from sluice.declarations.maintenance_declaration import ExpiryDeclaration
from sluice.maintenance.retention_plan import (
    MAX_AGE_MS,
    MIN_SNAPSHOTS,
    RetentionNeed,
    SnapshotOnMain,
    need_of,
    plan_retention,
    short_retentions,
)
from sluice.stored_keys import KEPT_FOR_READERS

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
POLICY = ExpiryDeclaration(older_than=5 * DAY, retain_last=20)
DAY_MS = 24 * 3600 * 1000


def plan(
    need: RetentionNeed | None,
    properties: Mapping[str, str] | None = None,
    *,
    declared: Collection[str] = (),
    policy: ExpiryDeclaration | None = POLICY,
) -> dict[str, str]:
    """The planned properties without the note of what is ours."""
    planned = plan_retention(properties=properties or {}, declared=declared, need=need, policy=policy)
    return {name: value for name, value in planned.items() if name != KEPT_FOR_READERS}


def needing(snapshots: int, age: timedelta = HOUR) -> RetentionNeed:
    """What a reader needs."""
    return RetentionNeed(snapshots=snapshots, age=age)


def ours(value: int) -> dict[str, str]:
    """A number of snapshots that an earlier plan has set."""
    return {MIN_SNAPSHOTS: str(value), KEPT_FOR_READERS: json.dumps({MIN_SNAPSHOTS: value})}


def test_the_need_reaches_from_the_slowest_position_to_the_newest_snapshot() -> None:
    line = tuple(SnapshotOnMain(snapshot_id=number, committed_at=NOW - (9 - number) * HOUR) for number in (9, 8, 7, 6))

    assert need_of({8, 7}, main_line=line, now=NOW) == RetentionNeed(snapshots=3, age=2 * HOUR)
    assert need_of({1}, main_line=line, now=NOW) is None


def test_by_the_clocks_of_writers_a_later_snapshot_may_be_the_oldest_that_is_needed() -> None:
    """Expiry looks at the times alone: an age by the deepest snapshot would expire the one before it."""
    line = (
        SnapshotOnMain(snapshot_id=9, committed_at=NOW),
        SnapshotOnMain(snapshot_id=8, committed_at=NOW - 5 * HOUR),
        SnapshotOnMain(snapshot_id=7, committed_at=NOW - 2 * HOUR),
    )

    assert need_of({7}, main_line=line, now=NOW) == RetentionNeed(snapshots=3, age=5 * HOUR)


@pytest.mark.parametrize(
    ("need", "snapshots"),
    [(needing(1), "20"), (needing(10), "32"), (needing(15), "32"), (needing(300), "1024")],
)
def test_twice_to_four_times_the_need_is_kept_and_never_less_than_the_policy(
    need: RetentionNeed, snapshots: str
) -> None:
    assert plan(need) == {MIN_SNAPSHOTS: snapshots}


def test_the_age_follows_a_reader_that_is_away_for_days() -> None:
    planned = plan(needing(1, 4 * DAY + timedelta(minutes=30)), {MIN_SNAPSHOTS: "20"})

    assert planned == {MAX_AGE_MS: str(8 * DAY_MS + 3600 * 1000)}


def test_what_is_enough_is_left_alone() -> None:
    assert plan(needing(300), ours(1024)) == {}
    assert plan(needing(700), ours(1024)) == {}


def test_what_was_set_for_a_slow_reader_is_lowered_when_it_has_caught_up() -> None:
    assert plan(needing(10), ours(1024)) == {MIN_SNAPSHOTS: "32"}
    assert plan(needing(10), ours(1024), policy=None) == {}  # a driver does not know the policy


def test_the_value_of_a_person_is_raised_when_it_is_too_low_and_never_lowered() -> None:
    assert plan(needing(300), {MIN_SNAPSHOTS: "100"}) == {MIN_SNAPSHOTS: "1024"}
    assert plan(needing(10), {MIN_SNAPSHOTS: "5000"}) == {}
    assert plan(needing(10), ours(1024) | {MIN_SNAPSHOTS: "5000"}) == {}


def test_a_declared_value_stays_and_is_reported_when_it_is_too_low() -> None:
    properties = {MIN_SNAPSHOTS: "5"}

    assert plan(needing(300), properties, declared=(MIN_SNAPSHOTS,)) == {}
    (short,) = short_retentions(properties=properties, declared=(MIN_SNAPSHOTS,), need=needing(300))
    assert str(short) == ("`history.expire.min-snapshots-to-keep` is declared as 5, and the slowest reader needs 300")
    assert short_retentions(properties={MIN_SNAPSHOTS: "500"}, declared=(MIN_SNAPSHOTS,), need=needing(300)) == ()


def test_without_readers_nothing_is_set() -> None:
    assert plan(None) == {}


def test_a_note_that_another_writer_has_broken_is_written_again() -> None:
    planned = plan_retention(properties={KEPT_FOR_READERS: "no json"}, declared=(), need=needing(10), policy=POLICY)

    assert json.loads(planned[KEPT_FOR_READERS]) == {MIN_SNAPSHOTS: 32}
