"""The turn at merging into a table: one at a time, nobody waits for ever, and the work never hangs on it."""

from __future__ import annotations

import threading
import time

import pytest

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.locks import PublicationLocks, maintenance_lock, replay_lock

ABSENT = "postgresql+psycopg://sluice@127.0.0.1:9/none"


def test_one_at_a_time_has_the_turn(ledger: Ledger) -> None:
    impatient = PublicationLocks(ledger=ledger, longest_wait_seconds=0.1)
    with PublicationLocks(ledger=ledger).acquire("a.b") as first, impatient.acquire("a.b") as second:
        assert (first, second) == (True, False)
    with impatient.acquire("a.b") as later:
        assert later


def test_a_turn_is_waited_for(ledger: Ledger) -> None:
    order: list[str] = []

    def wait() -> None:
        with PublicationLocks(ledger=ledger, longest_wait_seconds=60).acquire("a.b") as mine:
            order.append(f"second {mine}")

    with PublicationLocks(ledger=ledger).acquire("a.b"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.3)
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second True"]


def test_other_tables_and_maintenance_have_turns_of_their_own(ledger: Ledger) -> None:
    impatient = PublicationLocks(ledger=ledger, longest_wait_seconds=0.1)
    with PublicationLocks(ledger=ledger).acquire("a.b"), impatient.acquire("a.c") as other:
        assert other
        with maintenance_lock(ledger, "a.b"):
            pass


def test_a_stream_has_one_replay_at_a_time(ledger: Ledger) -> None:
    with replay_lock(ledger, "s"):
        with (
            pytest.raises(LedgerError, match="Another replay of rejected records of s is under way"),
            replay_lock(ledger, "s"),
        ):
            pass
        with replay_lock(ledger, "t"):
            pass
    for _ in range(50):  # free at once, and not when the server has noticed the end of the connection
        with replay_lock(ledger, "s"):
            pass


def test_a_ledger_that_does_not_answer_costs_the_order_only() -> None:
    with open_ledger(ABSENT) as absent, PublicationLocks(ledger=absent).acquire("a.b") as mine:
        assert not mine


@pytest.mark.full  # every run: one that has the turn for longer than is waited
def test_a_hanging_holder_delays_its_successor_once(ledger: Ledger) -> None:
    successor = PublicationLocks(ledger=ledger, longest_wait_seconds=3)
    waited_seconds = []
    with PublicationLocks(ledger=ledger).acquire("a.b"):
        for _ in range(2):
            begun = time.monotonic()
            with successor.acquire("a.b") as mine:
                assert not mine
            waited_seconds.append(time.monotonic() - begun)
    assert waited_seconds[1] < 3 <= waited_seconds[0]
