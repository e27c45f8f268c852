"""Whose place an increment takes: nobody's that may live, and nobody's for ever."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
from sqlalchemy import text
from tests.fixtures.streams import continuous_stream
from tests.fixtures.successors import runs_since

from sluice.errors import RunAlreadyLiveError
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import admit_run, find_run, record_process
from sluice.processes.host_processes import identity_of
from sluice.processes.process_identity import ProcessIdentity
from sluice_spark.run.supervised_run import admit_increment

STREAM = continuous_stream(
    mode="incremental", trigger={"available_now": True}, schedule={"cron": "@hourly"}, supervision={}
)
HERE = identity_of(os.getpid())
GONE = replace(HERE, start_ticks=0)
ELSEWHERE = replace(HERE, host="another-host")


def live_run(ledger: Ledger, process: ProcessIdentity | None) -> RunObservation:
    """A run that is in the way."""
    run = admit_run(ledger, stream=STREAM.name, mode="incremental", declaration_digest="d", launched_by="before")
    return run if process is None else record_process(ledger, run.run_id, process, None)


def let_lease_run_out(ledger: Ledger) -> None:
    """Let the lease's time pass."""
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.leases SET expires_at = now() - interval '1 second'"))


@pytest.mark.parametrize("process", [None, HERE, ELSEWHERE], ids=["unbound", "alive", "elsewhere"])
def test_a_run_that_may_live_is_not_replaced(ledger: Ledger, process: ProcessIdentity | None) -> None:
    run = live_run(ledger, process)
    with pytest.raises(RunAlreadyLiveError):
        admit_increment(ledger, STREAM, launched_by="now")
    assert find_run(ledger, run.run_id).is_live


@pytest.mark.parametrize(
    ("process", "is_over"), [(GONE, False), (None, True), (ELSEWHERE, True)], ids=["gone", "unbound", "elsewhere"]
)
def test_a_run_without_a_driver_or_without_a_lease_gives_way(
    ledger: Ledger, process: ProcessIdentity | None, *, is_over: bool
) -> None:
    run = live_run(ledger, process)
    if is_over:
        let_lease_run_out(ledger)
    admitted = admit_increment(ledger, STREAM, launched_by="now")
    assert (runs_since(ledger, run), admitted.process) == (1, HERE)
    assert find_run(ledger, run.run_id).state is RunState.LOST


def test_a_driver_that_lives_here_keeps_its_place_whatever_its_lease(ledger: Ledger) -> None:
    live_run(ledger, HERE)
    let_lease_run_out(ledger)
    with pytest.raises(RunAlreadyLiveError):
        admit_increment(ledger, STREAM, launched_by="now")
