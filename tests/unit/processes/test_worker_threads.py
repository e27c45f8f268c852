"""Steps in threads: one that hangs takes neither the time of the others nor their place."""

from __future__ import annotations

import threading
from collections.abc import Callable

from sluice.processes.deadline import Deadline, NotDone, run_each


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
