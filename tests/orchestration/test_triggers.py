"""The triggers beside a real ledger, without Airflow around them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.triggers.base import BaseTrigger, TriggerEvent
from sqlalchemy import Executable, Row
from sqlalchemy.ext.asyncio import AsyncEngine
from tests.fixtures.deployment import deployment_environment
from tests.fixtures.drill import sampled

from sluice.ledger import trigger_queries
from sluice.ledger.airflow_owner import claim_for_airflow
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import SuspensionCause, find_desired_state, set_desired_state
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import admit_run, beat, record_end
from sluice_airflow.adapters import airflow_id
from sluice_airflow.triggers import ledger_trigger
from sluice_airflow.triggers.desired_state_trigger import DesiredStateTrigger
from sluice_airflow.triggers.stream_trigger import StreamTrigger
from sluice_airflow.triggers.work_trigger import WorkTrigger

POLL_SECONDS = 0.05
SOON_SECONDS = 5.0
A_WHILE_SECONDS = 0.5

STATES = (None, "scheduled", "queued", "running", "deferred", "failed", "success", "skipped")
"""What Airflow says of a task."""


@pytest.fixture(autouse=True)
def _deployment(tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The settings by which triggers find the ledger of the test."""
    for name, value in deployment_environment(tmp_path, pipelines=tmp_path, ledger_url=ledger_url).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def run(ledger: Ledger) -> RunObservation:
    """A run whose driver was heard a moment ago."""
    run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
    beat(ledger, run.run_id)
    return run


def _beside(run: RunObservation, *, patience_seconds: float = 60) -> StreamTrigger:
    return StreamTrigger(
        stream=run.stream, run_id=run.run_id, patience_seconds=patience_seconds, poll_seconds=POLL_SECONDS
    )


async def _fires(trigger: BaseTrigger) -> dict[str, Any]:
    """What the trigger tells."""
    events: list[TriggerEvent] = [event async for event in trigger.run()]
    assert len(events) == 1
    payload: dict[str, Any] = events[0].payload
    return payload


def _watched(trigger: BaseTrigger, then: Callable[[], object]) -> dict[str, Any]:
    """What the trigger tells after something happened, having been silent before."""

    async def watch() -> dict[str, Any]:
        task = asyncio.create_task(_fires(trigger))
        await asyncio.sleep(A_WHILE_SECONDS)
        assert not task.done()
        await asyncio.to_thread(then)
        return await asyncio.wait_for(task, SOON_SECONDS)

    return asyncio.run(watch())


def _in_loop(work: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    async def wait() -> dict[str, Any]:
        return await asyncio.wait_for(work, SOON_SECONDS)

    return asyncio.run(wait())


def test_it_is_silent_beside_a_live_run_and_fires_when_the_run_ends(ledger: Ledger, run: RunObservation) -> None:
    def end() -> None:
        record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="boom")

    assert _watched(_beside(run), end) == {"seen": f"run {run.run_id} failed"}


def test_it_fires_when_the_ledger_answers_and_does_not_know_the_run(ledger: Ledger, run: RunObservation) -> None:
    def forget() -> None:
        with ledger.transaction() as connection:
            connection.exec_driver_sql("DELETE FROM sluice.runs")

    assert _watched(_beside(run), forget) == {"seen": f"run {run.run_id} is unknown to the ledger"}


def test_an_odd_run_is_left_alone_as_long_as_its_supervisor_is_patient(ledger: Ledger, run: RunObservation) -> None:
    set_desired_state(ledger, run.stream, DesiredState.STOPPED)  # asked to stop, it is odd until it ends
    patience_seconds = 1.0
    began = time.monotonic()
    fired = _in_loop(_fires(_beside(run, patience_seconds=patience_seconds)))
    assert fired == {"seen": f"run {run.run_id} running"}
    assert time.monotonic() - began >= patience_seconds


def test_it_runs_twice_without_harm_and_reports_the_same(ledger: Ledger, run: RunObservation) -> None:
    record_end(ledger, run.run_id, state=RunState.LOST, exit_code=None, reason="gone")

    async def both() -> dict[str, Any]:
        one, other = await asyncio.gather(_fires(_beside(run)), _fires(_beside(run)))
        assert one == other
        return one

    assert _in_loop(both()) == {"seen": f"run {run.run_id} lost"}


def test_its_cancellation_reaches_the_triggerer_and_touches_no_run(ledger: Ledger, run: RunObservation) -> None:
    async def cancel() -> None:
        task = asyncio.create_task(_fires(_beside(run)))
        await asyncio.sleep(A_WHILE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING


@pytest.mark.parametrize("state", sampled(STATES, [None, "failed"], full=STATES))
def test_a_stream_is_stopped_by_a_mark_and_by_nothing_else(
    ledger: Ledger, run: RunObservation, monkeypatch: pytest.MonkeyPatch, state: str | None
) -> None:
    """Airflow calls `on_kill` also for a cleared task, and for a trigger that moves to another triggerer."""

    async def state_of(_: object) -> str | None:
        return state

    monkeypatch.setattr(ledger_trigger, "_state_of", state_of)
    trigger = _beside(run)
    trigger.task_instance = cast(Any, SimpleNamespace(dag_id="flights", task_id="supervise", run_id="a-run"))
    asyncio.run(trigger.on_kill())
    is_marked = state in {"failed", "success", "skipped"}
    assert find_desired_state(ledger, run.stream).suspension is (SuspensionCause.MARKED if is_marked else None)
    assert beat(ledger, run.run_id).desired_state is (DesiredState.STOPPED if is_marked else DesiredState.RUNNING)


@pytest.mark.parametrize("own_id", ["ours", "another"])
def test_a_mark_in_an_airflow_that_does_not_own_the_ledger_stops_nothing(
    ledger: Ledger, run: RunObservation, monkeypatch: pytest.MonkeyPatch, own_id: str
) -> None:
    """A former Airflow that is tidied up, or one that was refused."""

    async def marked(_: object) -> str:
        return "failed"

    claim_for_airflow(ledger, "ours")
    monkeypatch.setattr(ledger_trigger, "_state_of", marked)
    monkeypatch.setattr(airflow_id, "_stored_id", lambda: own_id)
    monkeypatch.setattr(airflow_id, "_known", {})
    trigger = _beside(run)
    trigger.task_instance = cast(Any, SimpleNamespace(dag_id="flights", task_id="supervise", run_id="a-run"))
    asyncio.run(trigger.on_kill())
    assert find_desired_state(ledger, run.stream).suspension is (SuspensionCause.MARKED if own_id == "ours" else None)


@pytest.mark.parametrize("guard", ["guarded", "unguarded"])
def test_without_the_question_for_the_tasks_state_clearing_a_task_stops_its_stream(
    ledger: Ledger, run: RunObservation, monkeypatch: pytest.MonkeyPatch, guard: str
) -> None:
    async def state_of(_: object) -> None:
        """A cleared task has no state."""

    async def believes_whoever_calls(_: object) -> bool:
        return True

    monkeypatch.setattr(ledger_trigger, "_state_of", state_of)
    if guard == "unguarded":
        monkeypatch.setattr(ledger_trigger, "is_marked", believes_whoever_calls)
    trigger = _beside(run)
    trigger.task_instance = cast(Any, SimpleNamespace(dag_id="flights", task_id="supervise", run_id="a-run"))
    asyncio.run(trigger.on_kill())
    goes_on = guard == "guarded"
    assert beat(ledger, run.run_id).desired_state is (DesiredState.RUNNING if goes_on else DesiredState.STOPPED)


def test_a_mark_is_not_lost_when_airflow_answers_after_it_has_stopped_waiting(
    ledger: Ledger, run: RunObservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_answer = asyncio.Event()

    async def late_state(_: object) -> str:
        await may_answer.wait()
        return "success"

    monkeypatch.setattr(ledger_trigger, "_state_of", late_state)
    trigger = _beside(run)
    trigger.task_instance = cast(Any, SimpleNamespace(dag_id="flights", task_id="supervise", run_id="a-run"))

    async def kill_impatiently() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(trigger.on_kill(), timeout=0.1)
        assert find_desired_state(ledger, run.stream).suspension is None
        may_answer.set()
        await asyncio.wait_for(asyncio.gather(*ledger_trigger._background), SOON_SECONDS)

    asyncio.run(kill_impatiently())
    assert find_desired_state(ledger, run.stream).suspension is SuspensionCause.MARKED


def test_a_trigger_that_only_shuts_down_kills_nothing() -> None:
    for trigger in (StreamTrigger, DesiredStateTrigger, WorkTrigger):
        assert trigger.cleanup == BaseTrigger.cleanup


@pytest.mark.parametrize(
    "trigger",
    [
        StreamTrigger(stream="flights", run_id="a-run", patience_seconds=30.0, poll_seconds=2.0),
        DesiredStateTrigger(
            stream="flights", known_change_at="2026-01-01T00:00:00+00:00", due_seconds=5.0, poll_seconds=2.0
        ),
        DesiredStateTrigger(stream="flights", known_change_at=None, due_seconds=None, poll_seconds=2.0),
        WorkTrigger(stream="gold.flights", item="an-item", results_of="", ends_task=True, poll_seconds=1.0),
    ],
)
def test_its_arguments_are_small_and_make_it_again(trigger: BaseTrigger) -> None:
    path, arguments = trigger.serialize()
    stored = json.dumps(arguments)
    assert len(stored) < 200
    assert path == f"{type(trigger).__module__}.{type(trigger).__qualname__}"
    assert type(trigger)(**json.loads(stored)).serialize() == (path, arguments)


def test_an_absent_ledger_is_waited_for_reported_once_and_then_handed_to_the_task(
    run: RunObservation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_LEDGER_URL", "postgresql+psycopg://sluice@127.0.0.1:1/absent")
    monkeypatch.setattr(ledger_trigger, "LEDGER_OUTAGE_SECONDS", A_WHILE_SECONDS)
    began = time.monotonic()
    fired = _in_loop(_fires(_beside(run)))
    assert fired == {"seen": "the ledger is away"}
    assert time.monotonic() - began >= A_WHILE_SECONDS
    assert capsys.readouterr().out.count("Stream flights cannot be watched and is left alone: The ledger at 127.") == 1


def test_a_stopped_stream_is_waited_for_until_it_is_requested_again(ledger: Ledger) -> None:
    set_desired_state(ledger, "flights", DesiredState.STOPPED)
    known = find_desired_state(ledger, "flights").requested_at
    assert known is not None
    trigger = DesiredStateTrigger(
        stream="flights", known_change_at=known.isoformat(), due_seconds=None, poll_seconds=POLL_SECONDS
    )
    fired = _watched(trigger, lambda: set_desired_state(ledger, "flights", DesiredState.RUNNING))
    assert fired == {"seen": "stream flights is to be running"}


def test_a_start_that_is_due_fires_without_a_request() -> None:
    trigger = DesiredStateTrigger(
        stream="flights", known_change_at=None, due_seconds=A_WHILE_SECONDS, poll_seconds=POLL_SECONDS
    )
    assert _in_loop(_fires(trigger)) == {"seen": "0 seconds are over"}


@pytest.mark.full  # every run: `test_trigger_queries.py`
def test_two_hundred_streams_share_one_poll_however_many_they_are(
    ledger: Ledger, run: RunObservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How late the loop of a real triggerer comes back meanwhile: `benchmarks/triggerer_lag.py`."""
    others = [
        admit_run(ledger, stream=f"flights_{number}", mode="continuous", declaration_digest="d", launched_by="a test")
        for number in range(99)
    ]
    watching_runs = [_beside(one) for one in (run, *others)]
    awaiting_requests = [
        DesiredStateTrigger(
            stream=f"stopped_{number}", known_change_at=None, due_seconds=None, poll_seconds=POLL_SECONDS
        )
        for number in range(100)
    ]
    questions, looks = _counted(monkeypatch)

    async def poll() -> float:
        began = time.monotonic()
        tasks = [asyncio.create_task(_fires(one)) for one in (*watching_runs, *awaiting_requests)]
        while min(looks[one] for one in (*watching_runs, *awaiting_requests)) < 3:
            await asyncio.sleep(POLL_SECONDS)
        lasted = time.monotonic() - began
        assert not any(task.done() for task in tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return lasted

    lasted_seconds = asyncio.run(poll())
    assert sum(looks.values()) >= 600
    # A question to the ledger waits so long for others to join it, so this bounds the questions of each of both kinds.
    assert len(questions) <= 2 * (lasted_seconds / trigger_queries.GATHER_SECONDS + 1)
    assert 2 * len(questions) < sum(looks.values())


def _counted(monkeypatch: pytest.MonkeyPatch) -> tuple[list[object], Counter[BaseTrigger]]:
    """The questions that reach the ledger from now on, and how often each trigger has looked."""
    questions: list[object] = []
    looks: Counter[BaseTrigger] = Counter()
    really_ask = trigger_queries._query_once

    async def count_and_ask(engine: AsyncEngine, question: Executable) -> Sequence[Row[Any]]:
        questions.append(question)
        return await really_ask(engine, question)

    monkeypatch.setattr(trigger_queries, "_query_once", count_and_ask)
    for kind in (StreamTrigger, DesiredStateTrigger):

        async def count_and_look(
            self: Any, ledger_url: str, *, waited_seconds: float, really_look: Any = kind.look
        ) -> Any:
            seen = await really_look(self, ledger_url, waited_seconds=waited_seconds)
            looks[self] += 1
            return seen

        monkeypatch.setattr(kind, "look", count_and_look)
    return questions, looks
