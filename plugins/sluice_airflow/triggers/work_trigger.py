"""Waits beside a work item: ends its task, or calls it back."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from sluice.backfill.results import RESULTS, results_of_run
from sluice.errors import LedgerError
from sluice.ledger.connection import open_ledger
from sluice.ledger.trigger_queries import observe_item, query_row
from sluice.ledger.work_items import withdraw
from sluice.ledger.work_values import WorkState
from sluice_airflow.composition import load_deployment
from sluice_airflow.triggers.ledger_trigger import LedgerTrigger

VERSION = 1

STARTS = "starts an application"
"""What is seen when the task is to start an application; else it is the state in which the item has ended."""


class WorkTrigger(LedgerTrigger):
    """Wait until a work item has ended, or its task is to start an application.

    Each look says that the task still waits: an item that no task waits for is not begun. All triggers of a triggerer
    share one query. A task whose item is done may end here, without a worker; any other end calls it back.

    A mark in the second before a trigger begins reaches none: what has begun continues to its end then.

    Parameters
    ----------
    stream: the stream or the table that the item is about.
    item: the item in the ledger.
    results_of: of an interval the name of its run, under which its attempts are recorded: they become the task's XCom.
    ends_task: whether the task ends here when its item is done.
    poll_seconds: between two looks.
    version: of these arguments.
    """

    arguments = ("stream", "item", "results_of", "ends_task", "poll_seconds", "version")

    def __init__(
        self,
        *,
        stream: str,
        item: str,
        results_of: str,
        ends_task: bool,
        poll_seconds: float,
        version: int = VERSION,
    ) -> None:
        super().__init__(stream=stream, poll_seconds=poll_seconds, version=version)
        self.item = item
        self.results_of = results_of
        self.ends_task = ends_task

    async def look(self, ledger_url: str, *, waited_seconds: float) -> str | None:
        """Look at the item once."""
        seen = await observe_item(ledger_url, self.item)
        if seen.needs_application:
            return STARTS
        return None if seen.state.is_open else seen.state.value

    async def event(self, seen: str) -> TriggerEvent:
        """The end of the task when its item is done, with its results; a worker reads these when they cannot be read
        here."""
        if seen != WorkState.DONE or not self.ends_task:
            return await super().event(seen)
        try:
            xcoms = {RESULTS: await asyncio.to_thread(self._results)} if self.results_of else None
        except LedgerError as error:
            self.log.warning("The results of %s cannot be read: %s", self.watched, error)
            return await super().event(seen)
        return TaskSuccessEvent(xcoms=xcoms)

    async def obey_mark(self, *, noticed_ago: timedelta) -> None:
        """Withdraw the item: its task was marked. A cleared task asks again, and that withdraws this item too."""
        del noticed_ago  # another try has an item of its own
        await query_row(load_deployment().ledger_url, withdraw([self.item]))

    @property
    def watched(self) -> str:
        """What is watched, for the beginning of a sentence."""
        return f"Work item {self.item} of {self.stream}"

    def _results(self) -> dict[str, Any]:
        with open_ledger(load_deployment().ledger_url) as ledger:
            return results_of_run(ledger, self.results_of)
