"""Waiting for something to become true."""

from __future__ import annotations

import operator

import pytest

from sluice.processes.deadline import Deadline, wait_until


def test_a_deadline_passes() -> None:
    assert Deadline.after(0).is_over()
    assert not Deadline.after(60).is_over()


def test_looks_until_it_is_right() -> None:
    seen = iter([1, 2, 3, 4])
    pauses: list[float] = []

    last = wait_until(lambda: next(seen), lambda n: n == 3, seconds=60, poll_seconds=0.5, pause=pauses.append)

    assert (last, pauses) == (3, [0.5, 0.5])


def test_returns_what_it_saw_last_when_the_time_is_over() -> None:
    assert wait_until(lambda: "wrong", lambda seen: seen == "right", seconds=0) == "wrong"


def test_a_pause_that_raises_ends_the_waiting() -> None:
    def cancel(seconds: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        wait_until(lambda: False, operator.truth, seconds=60, pause=cancel)
