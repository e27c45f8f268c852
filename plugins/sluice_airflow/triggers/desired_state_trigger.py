"""Waits beside a stream without a run: fires when somebody asks anew for the stream, or when its next start is due."""

from __future__ import annotations

from datetime import datetime

from sluice.ledger.watching import observe_wish
from sluice_airflow.triggers.ledger_trigger import LedgerTrigger

VERSION = 1


class WishTrigger(LedgerTrigger):
    """Wait until the wish for a stream, or what holds it, is another than the known one, or a time has passed.

    Parameters
    ----------
    stream: the stream.
    wished_at: when the known wish or hold was last changed, ISO 8601; unset when nothing was ever asked.
    due_seconds: fire after so long in any case; unset: only a wish counts. Started over, it waits the whole time again.
    poll_seconds: between two looks.
    version: of these arguments.
    """

    arguments = ("stream", "wished_at", "due_seconds", "poll_seconds", "version")

    def __init__(
        self,
        *,
        stream: str,
        wished_at: str | None,
        due_seconds: float | None,
        poll_seconds: float,
        version: int = VERSION,
    ) -> None:
        super().__init__(stream=stream, poll_seconds=poll_seconds, version=version)
        self.wished_at = wished_at
        self.due_seconds = due_seconds

    async def look(self, ledger_url: str, *, waited_seconds: float) -> str | None:
        """Look at the wish once."""
        if self.due_seconds is not None and waited_seconds >= self.due_seconds:
            return f"{self.due_seconds:.0f} seconds are over"
        known = None if self.wished_at is None else datetime.fromisoformat(self.wished_at)
        wish = await observe_wish(ledger_url, self.stream)
        return None if wish.changed_at == known else f"stream {self.stream} is to be {wish.wanted}"
