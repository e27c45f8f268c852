"""Whether the rows of a gap can be proved to be a range of files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sluice.sources.gap_files import GapRange, LiveFile, NotProved, ends_of, plan_gap_range, unread_in
from sluice.sources.iceberg_positions import StreamOffset, TableStep
from sluice.sources.input_gap import InputGap

READ = StreamOffset(snapshot_id=1, position=1, scan_all_files=False)


def step(number: int, operation: str = "append") -> TableStep:
    """A snapshot that appended one file of ten rows."""
    return TableStep(snapshot_id=number, appended_rows=10, appended_files=1, parent_id=number - 1, operation=operation)


GAP = InputGap(
    table="bronze.rows", position=1, resumes_at=step(4), missing=(step(2), step(3)), is_named=True, read=step(1)
)


def files(*added_by: int) -> tuple[LiveFile, ...]:
    """Live files, each of ten rows."""
    return tuple(LiveFile(added_by=number, rows=10) for number in added_by)


def reason(
    gap: InputGap = GAP, live: Sequence[LiveFile] | None = files(4, 3, 2, 1), offset: StreamOffset = READ
) -> str:
    """Why nothing is proved."""
    found = plan_gap_range(gap, live, offset=offset, followed_by=[gap.resumes_at])
    assert isinstance(found, NotProved)
    return found.reason


@pytest.mark.parametrize(("live", "first", "end"), [((4, 3, 2, 1, 0), 0, 3), ((1, 0, 2, 3, 4), 2, 5)])
def test_the_files_of_the_gap_are_one_range(live: tuple[int, ...], first: int, end: int) -> None:
    found = plan_gap_range(GAP, files(*live), offset=READ, followed_by=[step(4)])

    assert found == GapRange(snapshot_id=4, first=first, end=end, rows=30, reachable=1)
    assert found.start_offset.text() == f'{{"version":1,"snapshot_id":4,"position":{first},"scan_all_files":true}}'
    assert found.end_offset.text() == f'{{"version":1,"snapshot_id":4,"position":{end},"scan_all_files":false}}'


def test_a_range_may_end_with_a_younger_snapshot() -> None:
    found = plan_gap_range(GAP, files(6, 5, 4, 3, 2, 1), offset=READ, followed_by=[step(4), step(5), step(6)])

    assert found == GapRange(snapshot_id=6, first=0, end=5, rows=50, reachable=3)
    changed = plan_gap_range(GAP, files(5, 4, 3, 2, 1), offset=READ, followed_by=[step(4), step(5, "replace")])
    assert changed == NotProved(reason="snapshot 5 did not only append: it is `replace`")


@pytest.mark.parametrize(("minutes", "ends"), [((0, 5, 14, 15, 90), (7, 4)), ((0, 5, 14), (6, 4)), ((0,), (4,))])
def test_it_ends_with_a_snapshot_that_does_not_expire_before_the_stream_has_started(
    minutes: Sequence[int], ends: Sequence[int]
) -> None:
    reachable = [replace(step(4 + number), committed_at_ms=60_000 * minute) for number, minute in enumerate(minutes)]

    assert [end.snapshot_id for end in ends_of(reachable)] == list(ends)


def test_snapshots_that_are_not_all_known_prove_nothing() -> None:
    assert "not all known" in reason(replace(GAP, is_named=False))


def test_a_position_within_a_snapshot_proves_nothing() -> None:
    assert "in part only" in reason(offset=replace(READ, position=0))
    assert "in part only" in reason(offset=replace(READ, scan_all_files=True))
    assert "unknown how many files" in reason(replace(GAP, read=None))


def test_delete_files_prove_nothing() -> None:
    assert "delete files" in reason(live=None)


@pytest.mark.parametrize("operation", ["overwrite", "delete", "replace"])
def test_a_snapshot_that_did_more_than_append_proves_nothing(operation: str) -> None:
    assert f"snapshot 3 did not only append: it is `{operation}`" in reason(
        replace(GAP, missing=(step(2), step(3, operation)))
    )


def test_a_removal_of_old_rows_leaves_the_files_of_a_gap() -> None:
    """It appends nothing, and what it has taken of the gap is missed among the live files."""
    removal = replace(step(3, "delete"), appended_files=0, appended_rows=0, removes_old_rows=True)
    gap = replace(GAP, missing=(step(2), removal))
    found = plan_gap_range(gap, files(4, 2, 1), offset=READ, followed_by=[step(4)])
    assert isinstance(found, GapRange)
    assert (found.first, found.end) == (0, 2)
    lost = plan_gap_range(gap, files(4, 1), offset=READ, followed_by=[step(4)])
    assert isinstance(lost, NotProved)


def test_a_file_that_is_not_live_any_more_proves_nothing() -> None:
    assert "files that snapshot 2 appended" in reason(live=files(4, 3, 1))
    assert "files that snapshot 3 appended" in reason(live=(*files(4), LiveFile(added_by=3, rows=9), *files(2, 1)))


def test_files_that_are_not_beside_each_other_prove_nothing() -> None:
    assert "not beside each other" in reason(live=files(4, 1, 3, 2))


def test_a_gap_in_words() -> None:
    assert str(GAP) == (
        "the history of bronze.rows is cut behind snapshot 1: 2 snapshots with 20 appended rows were expired before "
        "they were read: 2, 3; the oldest snapshot that can be reached is 4"
    )
    assert "at least 2 snapshots with at least 20" in str(replace(GAP, is_named=False))
    assert "nothing is missing between it and the oldest" in str(replace(GAP, missing=()))
    assert ": 2, 3, 2, 3, 2 and 1 more;" in str(replace(GAP, missing=GAP.missing * 3))


PART = replace(step(1), appended_files=3, appended_rows=30, total_files=4, total_rows=40)
END = StreamOffset(snapshot_id=1, position=3, scan_all_files=False)


@pytest.mark.parametrize("live", [(4, 3, 2, 1, 1, 1, 0), (1, 1, 1, 0)])
@pytest.mark.parametrize("scans", [False, True])
def test_the_unread_rows_of_a_snapshot_are_counted_from_live_files(live: tuple[int, ...], *, scans: bool) -> None:
    """A scan is planned to its end, and does not read the file that was there before."""
    offset = StreamOffset(snapshot_id=1, position=1, scan_all_files=scans)

    assert unread_in(replace(GAP, read=PART), files(*live), offset=offset, planned=END) == 20


@pytest.mark.parametrize(
    ("live", "planned", "scans"),
    [((4, 3, 2, 1, 1, 0), END, False), ((4, 3, 2, 1, 1, 1), END, True), ((1, 1, 1, 0), None, True)],
)
def test_the_number_is_unknown_when_files_or_the_planned_end_are_gone(
    live: tuple[int, ...], planned: StreamOffset | None, *, scans: bool
) -> None:
    offset = StreamOffset(snapshot_id=1, position=1, scan_all_files=scans)

    assert unread_in(replace(GAP, read=PART), files(*live), offset=offset, planned=planned) is None
    assert unread_in(replace(GAP, read=None), files(1, 1, 1, 0), offset=offset, planned=END) is None
