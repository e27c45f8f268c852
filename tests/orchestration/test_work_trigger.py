"""The trigger of tasks that wait for work, beside a real ledger, without Airflow around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.triggers.base import TaskSuccessEvent, TriggerEvent
from sqlalchemy import Executable, Row
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.fixtures.deployment import deployment_environment
from tests.fixtures.drill import sampled

from sluice.ledger import trigger_queries
from sluice.ledger.applications import beat, begin_application, end_application
from sluice.ledger.backfill_attempts import BackfillState, begin_attempt, end_attempt
from sluice.ledger.connection import Ledger
from sluice.ledger.work_items import ask, claim, end_item, observe_item
from sluice.ledger.work_values import NewItem, Pool, WorkItem, WorkKind, WorkState
from sluice_airflow.triggers import ledger_trigger
from sluice_airflow.triggers.work_trigger import STARTS, WorkTrigger

RUN = "airflow: flights__backfill, backfill__5"
FIFTH, SIXTH = datetime(2013, 1, 5, tzinfo=UTC), datetime(2013, 1, 6, tzinfo=UTC)
POLL_SECONDS = 0.05
SOON_SECONDS = 10.0
A_WHILE_SECONDS = 0.5

STATES = (None, "scheduled", "queued", "running", "deferred", "failed", "success", "skipped")
"""What Airflow says of a task."""


@pytest.fixture(autouse=True)
def _deployment(tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings by which triggers find the ledger of the test."""
    for name, value in deployment_environment(tmp_path, pipelines=tmp_path, ledger_url=ledger_url).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def item(ledger: Ledger) -> str:
    """An interval that a run has asked for."""
    return _asked(ledger)


@pytest.fixture
def working(ledger: Ledger, item: str) -> tuple[str, WorkItem]:
    """An application that works on it."""
    application = begin_application(ledger, item, started_by="a test")
    assert application is not None
    assert beat(ledger, application)
    (claimed,) = claim(ledger, application, lambda waiting: waiting)
    return application, claimed


def _asked(ledger: Ledger, *, asked_by: str = RUN) -> str:
    payload = {"stream": "flights", "start": FIFTH.isoformat(), "end": SIXTH.isoformat()}
    pool = Pool(name="spark_default-0", digest="d")
    wanted = NewItem(kind=WorkKind.INTERVAL, subject="flights", payload=payload, asked_by=asked_by, pool=pool)
    (item,) = ask(ledger, wanted)
    return item


def _beside(item: str, *, ends_task: bool = True, results_of: str = RUN) -> WorkTrigger:
    return WorkTrigger(
        stream="flights", item=item, results_of=results_of, ends_task=ends_task, poll_seconds=POLL_SECONDS
    )


async def _fires(trigger: WorkTrigger) -> TriggerEvent:
    (event,) = [event async for event in trigger.run()]
    return event


def _fired(trigger: WorkTrigger) -> TriggerEvent:
    """What the trigger tells at once."""
    return asyncio.run(asyncio.wait_for(_fires(trigger), SOON_SECONDS))


def _fired_after(trigger: WorkTrigger, then: Callable[[], object]) -> TriggerEvent:
    """What the trigger tells after something happened, having been silent before."""

    async def watch() -> TriggerEvent:
        task = asyncio.create_task(_fires(trigger))
        await asyncio.sleep(A_WHILE_SECONDS)
        assert not task.done()
        await asyncio.to_thread(then)
        return await asyncio.wait_for(task, SOON_SECONDS)

    return asyncio.run(watch())


def test_a_task_whose_item_no_application_takes_is_called_back(item: str) -> None:
    assert _fired(_beside(item)).payload == {"seen": STARTS}


def test_a_task_waits_while_an_application_works_and_is_called_back_when_that_dies(
    ledger: Ledger, item: str, working: tuple[str, WorkItem]
) -> None:
    application, _ = working
    event = _fired_after(_beside(item), lambda: end_application(ledger, application, reason="killed by SIGKILL"))
    assert event.payload == {"seen": STARTS}


def test_a_task_whose_item_is_done_ends_without_a_worker_and_shows_its_results(
    ledger: Ledger, item: str, working: tuple[str, WorkItem]
) -> None:
    application, claimed = working
    key = begin_attempt(ledger, "flights", start=FIFTH, end=SIXTH, launched_by=RUN)
    end_attempt(ledger, key, BackfillState.PUBLISHED, rows={"published": 3}, snapshot_id=2**60)

    event = _fired_after(_beside(item), lambda: end_item(ledger, claimed, application, WorkState.DONE))

    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms is not None
    results = cast(dict[str, Any], event.xcoms["results"])
    assert (results["flights"]["state"], results["flights"]["rows"]) == ("published", {"published": 3})


def test_results_that_cannot_be_read_are_left_to_a_worker(item: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trigger = _beside(item)
    monkeypatch.setenv("SLUICE_LEDGER_URL", "postgresql+psycopg://sluice@127.0.0.1:1/absent")
    event = asyncio.run(trigger.event(str(WorkState.DONE)))
    assert not isinstance(event, TaskSuccessEvent)
    assert event.payload == {"seen": "done"}


def test_a_task_without_results_pushes_none(ledger: Ledger, item: str, working: tuple[str, WorkItem]) -> None:
    application, claimed = working
    end_item(ledger, claimed, application, WorkState.DONE)
    event = _fired(_beside(item, results_of=""))
    assert isinstance(event, TaskSuccessEvent)
    assert event.xcoms is None


@pytest.mark.parametrize(
    ("state", "ends_task"), [(WorkState.FAILED, True), (WorkState.DONE, False), (WorkState.FAILED, False)]
)
def test_any_other_end_calls_the_task_back(
    ledger: Ledger, item: str, working: tuple[str, WorkItem], state: WorkState, ends_task: bool
) -> None:
    """A failure for its words, and an increment for the events of its assets."""
    application, claimed = working
    end_item(ledger, claimed, application, state, failure="sluice: failed: LakehouseError: no")
    event = _fired(_beside(item, ends_task=ends_task))
    assert not isinstance(event, TaskSuccessEvent)
    assert event.payload == {"seen": str(state)}


@pytest.mark.parametrize("state", sampled(STATES, [None, "failed"], full=STATES))
def test_an_item_is_withdrawn_by_a_mark_and_by_nothing_else(
    ledger: Ledger, item: str, working: tuple[str, WorkItem], monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """Airflow calls `on_kill` also for a cleared task, which asks again, and for a trigger that only moves."""

    async def state_of(_: object) -> str | None:
        return state

    neighbour = _asked(ledger, asked_by="another run")
    monkeypatch.setattr(ledger_trigger, "_state_of", state_of)
    trigger = _beside(item)
    trigger.task_instance = cast(Any, SimpleNamespace(dag_id="flights", task_id="replace", run_id="a-run"))

    asyncio.run(trigger.on_kill())

    is_marked = state in {"failed", "success", "skipped"}
    assert observe_item(ledger, item).state is (WorkState.WITHDRAWN if is_marked else WorkState.CLAIMED)
    assert observe_item(ledger, neighbour).state is WorkState.WAITING


def test_forty_waiting_tasks_share_their_looks(
    ledger: Ledger, working: tuple[str, WorkItem], item: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    application, claimed = working
    others = [_asked(ledger, asked_by=f"run {number}") for number in range(39)]
    questions = _questions(monkeypatch)

    async def wait() -> float:
        began = time.monotonic()
        first, *rest = [asyncio.create_task(_fires(_beside(one))) for one in (item, *others)]
        await asyncio.sleep(A_WHILE_SECONDS)
        end_item(ledger, claimed, application, WorkState.DONE)
        await asyncio.wait_for(first, SOON_SECONDS)
        assert not any(task.done() for task in rest)
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        return time.monotonic() - began

    lasted_seconds = asyncio.run(wait())
    assert len(questions) <= lasted_seconds / trigger_queries.GATHER_SECONDS + 1


def _questions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What reaches the ledger from the triggers from now on."""
    questions: list[object] = []
    really_ask = trigger_queries._query_once

    async def count_and_ask(engine: AsyncEngine, question: Executable) -> Sequence[Row[Any]]:
        questions.append(question)
        return await really_ask(engine, question)

    monkeypatch.setattr(trigger_queries, "_query_once", count_and_ask)
    return questions
