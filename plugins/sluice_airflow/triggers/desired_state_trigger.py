"""Waits for a stream without a run: fires when its desired state changes, or when its next start is due."""

from __future__ import annotations

from datetime import datetime

from sluice.ledger.trigger_queries import observe_desired_state
from sluice_airflow.triggers.ledger_trigger import LedgerTrigger

VERSION = 1


class DesiredStateTrigger(LedgerTrigger):
    """Wait until the desired state of a stream differs from the known one, or a time has passed.

    Parameters
    ----------
    stream: the stream.
    known_change_at: when the known request or suspension was last changed, ISO 8601; unset when nothing was ever
        requested.
    due_seconds: fire after so many seconds in any case; unset: only a change counts. A restarted trigger waits the
        whole time again.
    poll_seconds: between two looks.
    version: of these arguments.
    """

    arguments = ("stream", "known_change_at", "due_seconds", "poll_seconds", "version")

    def __init__(
        self,
        *,
        stream: str,
        known_change_at: str | None,
        due_seconds: float | None,
        poll_seconds: float,
        version: int = VERSION,
    ) -> None:
        super().__init__(stream=stream, poll_seconds=poll_seconds, version=version)
        self.known_change_at = known_change_at
        self.due_seconds = due_seconds

    async def look(self, ledger_url: str, *, waited_seconds: float) -> str | None:
        """Look at the desired state once."""
        if self.due_seconds is not None and waited_seconds >= self.due_seconds:
            return f"{self.due_seconds:.0f} seconds are over"
        known = None if self.known_change_at is None else datetime.fromisoformat(self.known_change_at)
        desired = await observe_desired_state(ledger_url, self.stream)
        return None if desired.changed_at == known else f"stream {self.stream} is to be {desired.effective_state}"
