"""Admits a run of an incremental stream, also in place of a run whose driver is gone."""

from __future__ import annotations

import logging
import os

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import RunAlreadyLiveError
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import admit_run, find_run, record_process
from sluice.ledger.vacated_runs import end_if_vacated
from sluice.processes.driver_processes import identity_of

_log = logging.getLogger(__name__)


def admit_increment(ledger: Ledger, stream: LoadedStream, *, launched_by: str) -> RunObservation:
    """Admit a run of an incremental stream, carried out by this process.

    The driver of an increment is not supervised, so the ledger still has the run of a killed driver as live; it is
    ended here. A run whose driver may be alive is left alone. A run whose driver cannot be observed is left alone until
    its lease is over.

    Parameters
    ----------
    launched_by: who asked, for people who read it.

    Raises
    ------
    RunAlreadyLiveError: when another run of the stream is live, or may be.
    """
    try:
        run = _admit(ledger, stream, launched_by)
    except RunAlreadyLiveError as refusal:
        if not end_if_vacated(ledger, find_run(ledger, refusal.run_id), launched_by=launched_by):
            raise
        _log.warning("run %s has ended, as its process is gone; its batch, if any, runs again now", refusal.run_id)
        run = _admit(ledger, stream, launched_by)
    return record_process(ledger, run.run_id, identity_of(os.getpid()), None)


def _admit(ledger: Ledger, stream: LoadedStream, launched_by: str) -> RunObservation:
    return admit_run(
        ledger,
        stream=stream.name,
        mode=stream.declaration.mode,
        declaration_digest=stream.digest,
        launched_by=launched_by,
        event=Event(
            name=stream.name,
            actor=Actor.component(launched_by),
            action=EventAction.LAUNCH,
            reason="increment",
            explanation=f"An increment of {stream.name} begins.",
        ),
    )
