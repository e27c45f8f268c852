"""What the demo does about held weather, and what it says about it."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.demo import demonstration
from sluice.demo.demonstration import run_weather
from sluice.ledger.batches import PublicationKey
from sluice.ledger.held_batches import HeldBatch, HeldDecision

REASON = "temperature_is_possible by 3 of 80 rows of weather"
NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


def held(batch: int, decision: HeldDecision | None = None) -> HeldBatch:
    key = PublicationKey(stream="bronze_weather", generation=1, batch=batch)
    return HeldBatch(key=key, reason=REASON, rows={"weather": 80, "quarantine": 1}, decision=decision)


class World:
    """The stream of the weather as far as the demo sees it: each run carries out what is decided about the oldest."""

    def __init__(self, *waiting: HeldBatch) -> None:
        self.waiting = list(waiting)
        self.decided: set[PublicationKey] = {one.key for one in waiting if one.decision is not None}
        self.said: list[str] = []
        self.airflow = SimpleNamespace(
            unpause=lambda _: None, has_raised_asset_events=lambda _: True, runs=lambda _: []
        )
        self.dag_runs = SimpleNamespace(
            await_known=lambda _: None, await_new=lambda *_, **__: None, await_success=lambda run: run
        )
        self.ledger, self.settings = None, SimpleNamespace(pipelines=None)

    def run(self, *_: object, **__: object) -> object:
        while self.waiting and self.waiting[0].key in self.decided:
            self.waiting.pop(0)
        return SimpleNamespace()

    def find_held(self, *_: object) -> HeldBatch | None:
        return self.waiting[0] if self.waiting else None

    def plan(self, *_: object, **__: object) -> Any:
        return SimpleNamespace(seen=self.waiting[0], digest="d")

    def decide(self, _: object, plan: Any, **__: object) -> None:
        self.decided.add(plan.seen.key)

    @contextmanager
    def step(self, _: object) -> Any:
        yield

    def print(self, text: str) -> None:
        self.said.append(text)


def weather(world: World, monkeypatch: pytest.MonkeyPatch, *, written: list[date]) -> str:
    monkeypatch.setattr(demonstration, "open_landing_folder", lambda _: None)
    monkeypatch.setattr(demonstration, "drop_weather", lambda *_, **__: written)
    monkeypatch.setattr(demonstration, "load_declarations", lambda *_, **__: SimpleNamespace(stream=lambda _: None))
    monkeypatch.setattr(demonstration, "_run", world.run)
    monkeypatch.setattr(demonstration, "find_held", world.find_held)
    monkeypatch.setattr(demonstration, "plan_decision", world.plan)
    monkeypatch.setattr(demonstration, "decide", world.decide)
    platform: Any = world
    log: Any = world
    return run_weather(platform, log, flights_until=NOON)


def test_what_an_interrupted_demo_has_left_held_does_not_keep_that_of_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(held(1), held(2))

    weather(world, monkeypatch, written=[date(2013, 1, 15)])

    assert world.waiting == [], "the weather of this demo is not visible, and the proof of every demo fails from now on"


@pytest.mark.parametrize("decision", [HeldDecision.REJECTED, HeldDecision.RELEASED])
def test_the_report_says_what_was_decided(monkeypatch: pytest.MonkeyPatch, decision: HeldDecision) -> None:
    world = World(held(1, decision))
    world.run = lambda *_, **__: SimpleNamespace()  # type: ignore[method-assign]  # the run has not come to it yet

    assert "released without those rows" not in weather(world, monkeypatch, written=[])


def test_a_demo_that_dropped_a_bad_file_fails_when_nothing_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Exception, match="held"):
        weather(World(), monkeypatch, written=[date(2013, 1, 1)])
