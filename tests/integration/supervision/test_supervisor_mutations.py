"""Each guard of the supervision, taken out: the same test that it passes must then see a second driver, or a stream
that is stopped, kept or adopted wrongly.

That an `on_kill` believes nothing but the task's state stands in `tests/orchestration/test_triggers.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Literal

import pytest
from sqlalchemy import text
from tests.fakes.launcher import FakeLauncher, reborn
from tests.fixtures.ledger_rows import find_lease
from tests.fixtures.streams import continuous_stream
from tests.fixtures.tampered_ledger import without_condition

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LedgerError
from sluice.ledger import run_leases
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import admit_run, beat, find_run, record_end, record_process, take_over
from sluice.ledger.stream_records import StreamRecords
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.supervision import supervisor as supervisor_module
from sluice.supervision.supervisor import Supervisor, read_to_judge, supervise

Guard = Literal["guarded", "unguarded"]
BOTH = pytest.mark.parametrize("guard", ["guarded", "unguarded"])
IS_LIVE = r"sluice\.runs\.state IN \((?:[^()]|\([^)]*\))*\)"
WANTED = continuous_stream(restart={"first_delay": "1 millisecond"})
PROCESS = ProcessIdentity(host="a-host", pid=1000, started_at_seconds=1_700_000_000.0)


@dataclass(slots=True)
class PresumptuousLauncher(FakeLauncher):
    """Takes a driver of which nobody can tell for a dead one."""

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """What nobody can tell is told as gone."""
        seen = FakeLauncher.observe(self, process)
        return ProcessState.GONE if seen is ProcessState.UNKNOWN else seen


def started(supervisor: Supervisor) -> RunObservation:
    """A run whose driver was heard."""
    run = supervise(supervisor, WANTED).run
    assert run is not None
    beat(supervisor.ledger, run.run_id)
    return find_run(supervisor.ledger, run.run_id)


def admitted(ledger: Ledger) -> RunObservation:
    """A run that nobody has launched."""
    return admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")


def change(ledger: Ledger, statement: str) -> None:
    """Tamper with what the ledger holds."""
    with ledger.transaction() as connection:
        connection.execute(text(statement))


def let_lease_run_out(ledger: Ledger) -> None:
    """Let the lease's time pass."""
    change(ledger, "UPDATE sluice.leases SET expires_at = now() - interval '1 second'")


def is_held(ledger: Ledger) -> bool:
    """Whether anybody holds the lease."""
    lease = find_lease(ledger, "flights")
    return lease is not None and lease.is_held(at=database_time(ledger))


@contextmanager
def taken_out(guard: Guard, ledger: Ledger, table: str, condition: str) -> Iterator[None]:
    """The ledger as it is, or without a condition."""
    with nullcontext() if guard == "guarded" else without_condition(ledger, table, condition):
        yield


@contextmanager
def refused(guard: Guard, match: str) -> Iterator[None]:
    """With the guard the block is refused by name; without it nobody notices."""
    with nullcontext() if guard == "unguarded" else pytest.raises(LedgerError, match=match):
        yield


@BOTH
def test_without_the_lease_a_second_driver_is_launched_beside_one_that_is_not_counted_on(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger, guard: Guard
) -> None:
    first = started(supervisor)
    change(ledger, "UPDATE sluice.runs SET state = 'lost', ended_at = now() - interval '1 hour'")
    has_run_out = r"sluice\.leases\.expires_at IS NULL OR sluice\.leases\.expires_at <= now\(\)"
    with taken_out(guard, ledger, "leases", has_run_out), refused(guard, "another run holds it"):
        supervise(supervisor, WANTED)
    assert first.process is not None
    assert launcher.observe(first.process) is ProcessState.ALIVE
    assert len(launcher.requests) == (1 if guard == "guarded" else 2)


@BOTH
def test_without_the_databases_clock_a_driver_that_is_heard_loses_its_place(ledger: Ledger, guard: Guard) -> None:
    run = admitted(ledger)
    with taken_out(guard, ledger, "leases", r"sluice\.leases\.expires_at <= now\(\)"):
        seen = take_over(ledger, run.run_id, reason="in a hurry")
    assert seen.is_live is (guard == "guarded")
    assert beat(ledger, run.run_id).holds_lease is (guard == "guarded")


@BOTH
def test_without_its_holder_a_lease_is_renewed_by_one_that_lost_it(ledger: Ledger, guard: Guard) -> None:
    silent = admitted(ledger)
    let_lease_run_out(ledger)
    take_over(ledger, silent.run_id, reason="its driver fell silent")
    successor = admitted(ledger)
    let_lease_run_out(ledger)
    with taken_out(guard, ledger, "leases", r"sluice\.leases\.run_id = %\(run_id_1\)s::VARCHAR"):
        with ledger.transaction() as connection:
            renewed = run_leases.renew(connection, run_id=silent.run_id)
        assert not beat(ledger, silent.run_id).holds_lease, "the run's own state stands behind it"
    assert renewed is is_held(ledger) is (guard == "unguarded")
    lost = take_over(ledger, successor.run_id, reason="its driver fell silent")
    assert lost.is_live is (guard == "unguarded"), "a dead driver keeps its place"


@BOTH
def test_without_its_state_an_ended_run_that_beats_comes_back_to_life(ledger: Ledger, guard: Guard) -> None:
    run = admitted(ledger)
    record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="broker gone")
    with taken_out(guard, ledger, "runs", IS_LIVE):
        answer = beat(ledger, run.run_id)
    assert (answer.desired_state, answer.holds_lease) == (DesiredState.STOPPED, False)
    assert find_run(ledger, run.run_id).is_live is (guard == "unguarded")


@BOTH
def test_without_the_one_process_of_a_run_a_second_driver_is_bound_to_it(ledger: Ledger, guard: Guard) -> None:
    """As after a crash between launch and "recorded": somebody launches the same run once more."""
    run = admitted(ledger)
    record_process(ledger, run.run_id, PROCESS, None)
    second = reborn(PROCESS)
    with (
        taken_out(guard, ledger, "runs", r"sluice\.runs\.process_pid IS NULL"),
        refused(guard, "has a process already"),
    ):
        record_process(ledger, run.run_id, second, None)
    assert find_run(ledger, run.run_id).process == (PROCESS if guard == "guarded" else second)


def without_its_run(ledger: Ledger, declared: Iterable[LoadedStream]) -> Mapping[str, StreamRecords]:
    """The records of streams without their newest runs."""
    return {name: replace(known, runs=()) for name, known in read_to_judge(ledger, declared).items()}


@BOTH
def test_without_the_look_for_a_live_run_none_is_adopted(
    supervisor: Supervisor, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch, guard: Guard
) -> None:
    run = started(supervisor)
    if guard == "guarded":
        assert supervise(supervisor, WANTED).run == run
    else:
        monkeypatch.setattr(supervisor_module, "read_to_judge", without_its_run)
        with pytest.raises(LedgerError, match="without coming to rest"):
            supervise(supervisor, WANTED)
    assert len(launcher.requests) == 1, "the ledger's one live run of a stream stands behind it"


@BOTH
def test_a_driver_that_is_taken_for_dead_because_its_state_is_unknown_gets_a_second_beside_it(
    supervisor: Supervisor, ledger: Ledger, guard: Guard
) -> None:
    launcher = FakeLauncher(ledger) if guard == "guarded" else PresumptuousLauncher(ledger)
    supervisor = replace(supervisor, launcher=launcher)
    run = started(supervisor)
    assert run.process is not None
    launcher.hide(run.process)
    left = supervise(supervisor, WANTED)
    assert left.run is not None
    assert (left.run.run_id == run.run_id) is (guard == "guarded")
    assert len(launcher.requests) == (1 if guard == "guarded" else 2)
