"""Who may still commit old files: each keeps them from the removal of orphans."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert
from tests.fixtures.orphans import NAME, Yard, open_yard

from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.run_table import Run
from sluice.ledger.unfinished_writes import longest_batch, unfinished_writes
from sluice.ledger.work_tables import WorkRow
from sluice.maintenance.orphan_search import grace_of


@pytest.fixture
def yard(ledger: Ledger, tmp_path: Path) -> Iterator[Yard]:
    """A table with an orphan of five days."""
    made = open_yard(tmp_path, ledger)
    made.leave("data/left.parquet")
    made.age()
    yield made
    made.catalog.close()


def begin_run(ledger: Ledger, at: datetime, **values: Any) -> None:
    """A run that is live."""
    run = {"run_id": "r", "stream": "s", "token": 1, "generation": 1, "mode": "continuous", "state": "running"}
    more = {"desired_state": "running", "launched_at": at, "launched_by": "a test", "declaration_digest": "d"}
    with ledger.transaction() as connection:
        connection.execute(insert(Run).values({**run, **more, **values}))


def record(ledger: Ledger, at: datetime, *, minutes: int = 1, stream: str = "s") -> None:
    """A batch of that run."""
    batch = BatchObservation(
        key=PublicationKey(stream=stream, generation=1, batch=1),
        run_id="r",
        started_at=at,
        duration_ms=minutes * 60_000,
        input_rows=1,
        published_rows={"main": 1},
    )
    record_batch(ledger, batch)


def claim(ledger: Ledger, at: datetime, *, subject: str, state: str = "claimed") -> None:
    """A work item that an application does."""
    item = {"item": "i", "kind": "interval", "subject": subject, "payload": {}, "asked_by": "a test", "asked_at": at}
    more = {"pool": "p", "digest": "d", "priority": 0, "linger_seconds": 0, "waits_until": at, "state": state}
    with ledger.transaction() as connection:
        connection.execute(insert(WorkRow).values({**item, **more, "claimed_at": at}))


def test_without_work_it_is_an_orphan(yard: Yard) -> None:
    assert yard.found() == {"left.parquet"}


def test_a_live_run_without_a_batch_keeps_what_it_may_have_written(yard: Yard) -> None:
    begin_run(yard.ledger, yard.now - timedelta(days=6))
    plan = yard.plan()
    assert plan.seen.orphans == ()
    assert "since when run r of s is at work" in plan.seen.notes[0]


def test_a_live_run_keeps_what_is_younger_than_its_newest_batch(yard: Yard) -> None:
    begin_run(yard.ledger, yard.now - timedelta(days=60))
    record(yard.ledger, yard.now - timedelta(days=4))
    assert yard.found() == {"left.parquet"}


def test_a_run_that_has_ended_keeps_nothing(yard: Yard) -> None:
    begin_run(yard.ledger, yard.now - timedelta(days=6), state="failed", ended_at=yard.now)
    assert yard.found() == {"left.parquet"}


@pytest.mark.parametrize(
    ("subject", "state", "kept"), [("s", "claimed", True), (NAME, "claimed", True), ("s", "done", False)]
)
def test_a_work_item_that_is_done_keeps_what_it_may_have_written(
    yard: Yard, subject: str, state: str, kept: bool
) -> None:
    claim(yard.ledger, yard.now - timedelta(days=6), subject=subject, state=state)
    assert (yard.found() == set()) is kept
    assert (unfinished_writes(yard.ledger) == ()) is not kept


def test_the_grace_is_longer_than_two_of_the_longest_batches(ledger: Ledger) -> None:
    now = datetime.fromisoformat("2026-11-26T12:00:00+00:00")
    assert longest_batch(ledger, ["s"]) == timedelta(0)
    record(ledger, now, minutes=3 * 24 * 60)
    record(ledger, now, minutes=9 * 24 * 60, stream="other")
    longest = longest_batch(ledger, ["s"])
    assert grace_of(older_than=timedelta(days=3), longest_batch=longest) == timedelta(days=6)
    assert grace_of(older_than=timedelta(days=9), longest_batch=longest) == timedelta(days=9)
