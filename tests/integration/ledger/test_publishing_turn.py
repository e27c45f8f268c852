"""The turn at merging into a table: one at a time, nobody waits for ever, and the work never hangs on it."""

from __future__ import annotations

import threading
import time

from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.publishing_turn import PublishingTurns
from sluice.ledger.sole_maintainer import sole_maintainer

ABSENT = "postgresql+psycopg://sluice@127.0.0.1:9/none"


def test_one_at_a_time_has_the_turn(ledger: Ledger) -> None:
    impatient = PublishingTurns(ledger=ledger, longest_wait_seconds=0.1)
    with PublishingTurns(ledger=ledger).at("a.b") as first, impatient.at("a.b") as second:
        assert (first, second) == (True, False)
    with impatient.at("a.b") as later:
        assert later


def test_a_turn_is_waited_for(ledger: Ledger) -> None:
    order: list[str] = []

    def wait() -> None:
        with PublishingTurns(ledger=ledger, longest_wait_seconds=60).at("a.b") as mine:
            order.append(f"second {mine}")

    with PublishingTurns(ledger=ledger).at("a.b"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        waiting.join(0.3)
        order.append("first")
    waiting.join(60)
    assert order == ["first", "second True"]


def test_other_tables_and_maintenance_have_turns_of_their_own(ledger: Ledger) -> None:
    impatient = PublishingTurns(ledger=ledger, longest_wait_seconds=0.1)
    with PublishingTurns(ledger=ledger).at("a.b"), impatient.at("a.c") as other:
        assert other
        with sole_maintainer(ledger, "a.b"):
            pass


def test_a_ledger_that_does_not_answer_costs_the_order_only() -> None:
    with open_ledger(ABSENT) as absent, PublishingTurns(ledger=absent).at("a.b") as mine:
        assert not mine


def test_a_hanging_holder_delays_its_successor_once(ledger: Ledger) -> None:
    successor = PublishingTurns(ledger=ledger, longest_wait_seconds=3)
    waited_seconds = []
    with PublishingTurns(ledger=ledger).at("a.b"):
        for _ in range(2):
            begun = time.monotonic()
            with successor.at("a.b") as mine:
                assert not mine
            waited_seconds.append(time.monotonic() - begun)
    assert waited_seconds[1] < 3 <= waited_seconds[0]
