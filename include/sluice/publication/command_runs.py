"""A run of a stream that this process carries out itself: an increment, or a command that keeps drivers out of it.

It may take the place of a run whose process is gone, and of which no supervisor has recorded the end. A driver may live
on behind the end of its run: that is found out, too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from enum import StrEnum

from sluice.errors import LedgerError, RunAlreadyLiveError
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import Actor, Event, EventAction, record_event
from sluice.ledger.run_leases import LEASE_SECONDS
from sluice.ledger.run_values import RunObservation, RunState
from sluice.ledger.runs import (
    admit_run,
    already_live,
    find_run,
    newest_run,
    recent_runs,
    record_end,
    record_process,
    take_over,
)
from sluice.processes.host_processes import identity_of, observe_process
from sluice.processes.process_identity import ProcessState


def end_if_vacated(ledger: Ledger, live: RunObservation, *, launched_by: str) -> bool:
    """End a live run when its process is gone, or cannot be observed and its lease is over. Returns whether it ended.

    Parameters
    ----------
    launched_by: who takes its place, for the event.
    """
    seen = _observed(live)
    if seen is ProcessState.GONE:
        reason = "its driver is gone"
        event = _event(live, EventAction.CLOSE_RUN, "driver_vanished", reason, launched_by=launched_by)
        record_event(ledger, event)
        record_end(ledger, live.run_id, state=RunState.LOST, exit_code=None, reason=reason)
    elif seen is ProcessState.UNKNOWN:
        reason = "its driver fell silent, and its lease is over"
        event = _event(live, EventAction.TAKE_OVER, "lease_over", reason, launched_by=launched_by)
        return not take_over(ledger, live.run_id, reason=reason, event=event).is_live
    return seen is ProcessState.GONE


def is_vacated(live: RunObservation) -> bool:
    """Whether the process of a live run is gone, so that `end_if_vacated` ends it. Nothing is changed."""
    return _observed(live) is ProcessState.GONE


_LOOKED_AT = 8
"""How many runs of a stream are looked at for a driver that lives on: more than one lease holds."""


def find_left_driver(ledger: Ledger, stream: str) -> RunObservation | None:
    """A run that others ended, and whose driver may still write: its process lives, or cannot be observed before its
    lease would be over. None otherwise."""
    lost = (run for run in recent_runs(ledger, stream, _LOOKED_AT) if run.state is RunState.LOST)
    now = database_time(ledger)
    return next((run for run in lost if _may_write(run, now)), None)


def _may_write(run: RunObservation, now: datetime) -> bool:
    seen = _observed(run)
    heard_at = run.heartbeat_at or run.launched_at
    is_in_lease = now - heard_at < timedelta(seconds=LEASE_SECONDS)
    return seen is ProcessState.ALIVE or (seen is ProcessState.UNKNOWN and is_in_lease)


def _observed(live: RunObservation) -> ProcessState:
    return ProcessState.UNKNOWN if live.process is None else observe_process(live.process)


def _event(live: RunObservation, action: EventAction, reason: str, text: str, *, launched_by: str) -> Event:
    return Event(
        name=live.stream,
        actor=Actor.component(launched_by),
        action=action,
        reason=reason,
        explanation=f"Run {live.run_id} ends in favour of the next one: {text}.",
        run_id=live.run_id,
        evidence={"token": live.token, "heartbeat_at": live.heartbeat_at},
        occasion=f"{live.run_id}, {reason}",
    )


_log = logging.getLogger(__name__)


class CommandMode(StrEnum):
    """The mode of a run that a command carries out; runs of drivers have that of their declaration."""

    REJECTION = "rejection"
    SETTLEMENT = "settlement"
    REFRESH = "refresh"
    REPAIR = "repair"
    ADOPTION = "adoption"
    REWIND = "rewind"


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


def admit_own_run(
    ledger: Ledger, *, stream: str, mode: str, declaration_digest: str, launched_by: str, event: Event | None
) -> RunObservation:
    """Admit a run that this process carries out, also in place of one whose process is gone.

    Such runs are not supervised, so the ledger still has the run of a killed process as live; it is ended here. A run
    whose process may be alive is left alone; one whose process cannot be observed, until its lease is over.

    Parameters
    ----------
    launched_by: who asked, as the ledger names them. event: the decision to start it; none when another one says so.

    Raises
    ------
    RunAlreadyLiveError: when another run of the stream is live, or may be.
    """

    def admitted() -> RunObservation:
        return admit_run(
            ledger,
            stream=stream,
            mode=mode,
            declaration_digest=declaration_digest,
            launched_by=launched_by,
            event=event,
        )

    try:
        run = admitted()
    except RunAlreadyLiveError as refusal:
        if not end_if_vacated(ledger, find_run(ledger, refusal.run_id), launched_by=launched_by):
            raise
        _log.warning("run %s has ended, as its process is gone; its batch, if any, runs again now", refusal.run_id)
        run = admitted()
    with _ended_early(ledger, run, "the admission"):
        return record_process(ledger, run.run_id, identity_of(os.getpid()), None)


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
    run = admit_own_run(
        ledger,
        stream=stream,
        mode=mode,
        declaration_digest="",  # of no declaration: the end of this run is not a failure of the stream
        launched_by=requested_by,
        event=None,  # the command's own event follows, once it is known what it changes
    )
    with _ended_early(ledger, run, what):
        yield run
    record_end(ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason=f"{what} is complete")


@contextmanager
def _ended_early(ledger: Ledger, run: RunObservation, what: str) -> Iterator[None]:
    """Record the end of a run when the block fails."""
    try:
        yield
    except BaseException as error:  # an interruption by a person, too: no run may stay live behind this process
        reason = f"{what} ended early: {type(error).__name__}: {error}"
        with suppress(LedgerError):  # the error to raise is the one that ended it
            record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason=reason)
        raise
