"""The results of backfills for a person."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

from sluice.backfill.intervals import Interval, of_publication_key, publication_key
from sluice.backfill.run_results import sentences_of
from sluice.ledger.backfill_attempts import BackfillAttemptKey
from sluice.publication.crash_points import unnoticed
from sluice_spark.backfill.interval_replacing import IntervalReplacing

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
