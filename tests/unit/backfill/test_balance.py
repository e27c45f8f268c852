"""Whether the numbers of a backfill add up."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.backfill.balance import RowCounts, require_balance
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
        ({"staged": 13}, "13 rows are staged, 9 \\+ 5"),
        ({"rewritten": 14}, "14 rows are in the old files"),
    ],
)
def test_a_missing_row_is_found(changed: dict[str, int], problem: str) -> None:
    with pytest.raises(VerificationError, match=problem):
        require_balance(replace(COUNTS, **changed), accounts_for_rows=True, what="s/backfill/i/1")


def test_an_aggregation_accounts_for_its_files_alone() -> None:
    require_balance(replace(COUNTS, read=4_000), accounts_for_rows=False, what="s/backfill/i/1")
