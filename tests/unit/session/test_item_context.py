"""A thread that begins for an item works for it; one of another item, or of none, does not."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from sluice_spark.session.item_sessions import hand_context_on, in_item, in_this_context, name_item

ITEM, OTHER = UUID("3f2b8c1d-0000-4000-8000-000000000001"), UUID("99999999-0000-4000-8000-000000000001")


@pytest.fixture
def handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that hands its context on, and afterwards does not."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)
    hand_context_on()


def named() -> str:
    """What a line that is logged now would name."""
    record = logging.LogRecord("a", logging.INFO, "a.py", 1, "a line", None, None)
    assert name_item(record)
    item: str = record.__dict__["item"]
    return item


class Noting(threading.Thread):
    """A thread with a `run` of its own."""

    found = ""

    def run(self) -> None:
        """Note what a line would name."""
        self.found = named()


def test_a_line_without_an_item_names_none() -> None:
    assert named() == ""
    with in_item(ITEM):
        assert named() == "[3f2b8c1d] "
    assert named() == ""


@pytest.mark.usefixtures("handed_on")
def test_threads_inherit_the_item_in_which_they_begin() -> None:
    with in_item(ITEM):
        thread = Noting()
        thread.start()
    thread.join()

    assert thread.found == "[3f2b8c1d] "
    assert "run" not in thread.__dict__, "a thread that keeps itself is garbage for the cyclic collector"


@pytest.mark.usefixtures("handed_on")
def test_a_pool_works_for_whoever_gives_it_work() -> None:
    with ThreadPoolExecutor(1) as pool:
        found = []
        for item in (ITEM, OTHER):
            with in_item(item):
                found.append(pool.submit(named).result())
        found.append(pool.submit(named).result())

    assert found == ["[3f2b8c1d] ", "[99999999] ", ""]


def test_a_callback_works_for_the_item_that_has_passed_it_on() -> None:
    with in_item(ITEM):
        callback = in_this_context(named)

    assert (callback(), named()) == ("[3f2b8c1d] ", "")


def test_without_being_asked_threads_inherit_nothing() -> None:
    with in_item(ITEM):
        thread = Noting()
        thread.start()
        thread.join()

    assert thread.found == ""
