"""Nobody else works on intervals that are locked together, or on one that overlaps them."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.locks import LockedInterval, LockSpace, interval_lock


def day(number: int, stream: str = "flights", *, days: int = 1) -> LockedInterval:
    """Days of January, from a day on."""
    start = datetime(2013, 1, number, tzinfo=UTC)
    return LockedInterval(stream=stream, start=start, end=start + timedelta(days=days))


def of(start: str, end: str) -> LockedInterval:
    """An interval."""
    first, last = (datetime.fromisoformat(time).replace(tzinfo=UTC) for time in (start, end))
    return LockedInterval(stream="flights", start=first, end=last)


def test_each_of_several_intervals_is_locked_until_the_end(ledger: Ledger, ledger_url: str) -> None:
    with open_ledger(ledger_url) as other:
        with interval_lock(ledger, day(5), day(6)):
            for number in (5, 6):
                is_taken = pytest.raises(LedgerError, match=f"2013-01-0{number}")
                with is_taken, interval_lock(other, day(number)):
                    pass
            with interval_lock(other, day(7)), interval_lock(other, day(5, "weather")):
                pass
        with interval_lock(other, day(5), day(6)):
            pass


def test_when_one_of_several_is_locked_none_is(ledger: Ledger, ledger_url: str) -> None:
    with open_ledger(ledger_url) as other, interval_lock(ledger, day(6)):
        with pytest.raises(LedgerError, match="2013-01-06"), interval_lock(other, day(5), day(6)):
            pass
        with interval_lock(ledger, day(5)):
            pass


@pytest.mark.parametrize(
    ("one", "other", "overlap"),
    [
        (of("2013-01-05", "2013-01-08"), of("2013-01-07", "2013-01-09"), True),
        (of("2013-01-05", "2013-01-08"), of("2013-01-08", "2013-01-09"), False),
        (of("2013-01-05", "2013-01-08"), of("2013-01-06T03:00", "2013-01-06T04:00"), True),
        (of("2013-01-05T03:00", "2013-01-05T04:00"), of("2013-01-05T04:00", "2013-01-05T05:00"), False),
        (of("2013-01-05T03:00", "2013-01-08T02:00"), of("2013-01-08T01:00", "2013-01-09"), True),
        (of("2013-01-05T03:00", "2013-01-08T02:00"), of("2013-01-08T02:00", "2013-01-09"), False),
        (of("2012-11-15", "2013-02-15"), of("2013-01-01", "2013-02-01"), True),
        (of("2012-11-15", "2013-02-15"), of("2012-12-31T23:00", "2013-01-01"), True),
        (of("2012-11-15", "2013-02-15"), of("2012-11-01", "2012-11-15"), False),
        (of("2012-11-15", "2013-02-15"), of("2013-02-15", "2013-03-01"), False),
        (of("2013-01-01", "2013-02-01"), of("2013-02-01", "2013-03-01"), False),
        (of("1969-12-31", "1970-01-01"), of("1969-12-31T23:00", "1970-01-01T01:00"), True),
    ],
)
def test_intervals_conflict_when_they_overlap(
    one: LockedInterval, other: LockedInterval, overlap: bool, ledger: Ledger, ledger_url: str
) -> None:
    with open_ledger(ledger_url) as elsewhere:
        for held, wanted in ((one, other), (other, one)):
            with (
                interval_lock(ledger, held),
                pytest.raises(LedgerError, match="another run") if overlap else nullcontext(),
                interval_lock(elsewhere, wanted),
            ):
                pass


def test_a_lock_whose_connection_is_lost_does_not_fail_what_was_done(ledger: Ledger, ledger_url: str) -> None:
    with interval_lock(ledger, day(5)), ledger.transaction() as connection:
        ended = connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = :space"),
            {"space": int(LockSpace.INTERVAL)},
        )
        assert any(ended.scalars())

    with open_ledger(ledger_url) as other, interval_lock(other, day(5)):
        pass
