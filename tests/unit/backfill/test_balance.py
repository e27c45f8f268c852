"""Whether the numbers of a backfill add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.backfill.balance import RowCounts, require_balance, require_removed, require_taken
from sluice.backfill.intervals import Interval, parse_interval
from sluice.errors import VerificationError

COUNTS = RowCounts(
    read=20, published=9, outside=7, quarantined=1, duplicate=3, replaced=8, kept=5, rewritten=13, staged=14
)


def test_numbers_that_add_up_are_admitted() -> None:
    require_balance(COUNTS, accounts_for_rows=True, what="s/backfill/i/1")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"read": 21}, "21 rows were read; 9 published"),
        ({"duplicate": 2}, "= 19"),
        ({"without_time": 1}, "1 without a time .* = 21"),
        ({"moved": 2}, "2 moved to another one .* = 22"),
        ({"staged": 13}, "13 rows are staged, 9 \\+ 5"),
        ({"rewritten": 14}, "14 rows are in the old files"),
    ],
)
def test_a_missing_row_is_found(changed: dict[str, int], problem: str) -> None:
    with pytest.raises(VerificationError, match=problem):
        require_balance(replace(COUNTS, **changed), accounts_for_rows=True, what="s/backfill/i/1")


def test_an_aggregation_accounts_for_its_files_alone() -> None:
    require_balance(replace(COUNTS, read=4_000), accounts_for_rows=False, what="s/backfill/i/1")


MOVED = {parse_interval("2013-01-06", "2013-01-07"): 2, parse_interval("2013-01-08", "2013-01-09"): 1}
HERE = parse_interval("2013-01-05", "2013-01-06")


def test_rows_that_come_from_where_nobody_removes_them_would_be_there_twice() -> None:
    def require(*planned: Interval) -> None:
        require_removed(MOVED, planned, stream="s", table="a.b", interval=HERE)

    require(*MOVED)
    with pytest.raises(VerificationError, match=r"^3 rows of 2013-01-05 .* are in a\.b already, in other") as twice:
        require(HERE)
    assert "`sluice backfill s --from 2013-01-05T00:00 --to 2013-01-09T00:00`" in (twice.value.next_step or "")
    assert "`--allow-repeated`" in (twice.value.next_step or "")


def require_moved_rows_taken(*planned: Interval) -> None:
    require_taken(MOVED, planned, stream="s", table="a.b", interval=HERE)


def test_rows_may_move_to_intervals_that_are_asked_for_too() -> None:
    require_moved_rows_taken(*MOVED)
    require_moved_rows_taken(parse_interval("2013-01-01", "2013-02-01"))
    require_taken({}, (), stream="s", table="a.b", interval=HERE)


def test_rows_that_move_where_nobody_brings_them_in_would_be_lost() -> None:
    with pytest.raises(VerificationError, match=r"^3 rows that a\.b holds in 2013-01-05") as lost:
        require_moved_rows_taken(HERE)
    assert "2013-01-06 00:00 to 2013-01-07 00:00 UTC; 2013-01-08 00:00" in lost.value.message
    assert "`sluice backfill s --from 2013-01-05T00:00 --to 2013-01-09T00:00`" in (lost.value.next_step or "")
    with pytest.raises(VerificationError, match=r"^1 rows"):
        require_moved_rows_taken(parse_interval("2013-01-06", "2013-01-08"))
