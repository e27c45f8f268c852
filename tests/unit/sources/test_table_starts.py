"""Where a new checkpoint begins in a table: whole, after a time or a snapshot, or refused; never shortened."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from sluice.sources.iceberg_positions import StreamOffset, TableStep
from sluice.sources.table_starts import (
    NeedsAppend,
    SnapshotFiles,
    StartAmount,
    StartPlan,
    StartWay,
    TableStart,
    Unreachable,
    amount_of,
    plan_after_newest,
    plan_after_snapshot,
    plan_begun,
    plan_since,
    plan_whole_table,
)

OWN = SnapshotFiles(files=2, rows=20, adds_all=True)
INHERITED = SnapshotFiles(files=7, rows=70)
UNCLEAN = SnapshotFiles(files=7, rows=70, is_clean=False)
WITH_DELETES = SnapshotFiles(files=7, rows=70, delete_files=3)


def history(*operations: str) -> tuple[TableStep, ...]:
    """The history of a table, newest first, from its operations, oldest first; snapshot 1 is the oldest."""
    steps = [
        TableStep(
            snapshot_id=number,
            operation=operation,
            appended_rows=10 if operation == "append" else 0,
            appended_files=1 if operation == "append" else 0,
            appended_bytes=100 if operation == "append" else 0,
            committed_at_ms=number * 1000,
            total_rows=1000 + number,
            total_bytes=5000,
        )
        for number, operation in enumerate(operations, start=1)
    ]
    return tuple(reversed(steps))


def files(**by_snapshot: SnapshotFiles) -> Callable[[int], SnapshotFiles]:
    """The files of the snapshots `s1`, `s2` …; those of others are inherited in part and can be scanned."""
    return lambda snapshot_id: by_snapshot.get(f"s{snapshot_id}", INHERITED)


def scan(snapshot_id: int, end: int = 7) -> TableStart:
    return TableStart(
        way=StartWay.SCAN,
        first=StreamOffset(snapshot_id=snapshot_id, position=0, scan_all_files=True),
        scan_end=StreamOffset(snapshot_id=snapshot_id, position=end, scan_all_files=True),
    )


def begin(snapshot_id: int, way: StartWay = StartWay.HISTORY, position: int = 0) -> TableStart:
    return TableStart(way=way, first=StreamOffset(snapshot_id=snapshot_id, position=position, scan_all_files=False))


@pytest.mark.parametrize(
    ("operations", "found", "planned"),
    [
        (["append", "append", "replace", "append"], files(s1=OWN), begin(1)),
        (["append", "append"], files(), scan(1)),
        (["append", "overwrite", "append", "append"], files(s1=OWN), scan(3)),
        (["append", "delete", "append", "replace"], files(s1=OWN), scan(3)),
        (["replace", "append", "append"], files(), scan(2)),
        (["replace", "append", "append"], files(s2=UNCLEAN), scan(3)),
        (["replace", "append", "append"], files(s2=WITH_DELETES), scan(3)),
        (["replace"], files(), NeedsAppend(cleans=False)),
        (["replace"], files(s1=UNCLEAN), NeedsAppend(cleans=True)),
        (["append", "overwrite"], files(s1=OWN, s2=UNCLEAN), NeedsAppend(cleans=True)),
        (["append", "append"], files(s1=UNCLEAN, s2=UNCLEAN), NeedsAppend(cleans=True)),
        (["unknown", "append"], files(), scan(2)),
        (["append"], files(s1=SnapshotFiles(files=0, rows=0, adds_all=True)), begin(1)),
    ],
    ids=str,
)
def test_the_whole_table(operations: list[str], found: Callable[[int], SnapshotFiles], planned: StartPlan) -> None:
    assert plan_whole_table("b.t", history(*operations), found) == planned


@pytest.mark.parametrize("operations", [["append", "overwrite"], ["append", "append"], ["replace"]], ids=str)
def test_delete_files_that_every_snapshot_has_are_refused(operations: list[str]) -> None:
    found = plan_whole_table("b.t", history(*operations), lambda _: WITH_DELETES)
    assert isinstance(found, Unreachable)
    assert "b.t has 3 delete files" in found.reason
    assert "rewrite_data_files" in found.next_step


def test_only_what_is_appended_from_now_on() -> None:
    assert plan_after_newest(history("append", "append")) == begin(2, StartWay.AFTER, position=1)
    assert plan_after_newest(history("append", "replace")) == begin(2, StartWay.AFTER)
    assert plan_after_newest(history("append", "overwrite")) == NeedsAppend(cleans=False)


def test_a_stream_that_began_and_found_nothing_begins_there_again() -> None:
    steps = history("append", "append")
    first = StreamOffset(snapshot_id=1, position=1, scan_all_files=False)
    assert plan_begun("b.t", steps, first) == begin(1, StartWay.AFTER, position=1)
    assert isinstance(plan_begun("b.t", steps[:1], first), Unreachable)


def test_what_was_appended_after_a_snapshot() -> None:
    steps = history("append", "overwrite", "append")
    assert plan_after_snapshot("b.t", steps, 1, declared="snapshot 1") == begin(2, StartWay.AFTER)
    assert plan_after_snapshot("b.t", steps, 2, declared="snapshot 2") == begin(3, StartWay.AFTER)
    assert plan_after_snapshot("b.t", steps, 3, declared="snapshot 3") == begin(3, StartWay.AFTER, position=1)
    unknown = plan_after_snapshot("b.t", steps, 9, declared="tag loaded")
    assert isinstance(unknown, Unreachable)
    assert "does not reach back to tag loaded; its oldest snapshot is 1" in unknown.reason


@pytest.mark.parametrize(
    ("second", "oldest", "planned"),
    [
        (2, INHERITED, begin(2, StartWay.AFTER)),
        (1.5, INHERITED, begin(2, StartWay.AFTER)),
        (0.5, OWN, begin(1, StartWay.AFTER)),
        (3.5, INHERITED, begin(3, StartWay.AFTER, position=1)),
    ],
)
def test_what_was_appended_since_a_time(second: float, oldest: SnapshotFiles, planned: StartPlan) -> None:
    steps = history("append", "append", "append")
    assert plan_since("b.t", steps, files(s1=oldest), instant(second), now=instant(9)) == planned


def test_a_time_before_the_oldest_snapshot_is_refused_when_something_older_was_there() -> None:
    steps = history("append", "append")
    for second in (0.5, 1):
        found = plan_since("b.t", steps, files(s1=INHERITED), instant(second), now=instant(9))
        assert isinstance(found, Unreachable)
        assert "does not reach back to" in found.reason


def test_a_time_that_lies_ahead_is_refused() -> None:
    found = plan_since("b.t", history("append"), files(), instant(10), now=instant(9))
    assert isinstance(found, Unreachable)
    assert "lies ahead" in found.reason


@pytest.mark.parametrize(
    ("start", "is_whole", "amount"),
    [
        (begin(1), True, StartAmount(rows=1003, data_bytes=5000)),
        (scan(1), True, StartAmount(rows=1003, data_bytes=5000, in_one_batch=True)),
        (NeedsAppend(cleans=True), True, StartAmount(rows=1003, data_bytes=5000, in_one_batch=True)),
        (begin(2, StartWay.AFTER), False, StartAmount(rows=20, data_bytes=200)),
        (begin(3, StartWay.AFTER, position=1), False, StartAmount(rows=0, data_bytes=0)),
        (NeedsAppend(cleans=False), False, StartAmount(rows=0, data_bytes=0)),
    ],
)
def test_how_much_a_start_reads(start: TableStart | NeedsAppend, is_whole: bool, amount: StartAmount) -> None:
    assert amount_of(start, history("append", "append", "append"), is_whole=is_whole) == amount


def instant(second: float) -> datetime:
    """So many seconds after the beginning of 1970."""
    return datetime.fromtimestamp(second, UTC)
