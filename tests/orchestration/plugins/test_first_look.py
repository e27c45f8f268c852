"""When a trigger looks for the first time."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest
from airflow.triggers.base import TriggerEvent

from sluice_airflow.triggers import ledger_trigger
from sluice_airflow.triggers.ledger_trigger import LedgerTrigger


class Looking(LedgerTrigger):
    """Sees something at once, and notes when it was asked."""

    arguments = ("stream", "poll_seconds", "version")

    def __init__(self, done: list[str]) -> None:
        super().__init__(stream="flights", poll_seconds=2.0, version=1)
        self.done = done

    async def look(self, ledger_url: str, *, waited_seconds: float) -> str | None:
        """See."""
        del ledger_url, waited_seconds
        self.done.append("looked")
        return "something"


def test_a_trigger_waits_before_its_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that is called back before the scheduler has noticed that it was deferred loses a try."""
    done: list[str] = []

    async def sleep(seconds: float) -> None:
        done.append(f"waited {seconds:.0f} s")

    monkeypatch.setattr(ledger_trigger, "load_deployment", lambda: SimpleNamespace(ledger_url="postgresql://here"))
    monkeypatch.setattr(ledger_trigger, "asyncio", SimpleNamespace(sleep=sleep))

    async def events() -> list[TriggerEvent]:
        return [event async for event in Looking(done).run()]

    assert len(asyncio.run(events())) == 1
    assert done == ["waited 2 s", "looked"]
