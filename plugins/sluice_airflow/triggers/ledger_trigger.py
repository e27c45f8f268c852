"""What the triggers of Sluice have in common: they look at the ledger again and again, and bear its absence.

The modules of this room are imported by the triggerer and by running tasks, never while DAG files are parsed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any, ClassVar

from airflow.triggers.base import BaseTrigger, TriggerEvent

from sluice.errors import LedgerError
from sluice_airflow.composition import load_deployment
from sluice_airflow.triggers.task_marks import hold_as_marked, is_marked

BEARABLE_OUTAGE_SECONDS = 300.0
"""How long an absent ledger is waited for. Nothing is done to the stream meanwhile: unknown is never treated as dead.
After that the task takes over, whose retries are seen in Airflow, so that no outage stays unseen."""


_going_on: set[asyncio.Task[None]] = set()
"""What is still done for triggers that were cancelled; an event loop itself does not keep its tasks."""

_log = logging.getLogger(__name__)


class LedgerTrigger(BaseTrigger):
    """Poll the ledger until there is something to tell.

    It only reads, so it may run twice, anywhere, and start over at any time. A stream's driver is not its child:
    neither a cancelled trigger nor a cleared task stops a stream. A task that a person has marked as failed or
    successful does, after its batch.

    Parameters
    ----------
    stream: the stream that is watched.
    poll_seconds: between two looks.
    version: of the trigger's arguments.
    """

    arguments: ClassVar[tuple[str, ...]]
    """The names of the constructor's arguments, which are attributes of the same names. They lie in Airflow's database
    while a stream runs for weeks: a newer program must read older ones."""

    def __init__(self, *, stream: str, poll_seconds: float, version: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        self.stream = stream
        self.poll_seconds = poll_seconds
        self.version = version

    @abstractmethod
    async def look(self, ledger_url: str, *, waited_seconds: float) -> str | None:
        """Look once. Returns what there is to tell, or nothing.

        Parameters
        ----------
        waited_seconds: since the trigger began to look.

        Raises
        ------
        LedgerError: when the ledger does not answer.
        """

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The trigger's class, and the arguments that make it again."""
        kind = type(self)
        return f"{kind.__module__}.{kind.__qualname__}", {name: getattr(self, name) for name in self.arguments}

    async def on_kill(self) -> None:
        """Stop the stream gracefully when its task was marked; do nothing when it was cleared, or only moved.

        Airflow waits 30 seconds for this. The first question of a triggerer to Airflow may take longer on a busy
        machine, so the work goes on without the trigger: a person's click is not lost.
        """
        work = asyncio.create_task(self._stop_if_marked())
        _going_on.add(work)
        work.add_done_callback(_going_on.discard)
        await asyncio.shield(work)

    async def _stop_if_marked(self) -> None:
        task, told_at = self.task_instance, time.monotonic()
        if task is None or not await is_marked(task):
            _log.info("The task of stream %s was not marked; the stream goes on", self.stream)
            return
        noticed_ago = timedelta(seconds=time.monotonic() - told_at)
        await asyncio.to_thread(hold_as_marked, load_deployment().ledger_url, self.stream, noticed_ago=noticed_ago)
        _log.info("The task of stream %s was marked: it stops after its batch if nobody asked anew since", self.stream)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, with what was seen. The task looks again itself before it does anything."""
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
                    self.log.info("The ledger answers again; stream %s is watched on", self.stream)
                is_away, answered_at = False, time.monotonic()
            except LedgerError as error:
                if not is_away:
                    self.log.warning("Stream %s cannot be watched and is left alone: %s", self.stream, error)
                is_away = True
                if time.monotonic() - answered_at > BEARABLE_OUTAGE_SECONDS:
                    seen = "the ledger is away"
            if seen is not None:
                yield TriggerEvent({"seen": seen})  # type: ignore[no-untyped-call]  # Airflow does not annotate it
                return
