"""Leases in a real PostgreSQL: one holder, a token that only rises, and the database's clock decides."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from sqlalchemy import text
from tests.fixtures.ledger_rows import find_lease

from sluice.errors import LedgerError, RunAlreadyLiveError
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.run_leases import LEASE_SECONDS, LeaseObservation, renew
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import admit_run, beat, find_run, recent_runs, record_end, take_over


def admit(ledger: Ledger, stream: str = "flights") -> RunObservation:
    """A new run."""
    return admit_run(ledger, stream=stream, mode="continuous", declaration_digest="d", launched_by="a test")


def end(ledger: Ledger, run: RunObservation) -> None:
    """Let a run end."""
    record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="broker gone")


def lease_of(ledger: Ledger, stream: str = "flights") -> LeaseObservation:
    """The lease of a stream that has run."""
    lease = find_lease(ledger, stream)
    assert lease is not None
    return lease


def let_run_out(ledger: Ledger, stream: str = "flights") -> None:
    """Let the lease's time pass."""
    with ledger.transaction() as connection:
        connection.execute(
            text("UPDATE sluice.leases SET expires_at = now() - interval '1 second' WHERE stream = :stream"),
            {"stream": stream},
        )


def test_an_admitted_run_holds_the_lease_by_the_databases_clock(ledger: Ledger) -> None:
    assert find_lease(ledger, "flights") is None
    run = admit(ledger)
    lease = lease_of(ledger)
    assert (lease.token, lease.run_id) == (run.token, run.run_id)
    assert lease.expires_at == run.launched_at + timedelta(seconds=LEASE_SECONDS)
    assert lease.is_held(at=database_time(ledger))


def test_the_token_rises_with_every_run_and_outlives_them_all(ledger: Ledger) -> None:
    tokens = []
    for _ in range(3):
        run = admit(ledger)
        tokens.append(run.token)
        with pytest.raises(RunAlreadyLiveError):
            admit(ledger)
        end(ledger, run)
    assert tokens == sorted(set(tokens))
    assert [run.token for run in recent_runs(ledger, "flights", limit=9)] == tokens[::-1]
    with ledger.transaction() as connection:
        connection.execute(text("DELETE FROM sluice.runs"))
    assert admit(ledger).token > tokens[-1]


def test_a_token_is_the_time_of_the_admission(ledger: Ledger) -> None:
    """A ledger that was restored from an older copy has forgotten its newest tokens; the time is above them all."""
    for _ in range(2):
        run = admit(ledger)
        admitted_ms = run.launched_at.timestamp() * 1000
        assert int(admitted_ms) <= run.token < admitted_ms + 60_000
        end(ledger, run)


def test_the_token_rises_by_one_where_the_clock_was_set_back(ledger: Ledger) -> None:
    end(ledger, admit(ledger))
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.leases SET token = token + 3600000"))
    assert admit(ledger).token == lease_of(ledger).token
    end(ledger, recent_runs(ledger, "flights", limit=1)[0])
    seen = lease_of(ledger).token
    assert admit(ledger).token == seen + 1


def test_an_ended_run_holds_nothing_and_does_not_get_it_back(ledger: Ledger) -> None:
    run = admit(ledger)
    end(ledger, run)
    assert lease_of(ledger).expires_at is None
    answer = beat(ledger, run.run_id)
    assert (answer.desired_state, answer.holds_lease) == (DesiredState.STOPPED, False)
    assert lease_of(ledger).expires_at is None


def test_a_lease_that_was_released_is_not_renewed(ledger: Ledger) -> None:
    run = admit(ledger)
    end(ledger, run)
    with ledger.transaction() as connection:
        assert not renew(connection, run_id=run.run_id)
    assert lease_of(ledger).expires_at is None


def test_a_heartbeat_renews_the_lease_even_after_it_ran_out_while_it_was_not_taken(ledger: Ledger) -> None:
    run = admit(ledger)
    let_run_out(ledger)
    assert not lease_of(ledger).is_held(at=database_time(ledger))
    answer = beat(ledger, run.run_id)
    assert (answer.desired_state, answer.holds_lease) == (DesiredState.RUNNING, True)
    assert lease_of(ledger).is_held(at=database_time(ledger))
    assert lease_of(ledger).token == run.token


def test_a_lease_that_ran_out_is_taken_over_and_the_old_holder_is_notified(ledger: Ledger) -> None:
    silent = admit(ledger)
    let_run_out(ledger)
    lost = take_over(ledger, silent.run_id, reason="its driver fell silent")
    assert (lost.state, lost.reason) == (RunState.LOST, "its driver fell silent")
    successor = admit(ledger)
    assert successor.token > silent.token
    answer = beat(ledger, silent.run_id)
    assert (answer.desired_state, answer.holds_lease) == (DesiredState.STOPPED, False)
    record_end(ledger, silent.run_id, state=RunState.FAILED, exit_code=143, reason="killed at last")
    assert lease_of(ledger).run_id == successor.run_id
    assert lease_of(ledger).is_held(at=database_time(ledger)), "the end of the old run frees nothing of the new one"
    assert beat(ledger, successor.run_id).holds_lease


def test_a_lease_that_has_not_run_out_is_not_taken_over(ledger: Ledger) -> None:
    run = admit(ledger)
    assert take_over(ledger, run.run_id, reason="in a hurry").state is RunState.LAUNCHING
    assert beat(ledger, run.run_id).holds_lease


def test_a_heartbeat_and_a_take_over_at_once_leave_one_of_both(ledger: Ledger, ledger_url: str) -> None:
    for round_number in range(20):
        stream = f"flights_{round_number}"
        run = admit(ledger, stream)
        let_run_out(ledger, stream)
        with open_ledger(ledger_url) as one, open_ledger(ledger_url) as other, ThreadPoolExecutor(2) as pool:
            beating = pool.submit(beat, one, run.run_id)
            taking = pool.submit(take_over, other, run.run_id, reason="silent")
            assert beating.result().holds_lease is taking.result().is_live
        assert find_run(ledger, run.run_id).is_live is beating.result().holds_lease


def test_a_held_lease_refuses_a_run_even_when_the_holder_is_not_counted_on(ledger: Ledger) -> None:
    """The lease protects by itself: here the holder's row in `runs` was tampered with."""
    admit(ledger)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.runs SET state = 'lost'"))
    with pytest.raises(LedgerError, match="gets no lease: another run holds it"):
        admit(ledger)
    assert len(recent_runs(ledger, "flights", limit=9)) == 1
    let_run_out(ledger)
    assert admit(ledger).token == lease_of(ledger).token


def test_one_connection_admits_any_number_of_runs(ledger: Ledger) -> None:
    """A statement that is asked often is prepared on the server, where an index is not recognised by parameters."""
    runs = []
    for _ in range(15):
        runs.append(admit(ledger))
        end(ledger, runs[-1])
    assert lease_of(ledger).run_id == runs[-1].run_id
