"""A Spark application that does work items: claims, runs and records them, several at a time, until there are none.

    claim ──► run in a thread, with a session of its own ──► record the end ──► close the session

The ledger has the truth about every item. The application reports to it every two seconds as long as its loop turns.
When it has been silent for too long, or the ledger counts it as ended, it ends at once, because another one may have
its items by then.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from pydantic import SecretStr
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from sluice.backfill.intervals import together
from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import JvmLostError, LedgerUnreachableError, SluiceError, WithdrawnError
from sluice.failure_reasons import FailureClass
from sluice.launching.job_output import json_value
from sluice.ledger.applications import DEAD_AFTER, end_if_idle, take_no_more
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.work_items import claim, end_item, withdrawn_among
from sluice.ledger.work_tables import WorkListener
from sluice.ledger.work_values import WorkItem, WorkKind, WorkState
from sluice.processes.deadline import Deadline
from sluice.publication.crash_points import CrashPoint, unnoticed
from sluice.settings import Settings
from sluice.work.choose_items import Bench, interval_of
from sluice_spark.backfill.interval_replacing import BackfillResult
from sluice_spark.run.job import failure_of_error, last_lines, named_jvm_loss
from sluice_spark.run.stop_request import StopReason, StopRequest
from sluice_spark.session.item_sessions import ItemSessions, in_item
from sluice_spark.work.item_work import ItemWork, ReachedOfItem, interval_lane, intervals_that_follow

_LISTEN_SECONDS = 5.0
"""How long the thread listens before it looks whether it is to end."""


class News:
    """Wakes who waits when there is news. A context manager: it listens while the block runs.

    Parameters
    ----------
    ledger_url: as `open_ledger` takes it.
    pool: whose items are announced.
    """

    def __init__(self, ledger_url: str | SecretStr, *, pool: str) -> None:
        self._listener = WorkListener(ledger_url, [pool])
        self._has_come, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._listen, name="news", daemon=True)

    def __enter__(self) -> News:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def come(self) -> None:
        """Say that there is news."""
        self._has_come.set()

    def wait(self, timeout_seconds: float) -> None:
        """Wait until there is news, at most so long."""
        self._has_come.wait(timeout_seconds)
        self._has_come.clear()

    def _listen(self) -> None:
        with self._listener:
            while not self._ended.is_set():
                if self._listener.wait(_LISTEN_SECONDS):
                    self.come()


_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
"""How long the application waits for news before it looks at the queue all the same."""

_WITHDRAWN_LOOK_SECONDS = 2.0

_MOST_THREADS = 64
"""More than all lanes have; a lane bounds what runs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """What one thread does: an item, or intervals that touch. stops: what asks each of its items to stop."""

    items: tuple[WorkItem, ...]
    stops: dict[str, StopRequest]


@dataclass(slots=True, kw_only=True)
class WorkApplication:
    """An application at work.

    application: its id in the ledger.
    is_worn: says why the process has reached a bound, once it has; empty before.
    stop: what asks the application to end: a signal, or that the ledger counts it as ended.
    linger_seconds: how long it waits for its first item.
    reached: is called at each step of each item.
    turned_at: when the loop has begun its latest turn, as `time.monotonic` counts.
    """

    application: str
    settings: Settings
    declarations: Declarations
    ledger: Ledger
    sessions: ItemSessions
    news: News
    is_worn: Callable[[], str]
    stop: StopRequest = field(default_factory=StopRequest)
    linger_seconds: float
    reached: ReachedOfItem = unnoticed
    turned_at: float = field(default_factory=time.monotonic, init=False)
    _running: dict[Future[None], Unit] = field(default_factory=dict)
    _lingers_until: Deadline = field(init=False)
    _looks_at_withdrawn: Deadline = field(default_factory=lambda: Deadline.after(0))
    _ends_because: str = ""
    _has_said_so: bool = False

    def serve(self) -> str:
        """Do items until there is none for a while, or the process is not fit for more.

        Returns
        -------
        Why it ends.

        Raises
        ------
        LedgerError: when the ledger refuses a query; while it cannot be reached, the items that run continue.
        """
        self._lingers_until = Deadline.after(self.linger_seconds)
        with ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="item") as pool:
            while not self._has_ended():
                self.turned_at = time.monotonic()
                self._settle()
                self._pass_on_stops()
                if self._ends_because:
                    self._say_so()
                else:
                    self._claim(pool)
                self.news.wait(_LOOK_SECONDS)
        return self._ends_because

    def _has_ended(self) -> bool:
        """Whether there is nothing to do any more; then the ledger knows."""
        if self._running:
            return False
        if self._ends_because:
            return True
        if self._lingers_until.is_over():
            reason = "no further work came"
            if self._while_reachable(lambda: end_if_idle(self.ledger, self.application, reason=reason), False):
                self._ends_because = reason
        return bool(self._ends_because)

    def _settle(self) -> None:
        for future in [future for future in self._running if future.done()]:
            unit = self._running.pop(future)
            linger = max(item.linger_seconds for item in unit.items)
            until = Deadline.after(linger)
            self._lingers_until = max(self._lingers_until, until, key=lambda deadline: deadline.at)
            if (error := future.exception()) is not None:
                raise error
        if not self._ends_because and self.stop.reason is not None:
            self._end_because(str(self.stop.reason))
        if not self._ends_because and (worn := self.is_worn()):
            self._end_because(worn)

    def _end_because(self, reason: str) -> None:
        _log.info("no further item is claimed: %s", reason)
        self._ends_because = reason

    def _say_so(self) -> None:
        """Let the ledger know that no further item is claimed, while others still run."""

        def say_so() -> bool:
            take_no_more(self.ledger, self.application)
            return True

        if self._running and not self._has_said_so:
            self._has_said_so = self._while_reachable(say_so, False)

    def _pass_on_stops(self) -> None:
        """Ask items to stop that were withdrawn, or all of them when the application is asked to end."""
        stops = {item: stop for unit in self._running.values() for item, stop in unit.stops.items()}
        if self.stop.reason is not None:
            for stop in stops.values():
                stop.make(self.stop.reason)
        elif stops and self._looks_at_withdrawn.is_over():
            self._looks_at_withdrawn = Deadline.after(_WITHDRAWN_LOOK_SECONDS)
            for item in self._while_reachable(lambda: withdrawn_among(self.ledger, list(stops)), frozenset()):
                stops[item].make(StopReason.STOPPED)

    def _claim(self, pool: Executor) -> None:
        claimed = self._while_reachable(self._claimed, ())
        for item in claimed:
            self.reached(CrashPoint.ITEM_CLAIMED, item)
        for items in self._units(claimed):
            unit = Unit(items=tuple(items), stops={item.item: StopRequest() for item in items})
            future = pool.submit(self._work, unit)
            future.add_done_callback(lambda _: self.news.come())
            self._running[future] = unit

    def _claimed(self) -> tuple[WorkItem, ...]:
        running = [item for unit in self._running.values() for item in unit.items]
        bench = Bench(
            running=running,
            lane_of=lambda stream: interval_lane(self.declarations, stream),
            now=database_time(self.ledger),
            followers_of=lambda item: intervals_that_follow(self.declarations, item),
        )

        def choose(waiting: Sequence[WorkItem]) -> Sequence[WorkItem]:
            chosen = bench.choose(waiting)
            for item in chosen:
                self.reached(CrashPoint.ITEM_CHOSEN, item)
            return chosen

        return claim(self.ledger, self.application, choose)

    def _units(self, claimed: Sequence[WorkItem]) -> list[list[WorkItem]]:
        """What each thread does. An item that runs alone is never part of a batch of several."""
        units = [[item] for item in claimed if item.kind is not WorkKind.INTERVAL]
        by_stream: dict[str, list[WorkItem]] = {}
        for item in claimed:
            if item.kind is WorkKind.INTERVAL:
                by_stream.setdefault(item.subject, []).append(item)
        for stream, items in by_stream.items():
            most = interval_lane(self.declarations, stream).together
            units += together(items, interval_of=interval_of, most=most)
        return units

    def _work(self, unit: Unit) -> None:
        """Do the items of a unit in this thread, and record the end of each."""
        with open_ledger(self.settings.ledger_url) as ledger:
            left = list(unit.items)
            if len(left) > 1:
                left = self._done_together(unit, ledger)
            for item in left:
                self._do(item, unit.stops[item.item], ledger)

    def _done_together(self, unit: Unit, ledger: Ledger) -> list[WorkItem]:
        """Replace intervals as one batch. Returns those that have to be replaced alone."""
        first = unit.items[0]
        work = self._work_on(first, unit.stops[first.item], ledger)
        state = self.declarations.stream(first.subject).declaration.state
        results: dict[str, BackfillResult] = {}
        for item in unit.items:
            with in_item(UUID(item.item)):
                _log.info(
                    "%s, together with %d more in the log of item %s", _begun(item), len(unit.items) - 1, first.item
                )
        with in_item(UUID(first.item)), work.opened_when_needed(state) as open_session:
            try:
                results = work.intervals(open_session, stops=unit.stops).replace_together(unit.items)
            except Exception:  # noqa: BLE001  # alone, each interval fails by an error of its own, if it fails again
                _log.exception("the intervals could not be replaced together")
        for item in unit.items:
            if item.item in results:
                with in_item(UUID(item.item)):
                    self._record_done(item, ledger, json_value(results[item.item]))
        return [item for item in unit.items if item.item not in results]

    def _do(self, item: WorkItem, stop: StopRequest, ledger: Ledger) -> None:
        with in_item(UUID(item.item)):
            _log.info("%s", _begun(item))
            try:
                with named_jvm_loss():
                    result = self._work_on(item, stop, ledger).do()
            except Exception as error:  # noqa: BLE001  # the end of an item: any error becomes its failure
                self._fail(item, ledger, error)
            else:
                if item.kind is WorkKind.INCREMENT and stop.reason is StopReason.SIGNALLED:
                    return  # it has returned before everything was read, and waits again when the application has ended
                self._record_done(item, ledger, result)

    def _record_done(self, item: WorkItem, ledger: Ledger, result: Any) -> None:
        self._record(item, ledger, WorkState.DONE, result=result)
        _log.info("%s of %s is done", item.kind, item.subject)

    def _fail(self, item: WorkItem, ledger: Ledger, error: Exception) -> None:
        """Record a failure. One that may have damaged the process ends it after the items beside it."""
        if self.stop.reason is not None or isinstance(error, WithdrawnError):
            _log.info("%s of %s was stopped: %s", item.kind, item.subject, error)
            return
        if not isinstance(error, SluiceError):
            _log.exception("%s of %s failed", item.kind, item.subject)
        said = last_lines(error)
        for line in said.splitlines():
            _log.error("%s", line)
        if isinstance(error, JvmLostError):
            self._ends_because = f"its JVM is lost: {error.message}"
            raise error  # what else runs cannot continue either; all of it waits again
        self._record(item, ledger, WorkState.FAILED, failure=said)
        if is_suspect(error) and not self._ends_because:
            self._end_because(f"{item.kind} of {item.subject} has failed, by which the process may be damaged")

    def _record(
        self, item: WorkItem, ledger: Ledger, state: WorkState, *, failure: str | None = None, result: Any = None
    ) -> None:
        """Record an end; while the ledger is away, again, until the application would count as dead."""
        self.reached(CrashPoint.ITEM_DONE, item)
        for attempt in Retrying(
            retry=retry_if_exception_type(LedgerUnreachableError),
            stop=stop_after_delay(DEAD_AFTER.total_seconds()),
            wait=wait_fixed(1),
            reraise=True,
        ):
            with attempt:
                if not end_item(ledger, item, self.application, state, failure=failure, result=result):
                    _log.warning("%s of %s is not wanted from this application any more", item.kind, item.subject)
        self.reached(CrashPoint.ITEM_RECORDED, item)

    def _work_on(self, item: WorkItem, stop: StopRequest, ledger: Ledger) -> ItemWork:
        return ItemWork(
            settings=self.settings,
            declarations=self.declarations,
            sessions=self.sessions,
            ledger=ledger,
            item=item,
            stop=stop,
            reached=self.reached,
        )

    def _while_reachable(self, query: Callable[[], Any], otherwise: Any) -> Any:
        """What a query answers; while the ledger is away, items continue, and the reports end the process in time."""
        try:
            return query()
        except LedgerUnreachableError as error:
            _log.warning("the queue cannot be read: %s", error)
            return otherwise


def _begun(item: WorkItem) -> str:
    return f"{item.kind} of {item.subject}, asked by {item.asked_by}, attempt {item.attempt}"


def is_suspect(error: Exception) -> bool:
    """Whether the process may be damaged after an item has failed so, and should do no further one: its memory, its
    disk or a worker of Python gave out, or nothing is known of the error."""
    failure_class = failure_of_error(error).failure_class
    is_unknown = failure_class is FailureClass.UNKNOWN and not isinstance(error, SluiceError)
    return is_unknown or failure_class is FailureClass.RESOURCE
