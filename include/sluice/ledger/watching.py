"""The light, asynchronous read of the ledger, for triggers: a small pool for each event loop, one poll for all.

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

from sluice.errors import LedgerError
from sluice.ledger import desired_states
from sluice.ledger.connection import checked_url, engine_options, sentences_of
from sluice.ledger.models import Run
from sluice.ledger.records.desired_state import DesiredStateObservation
from sluice.ledger.records.run import WatchedRun
from sluice.ledger.runs import observation_of

Answer = TypeVar("Answer")

_engines: dict[tuple[asyncio.AbstractEventLoop, str], AsyncGenerator[AsyncEngine, None]] = {}
"""The engines by event loop and URL: a connection belongs to the loop that opened it and to no other."""


_GATHER_SECONDS = 0.2
"""How long the first question waits for others: little beside the two seconds between two polls."""


@dataclass(slots=True)
class _Desk(Generic[Answer]):
    """Gathers what the triggers of one event loop ask, and asks the ledger once for all of them.

    look_up: answers many questions at once; an error in the place of an answer is raised by whoever asked for it.
    """

    look_up: Callable[[Sequence[str]], Awaitable[Mapping[str, Answer | LedgerError]]]
    waiting: dict[str, list[asyncio.Future[Answer]]] = field(default_factory=dict)
    _asking: set[asyncio.Task[None]] = field(default_factory=set)

    async def ask(self, key: str) -> Answer:
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        is_first = not self.waiting
        self.waiting.setdefault(key, []).append(answer)
        if is_first:
            task = asyncio.create_task(self._gather_and_ask())
            self._asking.add(task)  # an event loop itself does not keep its tasks
            task.add_done_callback(self._asking.discard)
        return await answer

    async def _gather_and_ask(self) -> None:
        await asyncio.sleep(_GATHER_SECONDS)  # nothing is awaited: the pause is what puts many questions into one
        asked, self.waiting = self.waiting, {}
        try:
            found = await self.look_up(sorted(asked))
        except Exception as error:  # noqa: BLE001  # it belongs to those who asked, and each of them raises it
            _answer_all(asked.values(), error)
            return
        for key, answers in asked.items():
            _answer_all([answers], found[key])


_desks: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[str, str], _Desk[Any]]] = WeakKeyDictionary()
"""For each event loop a desk for each kind of question and each ledger."""


async def observe_run(ledger_url: str, run_id: str) -> WatchedRun:
    """Read a run and the database's time. Safe to cancel at any await.

    Every caller on one event loop shares two connections and, with those who ask at about the same time, one query.

    Raises
    ------
    LedgerError: when there is no such run or the ledger cannot be reached.
    """
    desks = _desks.setdefault(asyncio.get_running_loop(), {})
    desk: _Desk[WatchedRun] = desks.setdefault(("runs", ledger_url), _Desk(partial(_look_up_runs, ledger_url)))
    return await desk.ask(run_id)


async def _look_up_runs(ledger_url: str, run_ids: Sequence[str]) -> Mapping[str, WatchedRun | LedgerError]:
    wanted = any_(literal(run_ids, ARRAY(Text)))
    question = select(*Run.__table__.columns, func.now().label("observed_at")).where(Run.run_id == wanted)
    rows = await _ask(await _engine_of_this_loop(ledger_url), question)
    found = {row.run_id: WatchedRun(run=observation_of(row), observed_at=row.observed_at) for row in rows}
    return {run_id: found.get(run_id) or LedgerError(f"The ledger knows no run {run_id}.") for run_id in run_ids}


async def observe_desired_state(ledger_url: str, stream: str) -> DesiredStateObservation:
    """Read what was last asked of a stream; shared as `observe_run` is. Safe to cancel at any await.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    desks = _desks.setdefault(asyncio.get_running_loop(), {})
    desk: _Desk[DesiredStateObservation] = desks.setdefault(
        ("desired states", ledger_url), _Desk(partial(_look_up_desired_states, ledger_url))
    )
    return await desk.ask(stream)


async def _look_up_desired_states(
    ledger_url: str, streams: Sequence[str]
) -> Mapping[str, DesiredStateObservation | LedgerError]:
    rows = await _ask(await _engine_of_this_loop(ledger_url), desired_states.select_desired_states(streams))
    found = {row.stream: row for row in rows}
    return {stream: desired_states.desired_state_of(stream, found.get(stream)) for stream in streams}


def _answer_all(waiting: Iterable[Iterable[asyncio.Future[Answer]]], answer: Answer | Exception) -> None:
    for future in (future for futures in waiting for future in futures if not future.done()):
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


async def ask(ledger_url: str, question: Executable) -> Row[Any] | None:
    """The one row that answers a question, or that a statement returns. Safe to cancel at any await.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    return _only(await _ask(await _engine_of_this_loop(ledger_url), question))


async def _ask(engine: AsyncEngine, question: Executable) -> Sequence[Row[Any]]:
    """Ask again once when the database was restarted meanwhile: cheaper than a ping before every poll."""
    with sentences_of(engine.url):
        try:
            return await _ask_once(engine, question)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        return await _ask_once(engine, question)


async def _ask_once(engine: AsyncEngine, question: Executable) -> Sequence[Row[Any]]:
    async with engine.connect() as connection:
        return (await connection.execute(question)).all()


def _only(rows: Sequence[Row[Any]]) -> Row[Any] | None:
    (row,) = rows or (None,)
    return row


async def _engine_of_this_loop(ledger_url: str) -> AsyncEngine:
    key = (asyncio.get_running_loop(), ledger_url)
    if key not in _engines:
        _engines[key] = _hold_engine(*key)
    return await anext(_engines[key])


async def _hold_engine(loop: asyncio.AbstractEventLoop, ledger_url: str) -> AsyncGenerator[AsyncEngine, None]:
    """Yield one engine again and again. A generator, because an event loop closes its generators before it closes."""
    options = engine_options() | {"pool_pre_ping": False, "isolation_level": "AUTOCOMMIT"}
    engine = create_async_engine(checked_url(ledger_url), pool_size=1, max_overflow=1, **options)
    try:
        while True:
            yield engine
    finally:
        del _engines[loop, ledger_url]
        await engine.dispose()
