"""Runs in a real PostgreSQL: one live run for each stream, one process for each run, and the first word stays."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path

import pytest
from sqlalchemy import text

from sluice.errors import LedgerError, RunAlreadyLiveError
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.desired_states import find_desired_state, set_desired_state
from sluice.ledger.generations import current_generation
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import (
    admit_run,
    beat,
    find_run,
    newest_run,
    newest_runs,
    recent_runs,
    record_end,
    record_process,
)
from sluice.processes.process_identity import ProcessIdentity

PROCESS = ProcessIdentity(host="a-host", pid=4711, started_at_seconds=1_795_192_466.04)
LOG = Path("/var/log/sluice/flights/run.log")


def admit(ledger: Ledger, stream: str = "flights") -> RunObservation:
    """A new run."""
    return admit_run(ledger, stream=stream, mode="continuous", declaration_digest="d", launched_by="a test")


def end(ledger: Ledger, run: RunObservation) -> RunObservation:
    """The run, ended."""
    return record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="broker gone")


def test_a_run_is_admitted_with_the_databases_time(ledger: Ledger) -> None:
    before = database_time(ledger)
    run = admit(ledger)
    assert before <= run.launched_at <= database_time(ledger)
    assert run.launched_at.utcoffset() == timedelta(0)
    assert (run.state, run.desired_state, run.generation) == (RunState.LAUNCHING, DesiredState.RUNNING, 1)
    assert find_run(ledger, run.run_id) == newest_run(ledger, "flights") == run


def test_a_second_run_is_refused_and_the_refusal_holds_the_live_one(ledger: Ledger) -> None:
    live = admit(ledger)
    with pytest.raises(RunAlreadyLiveError, match=f"Stream flights has a live run: {live.run_id}") as refusal:
        admit(ledger)
    assert refusal.value.run_id == live.run_id
    assert admit(ledger, "weather").stream == "weather"
    end(ledger, live)
    assert admit(ledger).run_id != live.run_id


def admit_at_once(ledger_url: str, *, contenders: int) -> list[RunObservation | RunAlreadyLiveError]:
    """What each of so many connections got that ask for a run of one stream at the same time."""

    def contend(_: int) -> RunObservation | RunAlreadyLiveError:
        with open_ledger(ledger_url) as own:
            try:
                return admit(own)
            except RunAlreadyLiveError as refusal:
                return refusal

    with ThreadPoolExecutor(max_workers=contenders) as pool:
        return list(pool.map(contend, range(contenders)))


def test_of_twenty_at_once_exactly_one_is_admitted(ledger: Ledger, ledger_url: str) -> None:
    answers = admit_at_once(ledger_url, contenders=20)
    admitted = [answer for answer in answers if isinstance(answer, RunObservation)]
    refused = [answer for answer in answers if isinstance(answer, RunAlreadyLiveError)]
    assert (len(admitted), len(refused)) == (1, 19)
    assert {refusal.run_id for refusal in refused} == {admitted[0].run_id}
    assert recent_runs(ledger, "flights", limit=30) == tuple(admitted)


def test_it_is_the_index_that_decides(ledger: Ledger) -> None:
    """Even a writer that does not ask politely cannot make a second live run."""
    live = admit(ledger)
    copy = (
        "INSERT INTO sluice.runs "
        "(run_id, stream, token, generation, mode, state, desired_state, declaration_digest, launched_by) "
        "SELECT 'another', stream, token, generation, mode, state, desired_state, declaration_digest, launched_by "
        "FROM sluice.runs WHERE run_id = :run_id"
    )
    with pytest.raises(Exception, match="one_live_run_per_stream"), ledger.transaction() as connection:
        connection.execute(text(copy), {"run_id": live.run_id})


def test_a_run_is_bound_to_one_process(ledger: Ledger) -> None:
    run = admit(ledger)
    bound = record_process(ledger, run.run_id, PROCESS, LOG)
    assert (bound.process, bound.log_file) == (PROCESS, LOG)
    assert record_process(ledger, run.run_id, PROCESS, LOG) == bound
    another = ProcessIdentity(host="a-host", pid=4712, started_at_seconds=1.0)
    with pytest.raises(LedgerError, match="has a process already"):
        record_process(ledger, run.run_id, another, LOG)
    end(ledger, run)
    with pytest.raises(LedgerError, match="has ended"):
        record_process(ledger, run.run_id, PROCESS, LOG)


def test_a_heartbeat_makes_a_run_running_and_reads_the_desired_state(ledger: Ledger) -> None:
    run = admit(ledger)
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING
    seen = find_run(ledger, run.run_id)
    assert seen.state is RunState.RUNNING
    assert seen.heartbeat_at is not None
    assert seen.heartbeat_at >= run.launched_at
    set_desired_state(ledger, "weather", DesiredState.STOPPED)
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING
    set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="ann")
    assert beat(ledger, run.run_id).desired_state is DesiredState.STOPPED


def test_the_driver_of_an_ended_run_is_asked_to_end(ledger: Ledger) -> None:
    run = admit(ledger)
    ended = end(ledger, run)
    assert beat(ledger, run.run_id).desired_state is DesiredState.STOPPED
    assert find_run(ledger, run.run_id) == ended


def test_the_first_end_stays_and_a_missing_exit_code_is_filled_in(ledger: Ledger) -> None:
    run = admit(ledger)
    first = record_end(ledger, run.run_id, state=RunState.FINISHED, exit_code=None, reason="stopped as requested")
    again = record_end(ledger, run.run_id, state=RunState.LOST, exit_code=0, reason="vanished")
    assert (again.state, again.reason, again.ended_at) == (RunState.FINISHED, "stopped as requested", first.ended_at)
    assert (first.exit_code, again.exit_code) == (None, 0)


def test_a_run_does_not_end_alive(ledger: Ledger) -> None:
    run = admit(ledger)
    with pytest.raises(LedgerError, match="does not end as running"):
        record_end(ledger, run.run_id, state=RunState.RUNNING, exit_code=None, reason="")


def test_an_unknown_run_is_an_error(ledger: Ledger) -> None:
    for ask in (
        lambda: find_run(ledger, "nobody"),
        lambda: beat(ledger, "nobody"),
        lambda: record_end(ledger, "nobody", state=RunState.LOST, exit_code=None, reason=""),
        lambda: record_process(ledger, "nobody", PROCESS, LOG),
    ):
        with pytest.raises(LedgerError, match="has no run nobody"):
            ask()


def test_the_newest_runs_come_first(ledger: Ledger) -> None:
    first, second = end(ledger, admit(ledger)), end(ledger, admit(ledger))
    weather = admit(ledger, "weather")
    assert recent_runs(ledger, "flights", limit=5) == (second, first)
    assert recent_runs(ledger, "flights", limit=1) == (second,)
    assert newest_runs(ledger) == (second, weather)
    assert newest_run(ledger, "nothing") is None


def test_a_request_outlives_runs_and_meets_the_next_one_at_its_admission(ledger: Ledger) -> None:
    assert find_desired_state(ledger, "flights").requested_at is None
    assert find_desired_state(ledger, "flights").desired_state is DesiredState.RUNNING
    asked = set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="ann")
    assert find_desired_state(ledger, "flights") == asked
    assert admit(ledger).desired_state is DesiredState.STOPPED
    renewed = set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="bob")
    assert asked.requested_at is not None
    assert renewed.requested_at is not None
    assert renewed.requested_at > asked.requested_at
    run = newest_run(ledger, "flights")
    assert run is not None
    assert run.desired_state is DesiredState.RUNNING


def test_a_request_does_not_change_the_desired_state_of_an_ended_run(ledger: Ledger) -> None:
    run = end(ledger, admit(ledger))
    set_desired_state(ledger, "flights", DesiredState.STOPPED)
    assert find_run(ledger, run.run_id).desired_state is DesiredState.RUNNING


def test_a_run_belongs_to_the_newest_generation(ledger: Ledger) -> None:
    current_generation(ledger, "flights", checkpoints_root="file:///checkpoints")
    with ledger.transaction() as connection:
        connection.execute(
            text("INSERT INTO sluice.generations (stream, generation, checkpoint) VALUES ('flights', 2, 'file:///2')")
        )
    assert admit(ledger).generation == 2


def test_an_end_is_recorded_whatever_its_reason_quotes(ledger: Ledger) -> None:
    """PostgreSQL refuses a NUL, and the run of a failed driver would have gone on for ever."""
    run = admit(ledger)
    record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="two rows have the key \0\ud83d")
    assert newest_run(ledger, "flights") == find_run(ledger, run.run_id)
    ended = find_run(ledger, run.run_id)
    assert (ended.state, ended.reason) == (RunState.FAILED, "two rows have the key \\x00\\ud83d")


def test_a_run_knows_the_version_of_the_program_that_started_it(ledger: Ledger) -> None:
    """A driver keeps its code for weeks: after an upgrade its run shows that it still has the old one."""
    run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
    assert run.version == version("sluice")
