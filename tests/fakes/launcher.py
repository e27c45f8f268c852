"""A launcher whose drivers exist in memory only. It keeps what `tests/contracts/test_launcher.py` asks of each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import count

from sluice.errors import LaunchError, LedgerError
from sluice.launching.launcher_port import LaunchRequest
from sluice.ledger.applications import bind_application, end_application
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import DriverExit, RunState
from sluice.ledger.runs import record_end, record_process
from sluice.processes.process_identity import ProcessIdentity, ProcessState

HOST = "fake-host"


@dataclass(slots=True)
class FakeLauncher:
    """Starts nothing, and remembers what it was asked for.

    refusal: when set, every launch fails with this sentence.
    ignores_requests: whether drivers end only when they are killed.
    """

    ledger: Ledger
    refusal: str = ""
    ignores_requests: bool = False
    requests: list[LaunchRequest] = field(default_factory=list)
    exits: dict[ProcessIdentity, DriverExit] = field(default_factory=dict)
    kills: list[ProcessIdentity] = field(default_factory=list)
    _states: dict[ProcessIdentity, ProcessState] = field(default_factory=dict)
    _launched: dict[ProcessIdentity, LaunchRequest] = field(default_factory=dict)
    _pids: count[int] = field(default_factory=lambda: count(1000))

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Bind the run to a new process that does not exist."""
        self.requests.append(request)
        if self.refusal:
            raise LaunchError(self.refusal)
        process = ProcessIdentity(host=HOST, pid=next(self._pids), started_at_seconds=1_700_000_000.0)
        try:
            if request.is_application:
                bind_application(self.ledger, request.run_id, process, log_file=str(request.log_file))
            else:
                record_process(self.ledger, request.run_id, process, request.log_file)
        except LedgerError as error:
            raise LaunchError(str(error)) from error
        self._states[process] = ProcessState.ALIVE
        self._launched[process] = request
        return process

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """What the test made of the process."""
        if process.host != HOST:
            return ProcessState.UNKNOWN
        return self._states.get(process, ProcessState.GONE)

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """What a test has said of it."""
        return self.exits.get(process)

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """End the process, killing it when it ignores the request."""
        del grace_seconds  # nothing here takes time
        state = self.observe(process)
        if state is ProcessState.ALIVE:
            if self.ignores_requests:
                self.kills.append(process)
            self.end(process, exit_code=-9 if self.ignores_requests else -15)
            return ProcessState.GONE
        return state

    def end(self, process: ProcessIdentity, *, exit_code: int) -> None:
        """Let a driver end, as its parent sees it."""
        self.disappear(process)
        state = RunState.FINISHED if exit_code == 0 else RunState.FAILED
        reason = "finished" if exit_code == 0 else f"exit code {exit_code}"
        request = self._launched[process]
        if request.is_application:
            end_application(self.ledger, request.run_id, reason=reason)
        else:
            record_end(self.ledger, request.run_id, state=state, exit_code=exit_code, reason=reason)

    def disappear(self, process: ProcessIdentity) -> None:
        """Let a driver disappear together with its attendant, so that its end is not recorded."""
        self._states[process] = ProcessState.GONE

    def hide(self, process: ProcessIdentity) -> None:
        """Make the state of a driver unknown."""
        self._states[process] = ProcessState.UNKNOWN


def reborn(process: ProcessIdentity) -> ProcessIdentity:
    """Another process that was given the same id later."""
    ticks = None if process.start_ticks is None else process.start_ticks + 100_000
    return replace(process, started_at_seconds=process.started_at_seconds + 1000, start_ticks=ticks)
