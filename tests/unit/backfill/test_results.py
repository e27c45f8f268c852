"""The results of backfills: whether their numbers add up, and their sentences for a person."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.backfill.intervals import Interval, of_publication_key, parse_interval, publication_key
from sluice.backfill.results import RowCounts, require_balance, require_removed, require_taken, sentences_of
from sluice.errors import VerificationError
from sluice.ledger.backfill_attempts import BackfillAttemptKey
from sluice.publication.crash_points import unnoticed
from sluice_spark.backfill.interval_replacing import IntervalReplacing

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


FIFTH = Interval(start=datetime(2013, 1, 5, tzinfo=UTC), end=datetime(2013, 1, 6, tzinfo=UTC))
ROWS = {"published": 1_203, "replaced": 1_200, "quarantined": 2, "duplicate": 4, "moved": 0}


def result(**changed: Any) -> dict[str, Any]:
    """A result as the job writes it."""
    key = "flights/backfill/20130105T0000-20130106T0000/a1/2"
    return {"key": key, "state": "published", "snapshot_id": 77, "rows": ROWS, "followers": [], **changed}


def test_a_replaced_interval_is_a_sentence() -> None:
    assert list(sentences_of(result())) == [
        "flights, 2013-01-05 00:00 to 2013-01-06 00:00 UTC: 1,203 rows published in place of 1,200, in snapshot 77; "
        "2 rejected, 4 duplicate."
    ]


def test_rows_that_have_moved_are_counted() -> None:
    (sentence,) = sentences_of(result(rows={**ROWS, "moved": 3}))

    assert sentence.endswith("2 rejected, 4 duplicate, 3 moved to other intervals, which are asked for too.")


def test_an_unchanged_interval_says_so_and_followers_come_after_it() -> None:
    follower = result(key="delays/backfill/20130105T0000-20130106T0000/b2/1")

    sentences = list(sentences_of(result(state="unchanged", snapshot_id=None, followers=[follower])))

    assert sentences[0] == (
        "flights, 2013-01-05 00:00 to 2013-01-06 00:00 UTC: unchanged, the table holds the 1,203 rows already."
    )
    assert [one.partition(",")[0] for one in sentences] == ["flights", "delays"]


def test_attempts_of_one_number_have_different_keys() -> None:
    """A ledger that was restored gives a number again."""
    attempt = BackfillAttemptKey(stream="flights", interval_start=FIFTH.start, interval_end=FIFTH.end, attempt=1)

    def replacing() -> IntervalReplacing:
        seen = cast(Any, SimpleNamespace(interval=FIFTH))
        nothing = cast(Any, None)
        return IntervalReplacing(
            stream=nothing,
            catalog=nothing,
            seen=seen,
            target=nothing,
            whole=FIFTH,
            attempt=attempt,
            reached=unnoticed,
            planned=tuple,
            observe_sources=nothing,
            change_of=nothing,
        )

    one, other = replacing(), replacing()
    again = one.key

    assert one.key == again
    assert one.key != other.key
    assert of_publication_key(one.key) == of_publication_key(other.key) == ("flights", FIFTH)


def test_a_publication_key_names_its_stream_and_interval() -> None:
    assert of_publication_key(publication_key("flights", FIFTH, identity="a1", attempt=3)) == ("flights", FIFTH)
