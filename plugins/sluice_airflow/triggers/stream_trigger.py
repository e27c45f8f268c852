"""Waits beside a live run: fires when the run ended, or looks odd for longer than its supervisor was patient."""

from __future__ import annotations

from sluice.errors import UnknownRunError
from sluice.ledger.trigger_queries import observe_run
from sluice.supervision.decide_supervision import calls_for_supervisor
from sluice_airflow.triggers.ledger_trigger import LedgerTrigger

VERSION = 1


class StreamTrigger(LedgerTrigger):
    """Wait until the run of a stream needs its supervisor.

    Parameters
    ----------
    stream: whose run it is.
    run_id: the run in the ledger.
    patience_seconds: how long an odd but live run is left alone; an ended one is answered to at once.
    poll_seconds: between two looks.
    version: of these arguments.
    """

    arguments = ("stream", "run_id", "patience_seconds", "poll_seconds", "version")

    def __init__(
        self, *, stream: str, run_id: str, patience_seconds: float, poll_seconds: float, version: int = VERSION
    ) -> None:
        super().__init__(stream=stream, poll_seconds=poll_seconds, version=version)
        self.run_id = run_id
        self.patience_seconds = patience_seconds

    async def look(self, ledger_url: str, *, waited_seconds: float) -> str | None:
        """Look at the run once. A run that the ledger does not know is answered to at once: it has lost its lease."""
        try:
            watched = await observe_run(ledger_url, self.run_id)
        except UnknownRunError:
            return f"run {self.run_id} is unknown to the ledger"
        is_odd = calls_for_supervisor(watched)
        if is_odd and (not watched.run.is_live or waited_seconds >= self.patience_seconds):
            return f"run {self.run_id} {watched.run.state}"
        return None
