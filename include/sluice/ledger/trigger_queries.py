"""Asynchronous queries for triggers: a small connection pool for each event loop, one query for many triggers.

Triggers that ask about runs or desired states within a moment of each other share one query, so that the cost of a
triggerer hardly grows with the number of its streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import ARRAY, Executable, Row, Text, any_, func, literal, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from sluice.errors import LedgerError, UnknownRunError
from sluice.ledger.connection import checked_url, engine_options, ledger_errors
from sluice.ledger.desired_states import DesiredStateObservation, desired_state_of, select_desired_states
from sluice.ledger.run_leases import Run
from sluice.ledger.run_values import RunObservation, WatchedRun
from sluice.ledger.stored_values import record_of
from sluice.ledger.work_items import look_at, observation_of
from sluice.ledger.work_values import WorkObservation

Answer = TypeVar("Answer")

_engines: dict[tuple[asyncio.AbstractEventLoop, str], AsyncGenerator[AsyncEngine, None]] = {}
"""The engines by event loop and URL: a connection belongs to the loop that opened it and to no other."""

GATHER_SECONDS = 0.2
"""How long the first request waits for others: little beside the two seconds between two polls."""


async def observe_run(ledger_url: str, run_id: str) -> WatchedRun:
    """Read a run and the database's time. Safe to cancel at any await.

    Every caller on one event loop shares two connections and, with callers at about the same time, one query.

    Raises
    ------
    UnknownRunError: when the ledger has no such run.
    """
    batchers = _batchers.setdefault(asyncio.get_running_loop(), {})
    batcher: _Batcher[WatchedRun] = batchers.setdefault(("runs", ledger_url), _Batcher(partial(_find_runs, ledger_url)))
    return await batcher.find(run_id)


async def observe_desired_state(ledger_url: str, stream: str) -> DesiredStateObservation:
    """Read the desired state of a stream; shared as `observe_run` is. Safe to cancel at any await."""
    batchers = _batchers.setdefault(asyncio.get_running_loop(), {})
    batcher: _Batcher[DesiredStateObservation] = batchers.setdefault(
        ("desired states", ledger_url), _Batcher(partial(_find_desired_states, ledger_url))
    )
    return await batcher.find(stream)


async def observe_item(ledger_url: str, item: str) -> WorkObservation:
    """Look at a work item, and say by that that somebody still waits for it; shared as `observe_run` is. Safe to cancel
    at any await.

    Raises
    ------
    LedgerError: when the ledger cannot be reached, or does not know the item.
    """
    batchers = _batchers.setdefault(asyncio.get_running_loop(), {})
    batcher: _Batcher[WorkObservation] = batchers.setdefault(
        ("work items", ledger_url), _Batcher(partial(_find_items, ledger_url))
    )
    return await batcher.find(item)


async def query_row(ledger_url: str, query: Executable) -> Row[Any] | None:
    """The one row that a query or a statement returns; none without one. Safe to cancel at any await."""
    (row,) = await _query(await _engine_of_this_loop(ledger_url), query) or (None,)
    return row


@dataclass(slots=True)
class _Batcher(Generic[Answer]):
    """Collects the requests of the triggers of one event loop and answers them with one query.

    find_all: answers many requests at once; an error in the place of an answer is raised for its request.
    """

    find_all: Callable[[Sequence[str]], Awaitable[Mapping[str, Answer | LedgerError]]]
    waiting: dict[str, list[asyncio.Future[Answer]]] = field(default_factory=dict)
    _queries: set[asyncio.Task[None]] = field(default_factory=set)

    async def find(self, key: str) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        is_first = not self.waiting
        self.waiting.setdefault(key, []).append(answer)
        if is_first:
            task = asyncio.create_task(self._gather_and_query())
            self._queries.add(task)  # an event loop itself does not keep its tasks
            task.add_done_callback(self._queries.discard)
        return await answer

    async def _gather_and_query(self) -> None:
        await asyncio.sleep(GATHER_SECONDS)  # nothing is awaited: the pause is what puts many requests into one query
        requested, self.waiting = self.waiting, {}
        try:
            found = await self.find_all(sorted(requested))
        except Exception as error:  # noqa: BLE001  # every waiting request raises it
            _answer_all(requested.values(), error)
            return
        for key, answers in requested.items():
            _answer_all([answers], found[key])


_batchers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], _Batcher[Any]]] = WeakKeyDictionary()
"""For each event loop a batcher for each kind of request and each ledger."""


def _answer_all(waiting: Iterable[Iterable[asyncio.Future[Answer]]], answer: Answer | Exception) -> None:
    for future in (future for futures in waiting for future in futures if not future.done()):
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


async def _find_runs(ledger_url: str, run_ids: Sequence[str]) -> Mapping[str, WatchedRun | LedgerError]:
    is_requested = Run.run_id == any_(literal(run_ids, ARRAY(Text)))
    query = select(*Run.columns(), func.now().label("observed_at")).where(is_requested)
    rows = await _query(await _engine_of_this_loop(ledger_url), query)
    found = {row.run_id: _or_error(partial(_watched, row)) for row in rows}
    return {run_id: found.get(run_id) or UnknownRunError(run_id) for run_id in run_ids}


def _watched(row: Row[Any]) -> WatchedRun:
    return WatchedRun(run=record_of(RunObservation, row), observed_at=row.observed_at)


def _or_error(read: Callable[[], Answer]) -> Answer | LedgerError:
    """What a row holds; one that this program cannot read is an error for its own request alone."""
    try:
        return read()
    except LedgerError as unreadable:
        return unreadable


async def _find_items(ledger_url: str, items: Sequence[str]) -> Mapping[str, WorkObservation | LedgerError]:
    rows = await _query(await _engine_of_this_loop(ledger_url), look_at(items))
    found = {row.item: row for row in rows}
    return {item: _or_error(partial(observation_of, item, found.get(item))) for item in items}


async def _find_desired_states(
    ledger_url: str, streams: Sequence[str]
) -> Mapping[str, DesiredStateObservation | LedgerError]:
    rows = await _query(await _engine_of_this_loop(ledger_url), select_desired_states(streams))
    found = {row.stream: row for row in rows}
    return {stream: _or_error(partial(desired_state_of, stream, found.get(stream))) for stream in streams}


async def _query(engine: AsyncEngine, query: Executable) -> Sequence[Row[Any]]:
    """Query again once when the database was restarted meanwhile: cheaper than a ping before every poll."""
    with ledger_errors(engine.url):
        try:
            return await _query_once(engine, query)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        return await _query_once(engine, query)


async def _query_once(engine: AsyncEngine, query: Executable) -> Sequence[Row[Any]]:
    async with engine.connect() as connection:
        return (await connection.execute(query)).all()


async def _engine_of_this_loop(ledger_url: str) -> AsyncEngine:
    key = (asyncio.get_running_loop(), ledger_url)
    if key not in _engines:
        _engines[key] = _keep_engine(*key)
    return await anext(_engines[key])


async def _keep_engine(loop: asyncio.AbstractEventLoop, ledger_url: str) -> AsyncGenerator[AsyncEngine, None]:
    """Yield one engine again and again. A generator, because an event loop closes its generators before it closes."""
    options = engine_options() | {"pool_pre_ping": False, "isolation_level": "AUTOCOMMIT"}
    engine = create_async_engine(checked_url(ledger_url), pool_size=1, max_overflow=1, **options)
    try:
        while True:
            yield engine
    finally:
        del _engines[loop, ledger_url]
        await engine.dispose()
