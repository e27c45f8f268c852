"""A real ledger that is replaced by an older copy of itself: runs that the copy does not know, and tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.engine import URL
from tests.fixtures.drivers import await_condition
from tests.fixtures.ledger_copies import ReplaceableLedger, replaceable_ledger
from tests.fixtures.ledger_rows import find_lease

from sluice.errors import LeaseLostError, UnknownRunError
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import admit_run, beat, find_run, record_end
from sluice.publication.repair import raise_token
from sluice.supervision.held_lease import HeldLease
from sluice_spark.run import run_threads
from sluice_spark.run.run_threads import Heartbeat
from sluice_spark.run.stop_request import StopReason, StopRequest


@pytest.fixture
def replaceable(postgres_url: URL) -> Iterator[ReplaceableLedger]:
    """A ledger of the test's own."""
    with replaceable_ledger(postgres_url.render_as_string(hide_password=False)) as ledger:
        yield ledger


@pytest.fixture
def ledger(replaceable: ReplaceableLedger) -> Iterator[Ledger]:
    """It, open: the pool replaces the connections that a failover cuts."""
    with open_ledger(replaceable.url) as opened:
        yield opened


def admit(ledger: Ledger) -> RunObservation:
    """A new run."""
    return admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")


def end(ledger: Ledger, run: RunObservation) -> None:
    """Let a run end."""
    record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="broker gone")


def is_published_by(lease: HeldLease) -> bool:
    """Whether a run with this lease may publish now."""
    try:
        lease.require()
    except LeaseLostError:
        return False
    return True


def test_a_run_that_the_ledger_does_not_know_stops_at_once_and_publishes_nothing(
    replaceable: ReplaceableLedger, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_threads, "BEAT_SECONDS", 0.2)
    before = replaceable.copy()
    run = admit(ledger)
    lease, stop = HeldLease(stream=run.stream, token=run.token), StopRequest()
    with Heartbeat(ledger, run.run_id, stop, lease=lease):
        await_condition(lambda: is_published_by(lease))
        replaceable.fail_over(before)
        assert stop.wait(60), "within the grace of a ledger that does not answer"
    assert stop.reason is StopReason.LEASE_LOST
    with pytest.raises(LeaseLostError, match="the ledger does not know this run"):
        lease.require()


def test_a_failure_after_the_lease_was_lost_is_that_loss(
    replaceable: ReplaceableLedger, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a driver that stood still, whose staged files its successor has removed."""
    monkeypatch.setattr(run_threads, "BEAT_SECONDS", 3600.0)
    before = replaceable.copy()
    run = admit(ledger)
    lease = HeldLease(stream=run.stream, token=run.token)
    with Heartbeat(ledger, run.run_id, StopRequest(), lease=lease) as beating:
        await_condition(lambda: is_published_by(lease))
        with pytest.raises(OSError, match="file is gone"), beating.naming_a_lost_lease():
            raise OSError("file is gone")
        replaceable.fail_over(before)
        with pytest.raises(LeaseLostError, match="does not know this run"), beating.naming_a_lost_lease():
            raise OSError("file is gone")


def test_a_run_that_the_copy_knows_goes_on(
    replaceable: ReplaceableLedger, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_threads, "BEAT_SECONDS", 0.2)
    run = admit(ledger)
    lease, stop = HeldLease(stream=run.stream, token=run.token), StopRequest()
    with Heartbeat(ledger, run.run_id, stop, lease=lease):
        await_condition(lambda: is_published_by(lease))
        copied_at = find_run(ledger, run.run_id).heartbeat_at
        replaceable.fail_over(replaceable.copy())
        await_condition(lambda: find_run(ledger, run.run_id).heartbeat_at != copied_at)
    assert stop.reason is None
    assert is_published_by(lease)


def test_a_token_is_not_given_twice_by_an_older_copy(replaceable: ReplaceableLedger, ledger: Ledger) -> None:
    end(ledger, admit(ledger))
    before = replaceable.copy()
    forgotten = admit(ledger)
    replaceable.fail_over(before)
    with pytest.raises(UnknownRunError):
        beat(ledger, forgotten.run_id)
    assert admit(ledger).token > forgotten.token


def test_a_token_is_raised_above_one_that_the_tables_have_seen(ledger: Ledger) -> None:
    """As after a failover to a host whose clock is behind."""
    run = admit(ledger)
    seen = run.token + 3_600_000

    raised = raise_token(ledger, run.run_id, above=seen)

    lease = find_lease(ledger, run.stream)
    assert lease is not None
    assert raised.token == lease.token == find_run(ledger, run.run_id).token == seen + 1
    end(ledger, run)
    with pytest.raises(LeaseLostError, match="does not hold its lease"):
        raise_token(ledger, run.run_id, above=seen + 10)
    assert admit(ledger).token == seen + 2
