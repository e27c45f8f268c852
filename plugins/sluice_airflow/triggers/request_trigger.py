"""Waits beside the application that replaces the intervals of many runs: ends the task, or calls it back."""

from __future__ import annotations

import asyncio
from typing import Any

from airflow.triggers.base import TaskSuccessEvent, TriggerEvent

from sluice.backfill.run_results import RESULTS, results_of_run
from sluice.ledger.backfill_requests import look_at_request, request_of, withdraw_request
from sluice.ledger.connection import open_ledger
from sluice.ledger.records.backfill_request import RequestState
from sluice.ledger.trigger_queries import query_row
from sluice_airflow.composition import load_deployment
from sluice_airflow.triggers.ledger_trigger import LedgerTrigger

VERSION = 1


class RequestTrigger(LedgerTrigger):
    """Wait until the interval of a run is replaced, or its run is to start an application.

    Each look says that the run still waits: an interval that no run waits for is not replaced. A task whose interval
    was replaced ends here, without a worker; any other result calls it back.

    Parameters
    ----------
    stream: whose interval it is.
    number: the request in the ledger.
    launched_by: the name of the run, under which its attempts are recorded.
    poll_seconds: between two looks.
    version: of these arguments.
    """

    arguments = ("stream", "number", "launched_by", "poll_seconds", "version")

    def __init__(
        self, *, stream: str, number: int, launched_by: str, poll_seconds: float, version: int = VERSION
    ) -> None:
        super().__init__(stream=stream, poll_seconds=poll_seconds, version=version)
        self.number = number
        self.launched_by = launched_by

    async def look(self, ledger_url: str, *, waited_seconds: float) -> str | None:
        """Look at the request once."""
        seen = request_of(self.number, await query_row(ledger_url, look_at_request(self.number)))
        return None if seen.is_open and not seen.needs_application else seen.state.value

    async def event(self, seen: str) -> TriggerEvent:
        """The end of the task when its interval was replaced."""
        if seen != RequestState.DONE:
            return await super().event(seen)
        return TaskSuccessEvent(xcoms={RESULTS: await asyncio.to_thread(self._results)})

    async def on_kill(self) -> None:
        """Ask for the interval no more: a person has marked or cleared the task. When Airflow has only moved the
        trigger, the task asks again."""
        await query_row(load_deployment().ledger_url, withdraw_request(self.number))

    def _results(self) -> dict[str, Any]:
        with open_ledger(load_deployment().ledger_url) as ledger:
            return results_of_run(ledger, self.launched_by)
