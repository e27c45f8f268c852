"""Publications of a continuous stream are asset events in a real Airflow, and start what is scheduled by its table."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from airflow.triggers.shared_stream import SharedStreamManager
from sqlalchemy import text
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.deployment import deployment_environment
from tests.fixtures.sample_declarations import write_continuous_stream, write_incremental_stream, write_table
from tests.fixtures.supervised_streams import DEADLINE_SECONDS, started

from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice_airflow.triggers.publication_stream import continuous_writers
from sluice_airflow.triggers.publication_trigger import PublicationTrigger

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


class Listening:
    """Airflow's own part of a triggerer that shares and acknowledges the looks of a trigger.

    stores: whether it stores what it hears, as a triggerer does about a second later.
    """

    def __init__(self, table: str, *, stores: bool = True) -> None:
        self._trigger = PublicationTrigger(table=table, poll_seconds=0.05)
        self._key = self._trigger.shared_stream_key()
        self._manager = SharedStreamManager()
        shared = self._manager.subscribe(trigger_id=1, trigger=self._trigger, key=self._key)
        self._events = self._trigger.filter_shared_stream(shared)
        self._heard: asyncio.Queue[tuple[dict[str, Any], int | None]] = asyncio.Queue()
        self._stores = stores
        self._task = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        async for event in self._events:
            number = self._manager.bind_pending_event(trigger_id=1, key=self._key)
            if self._stores:
                self.store(number)
            self._heard.put_nowait((event.payload, number))

    def store(self, number: int | None) -> None:
        """Airflow has stored an event."""
        assert number is not None
        self._manager.confirm_persisted([number])

    async def next(self, seconds: float = 20.0) -> tuple[dict[str, Any], int | None]:
        """The next event, and the number under which Airflow stores it."""
        return await asyncio.wait_for(self._heard.get(), seconds)

    async def end(self) -> None:
        """The triggerer ends."""
        self._task.cancel()
        await self._manager.stop_all()


def raised_events(table: str, *, events: int, then: Any = lambda _: None) -> list[dict[str, Any]]:
    """The first events that a triggerer stores; `then` is called after each. It ends once all are recorded."""

    async def listen() -> list[dict[str, Any]]:
        heard: list[dict[str, Any]] = []
        listening = Listening(table)
        try:
            while len(heard) < events:
                heard.append((await listening.next())[0])
                await asyncio.to_thread(then, len(heard))
            with pytest.raises(TimeoutError):
                await listening.next(1.0)
        finally:
            await listening.end()
        return heard

    return asyncio.run(listen())


def silent(table: str) -> bool:
    """Whether the trigger has nothing to tell for a while."""
    return raised_events(table, events=0) == []


def test_only_continuous_writers_are_watched(table: str) -> None:
    assert continuous_writers(table) == {"flowing": "main"}
    assert continuous_writers("bronze.flights") == {}


def test_what_was_published_since_the_last_event_is_announced_together(table: str, ledger: Ledger) -> None:
    publish(ledger, 0, rows=3)
    publish(ledger, 1, rows=4)
    publish(ledger, 2, rows=9, snapshot_id=None)  # nothing of it became visible
    publish_next = {1: lambda: publish(ledger, 3, rows=5)}
    first, second = raised_events(table, events=2, then=lambda heard: publish_next.get(heard, lambda: None)())
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
    assert silent(table)
    publish(ledger, 0, rows=2, generation=2)
    (missed,) = raised_events(table, events=1)
    assert (missed["publication_key"], missed["rows"]) == ("flowing:2:0", 2)


def test_an_event_that_airflow_has_not_stored_is_raised_again_by_the_next_triggerer_only(
    table: str, ledger: Ledger
) -> None:
    """Airflow keeps events in memory until its database takes them, however long that is away."""
    publish(ledger, 0, rows=3)

    async def raise_and_end() -> None:
        listening = Listening(table, stores=False)
        event, _ = await listening.next()
        assert event["publication_key"] == "flowing:1:0"
        publish(ledger, 1, rows=1)
        with pytest.raises(TimeoutError):
            await listening.next(1.0)  # neither again, nor anything that would overtake it
        await listening.end()

    asyncio.run(raise_and_end())
    (again,) = raised_events(table, events=1)
    assert (again["publication_key"], again["rows"]) == ("flowing:1:1", 4), "with what was published since"


def test_a_stored_event_is_recorded_when_the_ledger_is_back_and_never_raised_twice(table: str, ledger: Ledger) -> None:
    publish(ledger, 0, rows=3)

    def set_read_only(state: str) -> None:
        with ledger.transaction() as connection:
            name = connection.engine.url.database
            connection.execute(text("SET TRANSACTION READ WRITE"))
            connection.execute(text(f"ALTER DATABASE {name} SET default_transaction_read_only = {state}"))
            connection.execute(
                text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name "
                    "AND pid <> pg_backend_pid()"
                ),
                {"name": name},
            )

    async def store_while_away() -> None:
        listening = Listening(table, stores=False)
        _, number = await listening.next()
        await asyncio.to_thread(set_read_only, "on")
        listening.store(number)
        with pytest.raises(TimeoutError):
            await listening.next(1.0)
        await asyncio.to_thread(set_read_only, "off")
        with pytest.raises(TimeoutError):
            await listening.next(1.0)
        await listening.end()

    asyncio.run(store_while_away())
    assert silent(table), "it was recorded once the ledger took writes again"


def test_nothing_new_is_not_announced(table: str, ledger: Ledger) -> None:
    assert silent(table)


def test_an_increment_is_started_by_what_a_continuous_stream_publishes(airflow: RunningAirflow) -> None:
    airflow.unpause("by_stream")
    airflow.parse_again("by_stream")  # that is when Airflow begins to watch for what a DAG waits for
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
