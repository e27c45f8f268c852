"""The steps of a refresh in the ledger: each happens once, and no two refreshes of a stream are open."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import delete, text
from tests.fixtures.drivers import await_condition

from sluice.errors import UsageError
from sluice.ledger.batches import BatchObservation, PublicationKey, newest_batch, record_batch, totals
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.generations import current_generation, find_generation, record_identities, record_query_id
from sluice.ledger.ledger_table import SCHEMA
from sluice.ledger.next_generation import open_next_generation
from sluice.ledger.refreshes import (
    Refresh,
    RefreshObservation,
    RefreshState,
    abandon_refresh,
    begin_refresh,
    begin_swap,
    begin_taking_back,
    end_refresh,
    kept_shadows,
    newest_refresh,
    record_swap,
    record_taken_back,
    unsettled_refresh,
)
from sluice.ledger.run_leases import renew
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import admit_run, newest_runs
from sluice.sources.source_identities import output_table_name, topic_name

ROOT = "file:///checkpoints"
PREVIOUS = {"generation": 1, "batch": 4, "end_offsets_digest": "d"}


def event(action: EventAction) -> Event:
    """A command of a person."""
    return Event(name="flights", actor=Actor.person("ann"), action=action, reason="requested")


def begin(ledger: Ledger, *, keeps: timedelta = timedelta(days=7)) -> RefreshObservation:
    """A refresh whose shadow has read two batches."""
    refresh = begin_refresh(
        ledger, "flights", digest="d", leaves=1, keeps=keeps, asked_by="ann", event=event(EventAction.REFRESH)
    )
    current_generation(ledger, refresh.shadow, checkpoints_root=ROOT)
    record_query_id(ledger, refresh.shadow, 1, "query of the shadow")
    for number in range(2):
        record_batch(ledger, a_batch(refresh.shadow, number, rows=100))
    return refresh


def a_batch(stream: str, number: int, *, rows: int) -> BatchObservation:
    """A batch that ends at an offset of its own."""
    return BatchObservation(
        key=PublicationKey(stream=stream, generation=1, batch=number),
        run_id="a-run",
        started_at=datetime.now(UTC),
        duration_ms=1,
        input_rows=rows,
        published_rows={"main": rows},
        end_offsets={"in": f"{stream} {number}"},
    )


@pytest.fixture
def running(ledger: Ledger) -> Ledger:
    """A ledger with a stream whose newest batch is 4 of generation 1."""
    current_generation(ledger, "flights", checkpoints_root=ROOT)
    record_query_id(ledger, "flights", 1, "query")
    record_batch(ledger, a_batch("flights", 4, rows=10))
    return ledger


def test_a_stream_goes_on_in_the_generation_of_the_shadow_and_back(running: Ledger) -> None:
    refresh = begin(running)
    assert unsettled_refresh(running, "flights") is None
    opening = begin_swap(running, refresh.number, previous=PREVIOUS)
    assert unsettled_refresh(running, "flights") == opening

    swapped = record_swap(running, refresh.number, batch=1, snapshot_ids={"main": 77}, rows=150)

    assert (swapped.state, swapped.opens, swapped.rows, swapped.snapshot_id) == (RefreshState.SWAPPED, 2, 150, 77)
    generation, batch = find_generation(running, "flights"), newest_batch(running, "flights")
    assert generation is not None
    assert batch is not None
    assert (generation.generation, generation.query_id) == (2, "query of the shadow")
    assert generation.checkpoint == f"{ROOT}/{refresh.shadow}/1"
    assert str(batch.key) == "flights:2:1"
    assert (batch.input_rows, batch.published_rows, batch.snapshot_ids) == (200, {"main": 200}, {"main": 77})
    assert batch.end_offsets == {"in": f"{refresh.shadow} 1"}
    assert record_swap(running, refresh.number, batch=9, snapshot_ids={"main": 1}, rows=1) == swapped
    assert kept_shadows(running) == {refresh.shadow}

    back = begin_taking_back(running, refresh.number, event=event(EventAction.TAKE_BACK))
    assert begin_taking_back(running, refresh.number, event=event(EventAction.TAKE_BACK)) == back
    taken = record_taken_back(running, refresh.number, batch=4, snapshot_ids={"main": 78})

    assert (taken.state, taken.opens) == (RefreshState.TAKEN_BACK, 3)
    generation, batch = find_generation(running, "flights"), newest_batch(running, "flights")
    assert generation is not None
    assert batch is not None
    assert (generation.generation, generation.checkpoint, generation.query_id) == (3, f"{ROOT}/flights/1", "query")
    assert (str(batch.key), batch.end_offsets) == ("flights:3:4", {"in": "flights 4"})
    assert totals(running, "flights").published_rows == {"main": 210}, "the earlier rows are counted once"
    assert kept_shadows(running) == frozenset()


def test_a_stream_keeps_the_ids_of_its_own_tables(running: Ledger) -> None:
    own, other = output_table_name("a.b"), output_table_name("refresh_staging.flights")
    topic = topic_name("kafka", "t")
    record_identities(running, "flights", 1, {topic: "old", own: "1"}, replacing=True)
    refresh = begin(running)
    record_identities(running, refresh.shadow, 1, {topic: "new", other: "2"}, replacing=True)
    begin_swap(running, refresh.number, previous=PREVIOUS)

    record_swap(running, refresh.number, batch=1, snapshot_ids={"main": 77}, rows=150)

    assert _identities(running) == {topic: "new", own: "1"}
    begin_taking_back(running, refresh.number, event=event(EventAction.TAKE_BACK))
    record_taken_back(running, refresh.number, batch=4, snapshot_ids={"main": 78})
    assert _identities(running) == {topic: "old", own: "1"}


def _identities(ledger: Ledger) -> Mapping[str, str]:
    generation = find_generation(ledger, "flights")
    assert generation is not None
    return generation.identities


def test_a_stream_has_one_open_refresh(running: Ledger) -> None:
    first = begin(running)
    with pytest.raises(UsageError, match=f"Refresh {first.number} of flights is building: it is to be ended first"):
        begin(running)
    abandon_refresh(running, first.number, event=event(EventAction.ABANDON_REFRESH))
    end_refresh(running, first.number)
    assert begin(running).number > first.number


def test_a_refresh_of_a_restored_ledger_has_no_name_of_the_one_with_its_number(running: Ledger) -> None:
    first = begin(running)
    with running.transaction() as connection:  # as a copy from before the refresh
        connection.execute(delete(Refresh))
        connection.execute(text(f"ALTER TABLE {SCHEMA}.refreshes ALTER COLUMN number RESTART WITH {first.number}"))

    second = begin(running)

    assert second.number == first.number
    assert (second.shadow == first.shadow, second.tag == first.tag, second.label == first.label) == (False,) * 3
    checkpoints = [current_generation(running, one.shadow, checkpoints_root=ROOT).checkpoint for one in (first, second)]
    assert checkpoints[0] != checkpoints[1]


def test_a_refresh_that_was_given_up_is_not_swapped(running: Ledger) -> None:
    refresh = begin(running)
    abandon_refresh(running, refresh.number, event=event(EventAction.ABANDON_REFRESH))
    with pytest.raises(UsageError, match="is abandoned; this is for one that is building or swapping"):
        begin_swap(running, refresh.number, previous=PREVIOUS)


def test_a_swap_is_not_begun_when_another_generation_was_opened(running: Ledger) -> None:
    refresh = begin(running)
    set_desired_state(running, "flights", DesiredState.STOPPED)
    open_next_generation(running, "flights", leaving=1, checkpoints_root=ROOT, opened_by="ann")
    with pytest.raises(UsageError, match="flights is at generation 2"):
        begin_swap(running, refresh.number, previous=PREVIOUS)


def test_no_generation_is_opened_beside_a_swap(running: Ledger) -> None:
    refresh = begin(running)
    begin_swap(running, refresh.number, previous=PREVIOUS)
    set_desired_state(running, "flights", DesiredState.STOPPED)
    with pytest.raises(UsageError, match=f"Refresh {refresh.number} of flights is swapping"):
        open_next_generation(running, "flights", leaving=1, checkpoints_root=ROOT, opened_by="ann")


def test_the_pins_of_a_refresh_are_kept_as_long_as_it_can_be_taken_back(running: Ledger) -> None:
    refresh = begin(running, keeps=timedelta(0))
    assert kept_shadows(running) == {refresh.shadow}
    begin_swap(running, refresh.number, previous=PREVIOUS)
    record_swap(running, refresh.number, batch=1, snapshot_ids={"main": 77}, rows=1)
    assert kept_shadows(running) == frozenset()


def test_runs_of_shadows_are_not_taken_for_undeclared_streams(running: Ledger) -> None:
    refresh = begin(running)
    for stream in ("flights", refresh.shadow):
        admit_run(running, stream=stream, mode="incremental", declaration_digest="d", launched_by="a test")
    assert [run.stream for run in newest_runs(running)] == ["flights"]
    assert newest_refresh(running, "flights") == refresh


def test_a_heartbeat_and_a_swap_do_not_wait_for_each_other(running: Ledger) -> None:
    refresh = begin(running)
    begin_swap(running, refresh.number, previous=PREVIOUS)
    admit_run(running, stream="flights", mode="incremental", declaration_digest="d", launched_by="a test")
    (run,) = newest_runs(running)
    with ThreadPoolExecutor(max_workers=1) as pool:
        with running.transaction() as connection:  # the steps of a heartbeat: its run, then its lease
            connection.execute(text("SELECT FROM sluice.runs WHERE run_id = :run FOR UPDATE"), {"run": run.run_id})
            swapped = pool.submit(record_swap, running, refresh.number, batch=1, snapshot_ids={"main": 77}, rows=150)
            await_condition(lambda: _waits_for_lock(running))
            assert renew(connection, run_id=run.run_id)
        assert swapped.result(timeout=60).state is RefreshState.SWAPPED


def _waits_for_lock(ledger: Ledger) -> bool:
    with ledger.transaction() as connection:
        return bool(connection.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one())
