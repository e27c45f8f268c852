"""A run of a stream that a command carries out itself, so that no driver begins while it changes the tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum

from sluice.errors import LedgerError, RunAlreadyLiveError
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import admit_run, already_live, find_run, newest_run, record_end, record_process
from sluice.ledger.vacated_runs import end_if_vacated, is_vacated
from sluice.processes.driver_processes import identity_of


class CommandMode(StrEnum):
    """The mode of a run that a command carries out; runs of drivers have that of their declaration."""

    REJECTION = "rejection"
    SETTLEMENT = "settlement"
    REFRESH = "refresh"


def refuse_live_run(ledger: Ledger, stream: str) -> None:
    """Check that a command could begin now.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run, which publishes what is staged.
    LedgerError: when the ledger cannot be read.
    """
    live = newest_run(ledger, stream)
    if live is not None and live.is_live and not is_vacated(live):
        raise already_live(live)


@contextmanager
def run_of_command(
    ledger: Ledger, stream: str, mode: CommandMode, *, requested_by: str, what: str
) -> Iterator[RunObservation]:
    """Admit a run that this process carries out, and record its end.

    A stream has one run at a time, so no driver begins meanwhile, and what an older driver may still send meets a
    higher token.

    Parameters
    ----------
    requested_by: the person, as the ledger names them.
    what: what the command does, for the reason of the run's end, for example `the rejection of batch 7`.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run.
    LedgerError: when the ledger cannot be read or written.
    """
    try:
        run = _admit(ledger, stream, mode, requested_by)
    except RunAlreadyLiveError as refusal:
        if not end_if_vacated(ledger, find_run(ledger, refusal.run_id), launched_by=requested_by):
            raise
        run = _admit(ledger, stream, mode, requested_by)
    try:
        yield record_process(ledger, run.run_id, identity_of(os.getpid()), None)
    except BaseException as error:  # an interruption by a person, too: no run may stay live behind this command
        reason = f"{what} ended early: {type(error).__name__}: {error}"
        with suppress(LedgerError):  # the error to raise is the one that ended it
            record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason=reason)
        raise
    record_end(ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason=f"{what} is complete")


def _admit(ledger: Ledger, stream: str, mode: CommandMode, requested_by: str) -> RunObservation:
    return admit_run(
        ledger,
        stream=stream,
        mode=mode,
        declaration_digest="",  # of no declaration: the end of this run is not a failure of the stream
        launched_by=requested_by,
        event=None,  # the command's own event follows, once it is known what it changes
    )
