"""How a driver ended, told from its exit code and the end of its log."""

from __future__ import annotations

import signal
from pathlib import Path

from sluice.failure_reasons import Failure, FailureClass, FailureReason
from sluice.failures.classification import classify, failure_of_exit
from sluice.failures.error_chains import chain_in
from sluice.ledger.records.run import DriverExit, RunState

FAILURE_MARK = "sluice: failed: "
"""A job that fails writes this as its last line, followed by the error's class and message, and ends with code 1."""

REASON_MARK = "sluice: reason: "
"""A job that fails writes this before its last line, followed by the word of the reason (`FailureReason`)."""

_TAIL_BYTES = 65_536
"""Enough for the last line of a job below a long Java stack trace."""

_REASON_CHARACTERS = 1_000
_SIGNAL_OFFSET = 128
"""A shell and a JVM report a signal as 128 plus its number."""


def exit_of(exit_code: int, log_file: Path) -> DriverExit:
    """How the driver ended.

    Parameters
    ----------
    exit_code: as Python's subprocess tells it: negative when a signal killed the process.
    log_file: what the driver wrote.
    """
    if exit_code == 0:
        return DriverExit(state=RunState.FINISHED, exit_code=0, reason="finished")
    tail = _tail_of(log_file)
    reason = _killed_by(exit_code) or _last_words(tail, FAILURE_MARK) or f"exit code {exit_code}"
    return DriverExit(
        state=RunState.FAILED, exit_code=exit_code, reason=reason, failure=_failure_told(tail, exit_code, reason)
    )


def _killed_by(exit_code: int) -> str | None:
    number = -exit_code if exit_code < 0 else exit_code - _SIGNAL_OFFSET
    if number not in {known.value for known in signal.Signals}:
        return None
    return f"killed by {signal.Signals(number).name}"


def _failure_told(tail: list[str], exit_code: int, reason: str) -> Failure:
    """As the driver told it in its log; else as its death looks. Of the errors in the log of a driver that died without
    a word only memory and disk are believed: they are what lets no time for one, all others may have been survived.
    """
    told = _last_words(tail, REASON_MARK)
    if told in set(FailureReason):
        return Failure.of(FailureReason(told))
    by_exit = failure_of_exit(exit_code, state=RunState.FAILED, reason=reason)
    if by_exit.failure_class is not FailureClass.UNKNOWN:
        return by_exit
    by_log = classify(chain_in("\n".join(tail)))
    return by_log if by_log.failure_class is FailureClass.RESOURCE else by_exit


def _last_words(tail: list[str], mark: str) -> str | None:
    found = [line.partition(mark)[2] for line in tail if line.startswith(mark)]
    return found[-1][:_REASON_CHARACTERS] if found else None


def _tail_of(log_file: Path) -> list[str]:
    try:
        with log_file.open("rb") as log:
            log.seek(max(0, log_file.stat().st_size - _TAIL_BYTES))
            return log.read().decode(errors="replace").splitlines()
    except OSError:
        return []  # the exit is worth recording without its log, too
