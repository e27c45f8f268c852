"""A wait of the demo lasts as long as anything moves, and ends when nothing does."""

from __future__ import annotations

from threading import Event

import pytest

from sluice.demo.airflow_api import STANDSTILL_SECONDS, Standstill
from sluice.errors import DemonstrationError


class Hours(Event):
    """A stop that is never asked for; a pause of the wait moves the clock by a minute."""

    seconds = 0.0

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds += 60
        return self.is_set()


def _standstill(hours: Hours, *, moves_until_seconds: float) -> Standstill:
    def observe() -> object:
        return min(hours.seconds, moves_until_seconds)

    return Standstill(observe, stopped=hours, clock=lambda: hours.seconds)


def test_a_wait_lasts_as_long_as_the_platform_moves() -> None:
    hours = Hours()
    standstill = _standstill(hours, moves_until_seconds=86_400)

    answer = standstill.await_answer(
        lambda: "there" if hours.seconds > 80_000 else None, what="It is not there", next_step="Look."
    )

    assert answer == "there"


def test_a_wait_ends_when_nothing_moves() -> None:
    hours = Hours()
    standstill = _standstill(hours, moves_until_seconds=3_600)

    with pytest.raises(DemonstrationError, match="It is not there, and nothing has moved for 480 s") as caught:
        standstill.await_answer(lambda: None, what="It is not there", next_step="Look at it.")

    assert 3_600 + STANDSTILL_SECONDS < hours.seconds <= 3_600 + STANDSTILL_SECONDS + 120
    assert "Look at it." in str(caught.value)


def test_a_noted_move_is_a_move() -> None:
    hours = Hours()
    standstill = _standstill(hours, moves_until_seconds=0)

    def look() -> bool | None:
        if hours.seconds < 3_600:
            standstill.note_move()
        return hours.seconds >= 3_900 or None

    assert standstill.await_answer(look, what="It is not there", next_step="Look.")


def test_a_stop_ends_every_wait() -> None:
    hours = Hours()
    hours.set()

    with pytest.raises(DemonstrationError, match="The demo was stopped"):
        _standstill(hours, moves_until_seconds=0).await_answer(lambda: None, what="It is not there", next_step="Look.")
