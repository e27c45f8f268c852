"""A reset: a generation is left behind and the next one opened, and nothing of the old one is lost or mixed up."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from sqlalchemy import text, update
from tests.fixtures.drivers import await_condition

from sluice.errors import RunAlreadyLiveError, UsageError
from sluice.ledger.batches import (
    Batch,
    BatchObservation,
    PublicationKey,
    newest_batch,
    recent_batches,
    record_batch,
    rejections_in,
    totals,
)
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.desired_states import SuspensionCause, resume, set_desired_state, suspend
from sluice.ledger.generations import GenerationObservation, current_generation, find_generation, record_query_id
from sluice.ledger.next_generation import open_next_generation
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import admit_run, newest_run, record_end

ROOT = "file:///checkpoints"


def a_batch(number: int, *, generation: int) -> BatchObservation:
    """A batch of ten rows."""
    return BatchObservation(
        key=PublicationKey(stream="flights", generation=generation, batch=number),
        run_id="a-run",
        started_at=datetime.now(UTC),
        duration_ms=1,
        input_rows=10,
        published_rows={"main": 10},
    )


def admit(ledger: Ledger) -> RunObservation:
    """Admit a run of the stream."""
    return admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")


def reset(ledger: Ledger, *, leaving: int = 1) -> GenerationObservation:
    """Leave a generation of the stream behind."""
    return open_next_generation(ledger, "flights", leaving=leaving, checkpoints_root=ROOT, opened_by="ann")


@pytest.fixture
def stopped(ledger: Ledger) -> Ledger:
    """A ledger with a stream that has run, delivered two batches and was stopped."""
    run = admit(ledger)
    current_generation(ledger, "flights", checkpoints_root=ROOT)
    record_query_id(ledger, "flights", 1, "query-1")
    for number in range(2):
        record_batch(ledger, a_batch(number, generation=1))
    record_end(ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="done")
    set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="ann")
    return ledger


def test_a_new_generation_has_a_checkpoint_and_a_query_of_its_own(stopped: Ledger) -> None:
    opened = reset(stopped)
    assert (opened.generation, opened.checkpoint, opened.opened_by) == (2, f"{ROOT}/flights/2", "ann")
    assert (opened.query_id, opened.fingerprint) == (None, {})
    assert find_generation(stopped, "flights") == opened
    assert current_generation(stopped, "flights", checkpoints_root="s3a://elsewhere") == opened
    assert record_query_id(stopped, "flights", 1, "query-1").checkpoint == f"{ROOT}/flights/1", "the old one stays"
    assert record_query_id(stopped, "flights", 2, "query-2").query_id == "query-2"


def test_batches_of_two_generations_are_distinguished_and_each_is_recorded_once(stopped: Ledger) -> None:
    reset(stopped)
    assert newest_batch(stopped, "flights", generation=2) is None
    assert record_batch(stopped, a_batch(0, generation=2))
    assert not record_batch(stopped, a_batch(0, generation=2))
    assert not record_batch(stopped, a_batch(1, generation=1)), "those of before are recorded still"
    keys = [str(batch.key) for batch in recent_batches(stopped, "flights", limit=9)]
    assert keys == ["flights:2:0", "flights:1:1", "flights:1:0"]
    assert totals(stopped, "flights").input_rows == 30


@pytest.mark.parametrize(
    ("query", "found"),
    [("query-1", ["flights:1:1", "flights:2:2"]), ("query-2", ["flights:2:2"])],
    ids=["goes on", "reset"],
)
def test_what_was_rejected_before_a_reset_is_read_again(stopped: Ledger, query: str, found: list[str]) -> None:
    reset(stopped)
    record_query_id(stopped, "flights", 2, query)
    for generation, number in ((1, 1), (2, 2)):
        record_batch(stopped, a_batch(number, generation=generation))
        with stopped.transaction() as connection:
            is_it = (Batch.generation == generation, Batch.batch == number)
            connection.execute(update(Batch).where(*is_it).values(is_rejected=True))

    assert [str(one.key) for one in rejections_in(stopped, "flights", generation=2)] == found
    assert [str(one.key) for one in rejections_in(stopped, "flights", generation=1)] == ["flights:1:1"]


def test_a_live_run_refuses_it(stopped: Ledger) -> None:
    run = admit(stopped)
    with pytest.raises(RunAlreadyLiveError, match=r"stop it first: `sluice stream stop flights`"):
        reset(stopped)
    record_end(stopped, run.run_id, state=RunState.FINISHED, exit_code=0, reason="done")
    assert reset(stopped).generation == 2


def test_a_stream_that_is_to_run_refuses_it(stopped: Ledger) -> None:
    set_desired_state(stopped, "flights", DesiredState.RUNNING)
    with pytest.raises(UsageError, match=r"is to run.*Stop it first: `sluice stream stop flights`"):
        reset(stopped)
    suspend(stopped, "flights", SuspensionCause.PAUSED)
    assert reset(stopped).generation == 2, "a paused DAG keeps it from running as well"
    resume(stopped, "flights")
    with pytest.raises(UsageError, match="is to run"):
        reset(stopped, leaving=2)


def test_only_the_newest_generation_is_left(stopped: Ledger) -> None:
    reset(stopped)
    with pytest.raises(UsageError, match=r"is at generation 2, opened .* by ann; generation 1 is not the newest"):
        reset(stopped)
    with pytest.raises(UsageError, match=r"is at generation 2.*; generation 3 is not the newest"):
        reset(stopped, leaving=3)
    assert reset(stopped, leaving=2).generation == 3


def test_a_stream_that_never_ran_has_nothing_to_leave(ledger: Ledger) -> None:
    set_desired_state(ledger, "flights", DesiredState.STOPPED)
    with pytest.raises(UsageError, match="it has never been started"):
        reset(ledger)
    assert find_generation(ledger, "flights") is None


def test_of_two_resets_at_once_one_is_done(stopped: Ledger, ledger_url: str) -> None:
    def ask(_: int) -> bool:
        with open_ledger(ledger_url) as own:
            try:
                return reset(own).generation == 2
            except UsageError:
                return False

    with ThreadPoolExecutor(max_workers=8) as pool:
        assert sum(pool.map(ask, range(8))) == 1
    newest = find_generation(stopped, "flights")
    assert newest is not None
    assert newest.generation == 2


def test_a_run_that_is_admitted_during_a_reset_is_of_the_new_generation(stopped: Ledger, ledger_url: str) -> None:
    def admit_beside() -> int:
        with open_ledger(ledger_url) as own:
            return admit(own).generation

    with ThreadPoolExecutor(max_workers=1) as pool:
        with stopped.transaction() as connection:
            connection.execute(text("SELECT FROM sluice.leases WHERE stream = 'flights' FOR UPDATE"))
            admitted = pool.submit(admit_beside)
            await_condition(lambda: _waits_for_lock(ledger_url))
            connection.execute(
                text("INSERT INTO sluice.generations (stream, generation, checkpoint) VALUES ('flights', 2, 'x')")
            )
        assert admitted.result() == 2
    run = newest_run(stopped, "flights")
    assert run is not None
    assert run.generation == 2


def _waits_for_lock(ledger_url: str) -> bool:
    with open_ledger(ledger_url) as own, own.transaction() as connection:
        return bool(connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())
