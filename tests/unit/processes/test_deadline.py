"""Waiting, and several steps at once, up to a deadline."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable

import pytest

from sluice.processes.deadline import Deadline, NotDone, run_each, wait_until


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


def test_steps_that_hang_leave_their_places_to_others() -> None:
    released = threading.Event()

    def hang() -> str:
        released.wait(30)
        return "late"

    steps: dict[str, Callable[[], str]] = {"first": hang, "second": hang, "third": lambda: "done"}
    done = run_each(steps, at_once=2, deadline=Deadline.after(4.0), step_seconds=0.1)
    released.set()
    assert done["third"] == "done"
    assert [isinstance(done[name], NotDone) for name in ("first", "second")] == [True, True]


def test_without_a_limit_they_keep_them() -> None:
    released = threading.Event()

    def hang() -> str:
        released.wait(30)
        return "late"

    steps: dict[str, Callable[[], str]] = {"first": hang, "second": lambda: "done"}
    done = run_each(steps, at_once=1, deadline=Deadline.after(1.0))
    released.set()
    assert isinstance(done["second"], NotDone)
