"""The records and logs of a driver: its process in the ledger, how it ended, the note beside its log, and old logs.

The driver's attendant (`sluice.launching.attend`) writes them. It imports this module only in a short-lived child or
after the driver's end, because SQLAlchemy is too large for a process that lives as long as the driver.

The note is written before the exit is recorded in the ledger and removed afterwards, so an exit is never lost when the
ledger cannot be reached.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import stat
from collections.abc import Collection, Iterable
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_exponential

from sluice.errors import LedgerUnreachableError
from sluice.failure_reasons import Failure, FailureClass, FailureReason
from sluice.failures.classification import classify, failure_of_exit
from sluice.failures.error_chains import chain_in
from sluice.launching.job_output import FAILURE_MARK, REASON_MARK, last_after
from sluice.ledger.applications import bind_application, end_application
from sluice.ledger.connection import open_ledger
from sluice.ledger.run_values import DriverExit, RunObservation, RunState
from sluice.ledger.runs import record_end, record_process
from sluice.processes.host_processes import identity_of
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

_FILE_MODE, _FOLDER_MODE = 0o640, 0o750
"""Logs hold values of rows: they are for the user of the drivers and for their group."""


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


def open_log(file: Path) -> BinaryIO:
    """Open the log of a driver or of an application for appending; its folder is made.

    Raises
    ------
    OSError: when it cannot be opened.
    """
    file.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
    opened = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _FILE_MODE)
    os.fchmod(opened, _FILE_MODE)  # also of a file that is there, and whatever the process's mask is
    return os.fdopen(opened, "ab")


def open_log_of(stream: str, file: Path, *, logs: Path) -> BinaryIO:
    """Open the log of a stream's driver for reading. The ledger names the file, and drivers write into the ledger: so
    it must lie in the stream's own folder, and be neither a link to another place nor a pipe, which is read for ever.
    The folder is opened first: the driver may exchange what lies in it meanwhile.

    Parameters
    ----------
    logs: the folder with one folder for each stream.

    Raises
    ------
    OSError: when it cannot be read, or lies elsewhere.
    """
    folder = logs.resolve() / stream
    if file.parent.resolve() != folder:
        raise PermissionError(0, f"it does not lie in {folder}")
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        opened = os.open(file.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise PermissionError(0, "it is no regular file")
    return os.fdopen(opened, "rb")


def remove_driver_logs(
    folder: Path, *, before: datetime, newest_runs: Iterable[RunObservation], dry_run: bool = False
) -> int:
    """Remove the log files of drivers on this host that were last written before a time.

    Those of the newest run of every stream stay, whatever their age: it may be live and quiet, and `sluice stream logs`
    shows it. What lies beside a log under its name (rotated logs, the note of the exit) stays and goes with it.

    Parameters
    ----------
    folder: with one folder for each stream.
    newest_runs: the newest run of every stream that ever ran.
    dry_run: only count.

    Returns
    -------
    How many files were removed, or would be.
    """
    kept = {run.log_file.name for run in newest_runs if run.log_file is not None}
    return _remove(_written_before(folder, "*/*", before=before), kept=kept, dry_run=dry_run)


def remove_task_logs(folder: Path, *, before: datetime, dags: Collection[str]) -> int:
    """Remove the logs of Airflow's tasks on this host that were last written before a time, and folders left empty.

    Parameters
    ----------
    folder: Airflow's `[logging] base_log_folder`, which has a folder `dag_id=…` for each DAG.
    dags: whose logs are meant. A task of a continuous stream may be deferred for months; its log is not.

    Returns
    -------
    How many files were removed.
    """
    folders = {f"dag_id={dag}" for dag in dags}
    old = [
        file
        for file in _written_before(folder, "dag_id=*/**/*", before=before)
        if file.relative_to(folder).parts[0] in folders
    ]
    removed = _remove(old, kept=(), dry_run=False)
    for place in sorted({parent for file in old for parent in file.parents}, reverse=True):
        if place.is_relative_to(folder) and place != folder:
            with contextlib.suppress(OSError):  # it is not empty
                place.rmdir()
    return removed


def _remove(files: Iterable[Path], *, kept: Collection[str], dry_run: bool) -> int:
    """Remove files, except those whose names begin with a kept one. Returns how many."""
    chosen = [file for file in files if not any(file.name.startswith(name) for name in kept)]
    if not dry_run:
        for file in chosen:
            file.unlink(missing_ok=True)
    return len(chosen)


def _written_before(folder: Path, pattern: str, *, before: datetime) -> list[Path]:
    """The files of a folder that were last written before a time; one that goes away meanwhile is left out."""
    found = []
    for file in folder.glob(pattern):
        with contextlib.suppress(FileNotFoundError):  # another supervisor on this host deletes old logs too
            if file.is_file() and file.stat().st_mtime < before.timestamp():
                found.append(file)
    return found
