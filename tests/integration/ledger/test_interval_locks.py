"""Nobody else works on intervals that are locked together."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.locks import interval_lock


def day(number: int) -> tuple[datetime, datetime]:
    """A day of January."""
    start = datetime(2013, 1, number, tzinfo=UTC)
    return start, start + timedelta(days=1)


def test_each_of_several_intervals_is_locked_until_the_end(ledger: Ledger, ledger_url: str) -> None:
    with open_ledger(ledger_url) as other:
        with interval_lock(ledger, "flights", day(5), day(6)):
            for number in (5, 6):
                is_taken = pytest.raises(LedgerError, match=f"2013-01-0{number}")
                with is_taken, interval_lock(other, "flights", day(number)):
                    pass
            with interval_lock(other, "flights", day(7)), interval_lock(other, "weather", day(5)):
                pass
        with interval_lock(other, "flights", day(5), day(6)):
            pass


def test_when_one_of_several_is_locked_none_is(ledger: Ledger, ledger_url: str) -> None:
    with open_ledger(ledger_url) as other, interval_lock(ledger, "flights", day(6)):
        with pytest.raises(LedgerError, match="2013-01-06"), interval_lock(other, "flights", day(5), day(6)):
            pass
        with interval_lock(ledger, "flights", day(5)):
            pass
