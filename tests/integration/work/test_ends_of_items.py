"""What an application records of items when it is asked to end, or has decided so, meanwhile; without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from pydantic import SecretStr
from tests.fixtures.sample_settings import sample_settings

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.applications import beat, begin_application, end_application
from sluice.ledger.connection import Ledger
from sluice.ledger.work_items import ask, hand_back, observe_item
from sluice.ledger.work_values import NewItem, Pool, WorkState
from sluice.work.requests import CheckTable, Increment, MaintainTable, RefreshTable, WorkRequest
from sluice_spark.run.stop_request import StopReason, StopRequest
from sluice_spark.session.item_sessions import ItemSessions
from sluice_spark.work import application_health
from sluice_spark.work.application import News, WorkApplication
from sluice_spark.work.item_work import _WORK, ItemWork

POOL = Pool(name="spark_default-0", digest="files-surroundings")
Does = Callable[[type[WorkRequest], Callable[[ItemWork], Any]], None]


@pytest.fixture
def does(monkeypatch: pytest.MonkeyPatch) -> Does:
    """Says what the application does for a kind of request, in the place of Spark."""

    def say(request: type[WorkRequest], work: Callable[[ItemWork], Any]) -> None:
        monkeypatch.setitem(_WORK, request, lambda item_work, _: work(item_work))

    return say


def wanted(request: WorkRequest) -> NewItem:
    """What a task asks for."""
    return NewItem(kind=request.kind, subject=request.subject, payload=request.payload(), asked_by="a test", pool=POOL)


@pytest.fixture
def application(tmp_path: Path, ledger: Ledger, ledger_url: str) -> Callable[..., WorkApplication]:
    """Returns an application that was started for an item; it holds no more than a test gives it."""
    (tmp_path / "pipelines").mkdir()
    settings = sample_settings(tmp_path).model_copy(update={"ledger_url": SecretStr(ledger_url)})

    def started(item: str, *, stop: StopRequest, is_worn: Callable[[], str] = lambda: "") -> WorkApplication:
        begun = begin_application(ledger, item, started_by="a test")
        assert begun is not None
        assert beat(ledger, begun)
        return WorkApplication(
            application=begun,
            settings=settings,
            declarations=load_declarations(settings.pipelines),
            ledger=ledger,
            sessions=ItemSessions(name="a test"),
            news=News(ledger_url, pool=POOL.name),
            is_worn=is_worn,
            stop=stop,
            linger_seconds=0,
        )

    return started


@pytest.mark.parametrize(
    ("request_", "state"),
    [
        (RefreshTable(stream="s", keep_days="1"), WorkState.DONE),
        (MaintainTable(table="silver.t"), WorkState.DONE),
        (Increment(stream="s"), WorkState.WAITING),
    ],
    ids=["refresh", "maintenance", "increment"],
)
def test_what_was_done_before_a_signal_is_not_done_again(
    request_: WorkRequest, state: WorkState, ledger: Ledger, application: Callable[..., WorkApplication], does: Does
) -> None:
    """An increment returns at a signal although it has not read everything; all others are done when they return."""
    stop = StopRequest()

    def work(item_work: ItemWork) -> dict[str, bool]:
        stop.make(StopReason.SIGNALLED)
        item_work.stop.make(StopReason.SIGNALLED)
        return {"is_swapped": True}

    does(type(request_), work)
    (item,) = ask(ledger, wanted(request_))
    served = application(item, stop=stop)

    assert served.serve() == "stopped by a signal"
    hand_back(ledger, served.application)

    assert observe_item(ledger, item).state is state


def test_another_application_is_started_at_once_beside_one_that_takes_nothing_more(
    ledger: Ledger, application: Callable[..., WorkApplication], does: Does
) -> None:
    """It ends after an item that may take hours; new increments cannot wait for that."""
    goes_on, new = threading.Event(), list[str]()

    def check(_: ItemWork) -> None:
        raise MemoryError("no memory is left")

    def maintain(_: ItemWork) -> None:
        assert goes_on.wait(timeout=60)

    does(CheckTable, check)
    does(MaintainTable, maintain)
    first, long = ask(ledger, wanted(CheckTable(table="t")), wanted(MaintainTable(table="t")))
    served = application(first, stop=StopRequest())
    serving = threading.Thread(target=served.serve)
    serving.start()
    try:
        while not served._ends_because:
            assert serving.is_alive()
            serving.join(0.05)
        serving.join(1.5)  # two looks
        new += ask(ledger, wanted(Increment(stream="s")))
        assert observe_item(ledger, long).state is WorkState.CLAIMED
        assert observe_item(ledger, new[0]).needs_application
        assert beat(ledger, served.application), "it is alive all the same"
        assert observe_item(ledger, new[0]).needs_application
        assert begin_application(ledger, new[0], started_by="a test") is not None
    finally:
        goes_on.set()
        serving.join(60)
    assert observe_item(ledger, long).state is WorkState.DONE
    end_application(ledger, served.application, reason="its end")


def test_an_application_that_is_never_idle_reaches_its_bounds_all_the_same(
    ledger: Ledger, application: Callable[..., WorkApplication], does: Does
) -> None:
    runs, looked = threading.Event(), threading.Event()

    def is_worn() -> str:
        if not runs.is_set():
            return ""
        looked.set()
        return "it is old"

    def maintain(_: ItemWork) -> bool:
        runs.set()
        return looked.wait(timeout=10)

    does(MaintainTable, maintain)
    (item,) = ask(ledger, wanted(MaintainTable(table="t")))

    assert application(item, stop=StopRequest(), is_worn=is_worn).serve() == "it is old"
    assert observe_item(ledger, item).result is True


def test_an_application_whose_loop_hangs_does_not_report_itself_alive(
    ledger: Ledger, application: Callable[..., WorkApplication], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: SimpleQueue[str] = SimpleQueue()
    monkeypatch.setattr(application_health, "_end_process", ended.put)
    monkeypatch.setattr(application_health, "DEAD_AFTER", timedelta(seconds=1))
    monkeypatch.setattr(application_health, "BEAT_SECONDS", 0.2)
    (item,) = ask(ledger, wanted(CheckTable(table="t")))

    with application_health.reporting(application(item, stop=StopRequest())):
        assert "its loop hangs" in ended.get(timeout=60)


def test_each_turn_of_the_loop_is_noted(
    ledger: Ledger, application: Callable[..., WorkApplication], does: Does
) -> None:
    does(CheckTable, lambda _: None)
    (item,) = ask(ledger, wanted(CheckTable(table="t")))
    served = application(item, stop=StopRequest())
    begun = served.turned_at

    served.serve()

    assert served.turned_at > begun
