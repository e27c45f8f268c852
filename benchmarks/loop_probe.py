"""A trigger that measures the event loop that it runs in; `benchmarks.triggerer_lag` lets a triggerer run it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

ASLEEP_SECONDS = 0.02


class LoopProbe(BaseTrigger):
    """Fall asleep again and again, and keep by how much later than asked the loop came back.

    Parameters
    ----------
    seconds: for how long.
    report: the file that is written at the end: a JSON list of seconds, in the order in which they were measured.
    """

    def __init__(self, *, seconds: float, report: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
        self.seconds = seconds
        self.report = report

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """The trigger's class, and the arguments that make it again."""
        return f"{LoopProbe.__module__}.{LoopProbe.__qualname__}", {"seconds": self.seconds, "report": self.report}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, after the report was written."""
        late_seconds: list[float] = []
        until = time.monotonic() + self.seconds
        while (asleep_at := time.monotonic()) < until:
            await asyncio.sleep(ASLEEP_SECONDS)
            late_seconds.append(time.monotonic() - asleep_at - ASLEEP_SECONDS)
        part = Path(f"{self.report}.part")
        await asyncio.to_thread(part.write_text, json.dumps(late_seconds))
        await asyncio.to_thread(part.rename, self.report)
        yield TriggerEvent({"measured": len(late_seconds)})  # type: ignore[no-untyped-call]  # Airflow does not annotate it
