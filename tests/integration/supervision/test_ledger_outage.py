"""A driver's heartbeat beside a real PostgreSQL that goes away, comes back, hangs, and stays away."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.fixtures.drill import first_of
from tests.fixtures.drivers import await_condition
from tests.fixtures.ledger import PostgresServer, administer, running_postgres
from tests.fixtures.ledger_rows import find_lease

from sluice.errors import LeaseLostError, LedgerUnreachableError
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.migrations import upgrade
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import admit_run, beat, find_run, record_end
from sluice.supervision.held_lease import HeldLease
from sluice_spark.run import run_threads
from sluice_spark.run.run_threads import Heartbeat
from sluice_spark.run.stop_request import StopReason, StopRequest

OUTAGE_GRACE_SECONDS, PUBLISH_DEADLINE_SECONDS = 6.0, 9.0
"""What takes minutes in life; in the same order."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server that nobody else uses."""
    with running_postgres(tmp_path_factory.mktemp("outage")) as running:
        administer(running.url, "CREATE DATABASE ledger")
        upgrade(_ledger_url(running))
        yield running


@pytest.fixture
def ledger(server: PostgresServer) -> Iterator[Ledger]:
    """The ledger in it."""
    with open_ledger(_ledger_url(server)) as opened:
        yield opened


@pytest.fixture
def run(ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunObservation:
    """A live run of a stream of the test's own."""
    monkeypatch.setattr(run_threads, "BEAT_SECONDS", 0.2)
    return admit_run(ledger, stream=tmp_path.name, mode="continuous", declaration_digest="d", launched_by="a test")


def _ledger_url(server: PostgresServer) -> str:
    return server.url.set(database="ledger").render_as_string(hide_password=False)


def _lease(run: RunObservation) -> HeldLease:
    return HeldLease(
        stream=run.stream,
        token=run.token,
        outage_grace_seconds=OUTAGE_GRACE_SECONDS,
        publish_deadline_seconds=PUBLISH_DEADLINE_SECONDS,
    )


def _may_publish(lease: HeldLease) -> bool:
    try:
        lease.require()
    except LeaseLostError:
        return False
    return True


def test_a_short_outage_stops_nothing_and_the_lease_is_renewed_afterwards(
    server: PostgresServer, ledger: Ledger, run: RunObservation
) -> None:
    lease, stop = _lease(run), StopRequest()
    with Heartbeat(ledger, run.run_id, stop, lease=lease):
        await_condition(lambda: _may_publish(lease))
        server.stop()
        assert not stop.wait(OUTAGE_GRACE_SECONDS / 2)
        assert _may_publish(lease)
        server.start()
        back_at = database_time(ledger)
        await_condition(lambda: (seen := find_lease(ledger, run.stream)) is not None and seen.renewed_at > back_at)
    assert stop.reason is None
    assert find_run(ledger, run.run_id).state is RunState.RUNNING


@pytest.mark.parametrize("fault", first_of("hanging", "stopped"))
def test_a_long_outage_stops_the_run_while_it_may_still_publish_and_then_no_more(
    server: PostgresServer, ledger: Ledger, run: RunObservation, fault: str
) -> None:
    lease, stop = _lease(run), StopRequest()
    with Heartbeat(ledger, run.run_id, stop, lease=lease):
        await_condition(lambda: _may_publish(lease))
        _break(server, fault)
        try:
            assert stop.wait(OUTAGE_GRACE_SECONDS * 10)
            assert stop.reason is StopReason.LEDGER_AWAY
            assert _may_publish(lease), "the batch that runs may end"
            await_condition(lambda: not _may_publish(lease))
        finally:
            _mend(server, fault)


def test_a_run_whose_lease_was_given_away_stops_at_once_and_publishes_nothing(
    ledger: Ledger, run: RunObservation
) -> None:
    lease, stop = _lease(run), StopRequest()
    with Heartbeat(ledger, run.run_id, stop, lease=lease):
        await_condition(lambda: _may_publish(lease))
        record_end(ledger, run.run_id, state=RunState.LOST, exit_code=None, reason="taken over")
        assert stop.wait(30)
    assert stop.reason is StopReason.LEASE_LOST
    assert not _may_publish(lease)


def _break(server: PostgresServer, fault: str) -> None:
    if fault == "stopped":
        server.stop()
    else:
        _signal_all(server, signal.SIGSTOP)


def _mend(server: PostgresServer, fault: str) -> None:
    if fault == "stopped":
        server.start()
    else:
        _signal_all(server, signal.SIGCONT)


def _signal_all(server: PostgresServer, number: int) -> None:
    top = psutil.Process(server.pid)
    for process in (top, *top.children(recursive=True)):
        os.kill(process.pid, number)


def test_a_ledger_that_takes_no_writes_while_it_fails_over_stops_nothing(
    server: PostgresServer, ledger: Ledger, run: RunObservation
) -> None:
    lease, stop = _lease(run), StopRequest()
    beating = Heartbeat(ledger, run.run_id, stop, lease=lease)
    with beating:
        await_condition(lambda: _may_publish(lease))
        _set_read_only(server, ledger, is_read_only=True)
        with pytest.raises(LedgerUnreachableError, match="takes no writes now"):
            beat(ledger, run.run_id)
        renewed = find_lease(ledger, run.stream)
        _set_read_only(server, ledger, is_read_only=False)
        await_condition(lambda: find_lease(ledger, run.stream) != renewed)
        assert (stop.reason, _may_publish(lease)) == (None, True)


def test_a_heartbeat_survives_whatever_one_of_them_raises(
    server: PostgresServer, ledger: Ledger, run: RunObservation, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, stop = _lease(run), StopRequest()
    left = [RuntimeError("a defect"), MemoryError()]

    def failing_beat(*arguments: object) -> object:
        if left:
            raise left.pop()
        return beat(ledger, run.run_id)

    monkeypatch.setattr(run_threads, "beat", failing_beat)
    with Heartbeat(ledger, run.run_id, stop, lease=lease):
        await_condition(lambda: _may_publish(lease))
    assert stop.reason is None


def _set_read_only(server: PostgresServer, ledger: Ledger, *, is_read_only: bool) -> None:
    """As a standby that clients still reach: every transaction of the database, on new connections."""
    administer(server.url, f"ALTER DATABASE ledger SET default_transaction_read_only = {str(is_read_only).lower()}")
    administer(server.url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'ledger'")
