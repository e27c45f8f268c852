"""Publications of a continuous stream are asset events in a real Airflow, and start what is scheduled by its table."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.base import TriggerEvent
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.deployment import deployment_environment
from tests.fixtures.sample_declarations import write_continuous_stream, write_incremental_stream, write_table
from tests.fixtures.supervised_streams import DEADLINE_SECONDS, started

from sluice.ledger.batches import record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.records.stream_batch import BatchObservation, PublicationKey
from sluice_airflow.triggers.publication_trigger import PublicationTrigger, continuous_writers

WATERMARK = datetime(2026, 11, 20, 11, 0, tzinfo=UTC)


@pytest.fixture
def table(tmp_path: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table with a continuous writer and an incremental one, beside a ledger that holds nothing."""
    for name, value in deployment_environment(tmp_path, pipelines=tmp_path, ledger_url=ledger_url).items():
        monkeypatch.setenv(name, value)
    write_table(tmp_path, "bronze.flights")
    write_table(tmp_path, "silver.flights")
    write_continuous_stream(tmp_path, "flowing", writes="silver.flights")
    write_incremental_stream(tmp_path, "scheduled", schedule="{cron: '@hourly'}", writes="silver.flights")
    return "silver.flights"


def publish(ledger: Ledger, number: int, *, rows: int, generation: int = 1, snapshot_id: int | None = 7) -> None:
    """Record a batch of the continuous stream."""
    record_batch(
        ledger,
        BatchObservation(
            key=PublicationKey(stream="flowing", generation=generation, batch=number),
            run_id="run-1",
            started_at=WATERMARK,
            duration_ms=1,
            input_rows=rows,
            published_rows={"main": rows},
            snapshot_ids={} if snapshot_id is None else {"main": snapshot_id + number},
            watermark=WATERMARK,
        ),
    )


def raised_events(table: str, *, events: int, then: Any = lambda _: None) -> list[dict[str, Any]]:
    """The first events that the trigger raises; `then` is called after each."""

    async def listen() -> list[dict[str, Any]]:
        heard: list[dict[str, Any]] = []
        telling = PublicationTrigger(table=table, poll_seconds=0.05).run()
        try:
            while len(heard) < events:
                event: TriggerEvent = await asyncio.wait_for(anext(telling), 20)
                heard.append(event.payload)
                await asyncio.to_thread(then, len(heard))
        finally:
            await telling.aclose()  # type: ignore[attr-defined]  # an asynchronous generator
        return heard

    return asyncio.run(listen())


def silent(table: str) -> bool:
    """Whether the trigger has nothing to tell for a while."""
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(anext(PublicationTrigger(table=table, poll_seconds=0.05).run()), 1.0))
    return True


def test_only_continuous_writers_are_watched(table: str) -> None:
    assert continuous_writers(table) == {"flowing": "main"}
    assert continuous_writers("bronze.flights") == {}


def test_what_was_published_since_the_last_event_is_announced_together(table: str, ledger: Ledger) -> None:
    publish(ledger, 0, rows=3)
    publish(ledger, 1, rows=4)
    publish(ledger, 2, rows=9, snapshot_id=None)  # nothing of it became visible
    first, second = raised_events(table, events=2, then=lambda heard: publish(ledger, 2 + heard, rows=5))
    assert first == {
        "stream": "flowing",
        "publication_key": "flowing:1:1",
        "batches": 2,
        "rows": 7,
        "snapshot_id": "8",
        "watermark": WATERMARK.isoformat(),
    }
    assert (second["publication_key"], second["batches"], second["rows"]) == ("flowing:1:3", 1, 5)


def test_a_triggerer_that_starts_again_announces_what_it_missed_and_nothing_twice(table: str, ledger: Ledger) -> None:
    publish(ledger, 0, rows=3)
    publish_next = {1: lambda: publish(ledger, 1, rows=1)}
    assert len(raised_events(table, events=2, then=lambda heard: publish_next.get(heard, lambda: None)())) == 2
    (again,) = raised_events(table, events=1)  # it was stopped before it recorded the second, so it raises it again
    assert again["publication_key"] == "flowing:1:1"
    publish(ledger, 0, rows=2, generation=2)
    (missed,) = raised_events(table, events=1)
    assert (missed["publication_key"], missed["rows"]) in (("flowing:2:0", 2), ("flowing:2:0", 3))


def test_an_event_that_airflow_has_not_stored_yet_is_raised_again(table: str, ledger: Ledger) -> None:
    """The triggerer keeps events in memory for about a second; one that ends meanwhile has stored none of them."""
    publish(ledger, 0, rows=3)

    async def raise_and_end() -> None:
        telling = PublicationTrigger(table=table, poll_seconds=60).run()
        event: TriggerEvent = await asyncio.wait_for(anext(telling), 20)
        assert event.payload["publication_key"] == "flowing:1:0"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(telling), 1.0)

    asyncio.run(raise_and_end())
    (again,) = raised_events(table, events=1)
    assert again["publication_key"] == "flowing:1:0"


def test_nothing_new_is_not_announced(table: str, ledger: Ledger) -> None:
    assert silent(table)


def test_an_increment_is_started_by_what_a_continuous_stream_publishes(airflow: RunningAirflow) -> None:
    airflow.unpause("by_stream")
    started(airflow, "announced")
    airflow.wait(lambda: bool(airflow.runs("by_stream")), within_seconds=DEADLINE_SECONDS)
    run = airflow.runs("by_stream")[0]
    assert run["run_type"] == "asset_triggered"
    (event, *_) = airflow.get(f"dags/by_stream/dagRuns/{run['dag_run_id']}/upstreamAssetEvents")["asset_events"]
    assert event["uri"] == "sluice://lakehouse/silver/announced"
    payload = event["extra"]["payload"]
    assert (payload["stream"], payload["rows"] > 0, payload["watermark"]) == ("announced", True, None)
    assert payload["rows"] == payload["batches"]
    assert int(payload["snapshot_id"]) > 0
