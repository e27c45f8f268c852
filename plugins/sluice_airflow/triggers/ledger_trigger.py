"""The base of Sluice's triggers: they poll the ledger, wait through its outages, and obey marks of their tasks.

The modules of this room are imported by the triggerer and by running tasks, never while DAG files are parsed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from sluice.errors import LedgerError
from sluice.ledger.connection import open_ledger
from sluice.ledger.desired_states import SuspensionCause, suspend
from sluice.ledger.events import Actor, Event, EventAction
from sluice_airflow.composition import load_deployment

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol as TaskInstance

LEDGER_OUTAGE_SECONDS = 300.0
"""How long an outage of the ledger is waited for. No stream is touched meanwhile: unknown is never treated as dead.
Then the task takes over, whose retries are seen in Airflow, so that no outage stays hidden."""

MARKED_STATES = frozenset({"failed", "skipped", "success"})
"""The states of a deferred task after a person has marked it or its DAG run. Otherwise it would be deferred or running
still; a cleared task has no state, or one on its way to be run again."""

_background: set[asyncio.Task[None]] = set()
"""Work that continues for cancelled triggers; an event loop itself does not keep its tasks."""

_log = logging.getLogger(__name__)


class LedgerTrigger(BaseTrigger):
    """Poll the ledger until there is something to report.

    It may run twice, on any host, and be restarted at any time. A driver is not its child: neither a cancelled trigger
    nor a cleared task stops what is watched. A task that a person has marked as failed or successful does.

    Parameters
    ----------
    stream: the stream that is watched.
    poll_seconds: between two looks.
    version: of the trigger's arguments.
    """

    arguments: ClassVar[tuple[str, ...]]
    """The names of the constructor's arguments, which are attributes of the same names. Airflow's database keeps them
    while a stream runs for weeks: a newer program must read older ones."""

    def __init__(self, *, stream: str, poll_seconds: float, version: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        self.stream = stream
        self.poll_seconds = poll_seconds
        self.version = version

    @abstractmethod
    async def look(self, ledger_url: str, *, waited_seconds: float) -> str | None:
        """Look once. Returns what was seen when the trigger is to fire.

        Parameters
        ----------
        waited_seconds: since the trigger began to look.

        Raises
        ------
        LedgerError: when the ledger does not answer.
        """

    async def event(self, seen: str) -> TriggerEvent:
        """What Airflow gets when the trigger fires: the task is called back with what was seen."""
        return TriggerEvent({"seen": seen})  # type: ignore[no-untyped-call]  # Airflow does not annotate it

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The trigger's class path, and the arguments that recreate it."""
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in self.arguments}

    async def on_kill(self) -> None:
        """Obey when the task was marked; do nothing when it was cleared, or only moved.

        Airflow waits 30 seconds for this. The first query of a triggerer to Airflow may take longer on a busy machine,
        so the work continues without the trigger: a person's click is not lost.
        """
        work = asyncio.create_task(self._obey_if_marked())
        _background.add(work)
        work.add_done_callback(_background.discard)
        await asyncio.shield(work)

    async def obey_mark(self, *, noticed_ago: timedelta) -> None:
        """Stop the stream after its batch: its task was marked.

        Parameters
        ----------
        noticed_ago: how long ago Airflow called this trigger about it.
        """
        await asyncio.to_thread(suspend_as_marked, load_deployment().ledger_url, self.stream, noticed_ago=noticed_ago)

    @property
    def watched(self) -> str:
        """What is watched, for the beginning of a sentence."""
        return f"Stream {self.stream}"

    async def _obey_if_marked(self) -> None:
        task, noticed_at = self.task_instance, time.monotonic()
        if task is None or not await is_marked(task):
            _log.info("%s continues: its task was not marked", self.watched)
            return
        if not await load_deployment().owns_ledger():
            _log.warning("%s continues: its ledger belongs to another Airflow, which its tasks are of", self.watched)
            return
        await self.obey_mark(noticed_ago=timedelta(seconds=time.monotonic() - noticed_at))
        _log.info("%s stops unless it was requested since: its task was marked", self.watched)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, with what was seen. The task supervises the stream again before it acts."""
        ledger_url = load_deployment().ledger_url
        began_at = answered_at = time.monotonic()
        is_away = False
        while True:
            # Before the first look, too: when a deferred task is called back before the scheduler has noticed that it
            # was deferred, the scheduler takes its worker's end for a failure, and the task loses a try.
            await asyncio.sleep(self.poll_seconds)
            seen = None
            try:
                seen = await self.look(ledger_url, waited_seconds=time.monotonic() - began_at)
                if is_away:
                    self.log.info("%s is watched again: the ledger answers", self.watched)
                is_away, answered_at = False, time.monotonic()
            except LedgerError as error:
                if not is_away:
                    self.log.warning("%s cannot be watched and is left alone: %s", self.watched, error)
                is_away = True
                if time.monotonic() - answered_at > LEDGER_OUTAGE_SECONDS:
                    seen = "the ledger is away"
            if seen is not None:
                yield await self.event(seen)
                return


async def is_marked(task: TaskInstance) -> bool:
    """Whether a person has marked a deferred task, rather than cleared it.

    Airflow calls `on_kill` when a trigger's task was cleared or marked, and (3.3, apache/airflow#73454) also when the
    trigger was only moved to another triggerer. So only the task's state decides, queried afterwards.
    """
    return await _state_of(task) in MARKED_STATES


def suspend_as_marked(ledger_url: str, stream: str, *, noticed_ago: timedelta) -> None:
    """Stop a stream gracefully, until a person clears the task, triggers or unpauses the DAG, or starts the stream.

    Parameters
    ----------
    noticed_ago: how long ago `on_kill` was called. On a busy machine it takes a minute until Airflow has returned the
        task's state, and a person may have unpaused the DAG by then.
    """
    with open_ledger(ledger_url) as ledger:
        event = Event(
            name=stream,
            actor=Actor.person(f"airflow: {stream}"),
            action=EventAction.SUSPEND,
            reason="task_marked",
            explanation="Its task was marked in Airflow, which does not report by whom: the stream is to stop.",
        )
        suspend(ledger, stream, SuspensionCause.MARKED, noticed_ago=noticed_ago, event=event)


async def _state_of(task: TaskInstance) -> str | None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance  # costly, and needed at a click only

    states = await asyncio.to_thread(
        RuntimeTaskInstance.get_task_states, dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id]
    )
    state = states.get(task.run_id, {}).get(task.task_id)
    return None if state is None else str(state)
