"""The records of a driver: its process in the ledger, how it ended, and the note beside its log.

The driver's attendant (`sluice.launching.attend`) writes them. It imports this module only in a short-lived child or
after the driver's end, because SQLAlchemy is too large for a process that lives as long as the driver.

The note is written before the exit is recorded in the ledger and removed afterwards, so an exit is never lost when the
ledger cannot be reached.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from sluice.errors import LedgerUnreachableError
from sluice.failure_reasons import Failure, FailureClass, FailureReason
from sluice.failures.classification import classify, failure_of_exit
from sluice.failures.error_chains import chain_in
from sluice.launching.job_output import FAILURE_MARK, REASON_MARK, last_after
from sluice.ledger.applications import bind_application, end_application
from sluice.ledger.connection import open_ledger
from sluice.ledger.run_values import DriverExit, RunState
from sluice.ledger.runs import record_end, record_process
from sluice.processes.driver_processes import identity_of
from sluice.processes.process_identity import ProcessIdentity

PROCESS_RECORDED_WITHIN_SECONDS = 30.0
"""How long an unreachable ledger is retried before a launch is given up; the driver has not started then."""

EXIT_RECORDED_WITHIN_SECONDS = 600.0
"""How long an unreachable ledger is retried to record an exit; afterwards only the note beside the log has it."""

_TAIL_BYTES = 65_536
"""Enough for the last line of a job below a long Java stack trace."""

_REASON_CHARACTERS = 1_000
_SIGNAL_OFFSET = 128
"""A shell and a JVM report a signal as 128 plus its number."""

_KILLED = "killed by SIGKILL"


def record_driver_process(
    *, ledger_url: str, run_id: str, pid: int, log_file: Path, is_application: bool = False
) -> ProcessIdentity:
    """Bind a run, or an application, to the process that waits to become its driver.

    Raises
    ------
    LedgerError: when the ledger refuses (the run has a process or has ended), or stays unreachable.
    """
    identity = identity_of(pid)
    with open_ledger(ledger_url) as ledger:
        for attempt in _while_unreachable(PROCESS_RECORDED_WITHIN_SECONDS):
            with attempt:
                if is_application:
                    bind_application(ledger, run_id, identity, log_file=str(log_file))
                else:
                    record_process(ledger, run_id, identity, log_file)
    return identity


def record_driver_exit(*, ledger_url: str, run_id: str, ended: DriverExit, is_application: bool = False) -> None:
    """Record in the ledger how a driver ended; an end that the driver itself recorded stays. The items that an
    application had claimed wait again.

    Raises
    ------
    LedgerError: when the run is unknown, or the ledger stays unreachable.
    """
    with open_ledger(ledger_url) as ledger:
        for attempt in _while_unreachable(EXIT_RECORDED_WITHIN_SECONDS):
            with attempt:
                if is_application:
                    end_application(ledger, run_id, reason=ended.reason)
                    continue
                record_end(
                    ledger,
                    run_id,
                    state=ended.state,
                    exit_code=ended.exit_code,
                    reason=ended.reason,
                    failure=ended.failure,
                )


def _while_unreachable(within_seconds: float) -> Retrying:
    return Retrying(
        retry=retry_if_exception_type(LedgerUnreachableError),
        wait=wait_exponential(multiplier=0.2, max=5),
        stop=stop_after_delay(within_seconds),
        reraise=True,
    )


def exit_note_path(log_file: Path) -> Path:
    """Return the path of the note of the driver with this log."""
    return log_file.with_name(f"{log_file.name}.exit.json")


def write_exit_note(log_file: Path, ended: DriverExit) -> None:
    """Write the note. It appears whole or not at all."""
    note = exit_note_path(log_file)
    draft = note.with_suffix(".draft")
    failure = None if ended.failure is None else ended.failure.reason
    draft.write_text(
        json.dumps(
            {"state": ended.state, "exit_code": ended.exit_code, "reason": ended.reason, "failure_reason": failure}
        )
    )
    draft.replace(note)


def read_exit_note(log_file: Path) -> DriverExit | None:
    """Return the exit in the note; none when there is no note that this host can read."""
    try:
        note = json.loads(exit_note_path(log_file).read_text())
    except OSError:
        return None  # no note, or a log on another host: then only the ledger has the exit
    reason = note["failure_reason"]
    return DriverExit(
        state=RunState(note["state"]),
        exit_code=note["exit_code"],
        reason=note["reason"],
        failure=Failure.of(FailureReason(reason)) if reason in set(FailureReason) else None,
    )


def remove_exit_note(log_file: Path) -> None:
    """Remove the note, once the ledger has the exit."""
    exit_note_path(log_file).unlink(missing_ok=True)


def exit_of(exit_code: int, log_file: Path, *, is_memory_kill: bool = False) -> DriverExit:
    """Derive how a driver ended from its exit code and the end of its log.

    Parameters
    ----------
    exit_code: as in Python's subprocess: negative when a signal killed the process.
    log_file: the driver's log.
    is_memory_kill: whether the kernel has just killed a process of the driver, because memory ran out.
    """
    if exit_code == 0:
        return DriverExit(state=RunState.FINISHED, exit_code=0, reason="finished")
    tail = tail_of(log_file)
    logged = (last_after(FAILURE_MARK, tail) or "")[:_REASON_CHARACTERS]
    reason = _killed_by(exit_code) or logged or f"exit code {exit_code}"
    if is_memory_kill and reason == _KILLED:
        reason = f"{_KILLED} by the kernel, because memory ran out"
        ran_out = Failure.of(FailureReason.OUT_OF_MEMORY)
        return DriverExit(state=RunState.FAILED, exit_code=exit_code, reason=reason, failure=ran_out)
    failure = _logged_failure(tail) or _suspected_failure(tail, exit_code, reason)
    return DriverExit(state=RunState.FAILED, exit_code=exit_code, reason=reason, failure=failure)


def _killed_by(exit_code: int) -> str | None:
    number = -exit_code if exit_code < 0 else exit_code - _SIGNAL_OFFSET
    if number not in {known.value for known in signal.Signals}:
        return None
    return f"killed by {signal.Signals(number).name}"


def _logged_failure(tail: list[str]) -> Failure | None:
    """The failure whose reason the driver logged itself."""
    reason = last_after(REASON_MARK, tail)
    return Failure.of(FailureReason(reason)) if reason in set(FailureReason) else None


def _suspected_failure(tail: list[str], exit_code: int, reason: str) -> Failure:
    """The failure of a driver that logged no reason. Of the errors in its log only those of memory and disk count: they
    leave a driver no time to log a reason, and the driver may have survived all others."""
    by_exit = failure_of_exit(exit_code, state=RunState.FAILED, reason=reason)
    if by_exit.failure_class is not FailureClass.UNKNOWN:
        return by_exit
    by_log = classify(chain_in("\n".join(tail)))
    return by_log if by_log.failure_class is FailureClass.RESOURCE else by_exit


def tail_of(log_file: Path) -> list[str]:
    """The last lines of a driver's log; none when it cannot be read."""
    try:
        with log_file.open("rb") as log:
            log.seek(max(0, log_file.stat().st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()
    except OSError:
        return []  # the exit is recorded without the log, too
