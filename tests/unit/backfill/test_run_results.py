"""The results of backfills for a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from sluice.backfill.intervals import Interval, of_publication_key, publication_key
from sluice.backfill.run_results import result_of_attempt, sentences_of
from sluice.ledger.backfill_attempts import BackfillAttemptKey, BackfillAttemptObservation, BackfillState

FIFTH = Interval(start=datetime(2013, 1, 5, tzinfo=UTC), end=datetime(2013, 1, 6, tzinfo=UTC))
ROWS = {"published": 1_203, "replaced": 1_200, "quarantined": 2, "duplicate": 4}


def result(**changed: Any) -> dict[str, Any]:
    """A result as the job writes it."""
    key = "flights/backfill/20130105T0000-20130106T0000/2"
    return {"key": key, "state": "published", "snapshot_id": 77, "rows": ROWS, "followers": [], **changed}


def test_a_replaced_interval_is_a_sentence() -> None:
    assert list(sentences_of(result())) == [
        "flights, 2013-01-05 00:00 to 2013-01-06 00:00 UTC: 1,203 rows published in place of 1,200, in snapshot 77; "
        "2 rejected, 4 duplicate."
    ]


def test_an_unchanged_interval_says_so_and_followers_come_after_it() -> None:
    follower = result(key="delays/backfill/20130105T0000-20130106T0000/1")

    sentences = list(sentences_of(result(state="unchanged", snapshot_id=None, followers=[follower])))

    assert sentences[0] == (
        "flights, 2013-01-05 00:00 to 2013-01-06 00:00 UTC: unchanged, the table holds the 1,203 rows already."
    )
    assert [one.partition(",")[0] for one in sentences] == ["flights", "delays"]


def test_an_attempt_of_the_ledger_is_the_same_result() -> None:
    """The database answers in its own time zone."""
    there = timezone(timedelta(hours=-5))
    key = BackfillAttemptKey(
        stream="flights",
        interval_start=FIFTH.start.astimezone(there),
        interval_end=FIFTH.end.astimezone(there),
        attempt=2,
    )
    attempt = BackfillAttemptObservation(
        key=key,
        state=BackfillState.PUBLISHED,
        launched_by="somebody",
        started_at=FIFTH.end,
        snapshot_id=77,
        rows=ROWS,
    )

    assert result_of_attempt(attempt) == result()


def test_a_publication_key_names_its_stream_and_interval() -> None:
    assert of_publication_key(publication_key("flights", FIFTH, attempt=3)) == ("flights", FIFTH)
