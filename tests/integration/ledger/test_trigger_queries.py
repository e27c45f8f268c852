"""The asynchronous read for triggers: light, shared, and leaving nothing open behind an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import Executable, Row, text
from sqlalchemy.ext.asyncio import AsyncEngine

from sluice.errors import LedgerError, LedgerUnreachableError
from sluice.ledger import trigger_queries
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.desired_states import find_desired_state, set_desired_state
from sluice.ledger.run_values import DesiredState, RunObservation, WatchedRun
from sluice.ledger.runs import admit_run, beat, find_run
from sluice.ledger.trigger_queries import observe_desired_state, observe_run
from sluice.processes.deadline import wait_until

_SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
def run(ledger: Ledger) -> RunObservation:
    """A run that has been heard."""
    admitted = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
    beat(ledger, admitted.run_id)
    return find_run(ledger, admitted.run_id)


def sessions(ledger: Ledger) -> int:
    """How many others are connected to the ledger."""
    with ledger.transaction() as connection:
        count: int = connection.execute(text(_SESSIONS)).scalar_one()
    return count


def counted_questions(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Every question that reaches the ledger from now on."""
    questions: list[object] = []
    really_ask = trigger_queries._query_once

    async def count_and_ask(engine: AsyncEngine, question: Executable) -> Sequence[Row[Any]]:
        questions.append(question)
        return await really_ask(engine, question)

    monkeypatch.setattr(trigger_queries, "_query_once", count_and_ask)
    return questions


def test_a_run_and_the_time_are_read_together(ledger: Ledger, ledger_url: str, run: RunObservation) -> None:
    before = database_time(ledger)
    watched = asyncio.run(observe_run(ledger_url, run.run_id))
    assert watched.run == run
    assert before <= watched.observed_at <= database_time(ledger)


def test_a_desired_state_is_read(ledger: Ledger, ledger_url: str) -> None:
    assert asyncio.run(observe_desired_state(ledger_url, "flights")) == find_desired_state(ledger, "flights")
    asked = set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="ann")
    assert asyncio.run(observe_desired_state(ledger_url, "flights")) == asked


def test_two_hundred_watchers_share_two_connections(ledger: Ledger, ledger_url: str, run: RunObservation) -> None:
    async def watch() -> int:
        watched: list[WatchedRun] = await asyncio.gather(*(observe_run(ledger_url, run.run_id) for _ in range(200)))
        assert {seen.run for seen in watched} == {run}
        return sessions(ledger)

    assert asyncio.run(watch()) in (1, 2)


def test_two_hundred_watchers_of_fifty_runs_query_once_and_each_hears_of_its_own(
    ledger: Ledger, ledger_url: str, run: RunObservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        admit_run(ledger, stream=f"flights_{number}", mode="continuous", declaration_digest="d", launched_by="a test")
        for number in range(50)
    ]
    questions = counted_questions(monkeypatch)

    async def watch() -> None:
        impatient = asyncio.create_task(observe_run(ledger_url, run.run_id))
        answers = asyncio.gather(*(observe_run(ledger_url, one.run_id) for one in runs * 4))
        await asyncio.sleep(0)
        impatient.cancel()
        assert [watched.run for watched in await answers] == runs * 4
        with pytest.raises(asyncio.CancelledError):
            await impatient

    asyncio.run(watch())
    assert len(questions) == 1


def test_two_hundred_watchers_of_fifty_desired_states_query_once_and_each_gets_its_own(
    ledger: Ledger, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [
        set_desired_state(ledger, f"flights_{number}", DesiredState.STOPPED, requested_by=f"ann {number}")
        for number in range(49)
    ]
    known = [*asked, find_desired_state(ledger, "never_asked")]
    questions = counted_questions(monkeypatch)

    async def watch() -> None:
        answers = await asyncio.gather(*(observe_desired_state(ledger_url, one.stream) for one in known * 4))
        assert answers == known * 4

    asyncio.run(watch())
    assert len(questions) == 1


def test_nothing_stays_open_behind_an_event_loop(ledger: Ledger, ledger_url: str, run: RunObservation) -> None:
    for _ in range(3):
        asyncio.run(observe_run(ledger_url, run.run_id))
    # PostgreSQL lists a session until its process has ended, a moment after its client has closed it.
    assert wait_until(lambda: sessions(ledger), lambda count: count == 0, seconds=10) == 0


def test_a_restarted_database_costs_no_answer(ledger: Ledger, ledger_url: str, run: RunObservation) -> None:
    async def watch() -> None:
        await observe_run(ledger_url, run.run_id)
        with ledger.transaction() as connection:
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        assert (await observe_run(ledger_url, run.run_id)).run == run

    asyncio.run(watch())


def test_an_unknown_run_and_an_absent_ledger_are_errors(ledger_url: str, run: RunObservation) -> None:
    with pytest.raises(LedgerError, match="has no run nobody"):
        asyncio.run(observe_run(ledger_url, "nobody"))
    with pytest.raises(LedgerUnreachableError, match=r"127\.0\.0\.1:1/d does not answer"):
        asyncio.run(observe_run("postgresql+psycopg://u:p@127.0.0.1:1/d", run.run_id))
