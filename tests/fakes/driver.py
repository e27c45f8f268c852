"""A driver without Spark, quick to start: it beats, records batches, obeys the desired state, and fails on command.

A real process with the real command line of `spark-submit` and the real ledger, so that everything around a driver is
tested for real: of a stream's run, or of an application for work items (`tests.fakes.application`).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tests.fakes.application import run_application
from tests.fakes.batches import batch_of
from tests.fakes.behaviour import behaviour_of

from sluice.checkpoints.compatibility import fingerprint_of
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import LedgerUnreachableError
from sluice.launching.job_output import FAILURE_MARK
from sluice.ledger.batches import PublicationKey, record_batch
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.generations import current_generation, record_fingerprint
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import beat, record_end


def main(argv: Sequence[str]) -> None:
    """Do as the job of this command line would."""
    arguments = dict(word.removeprefix("--").split("=", 1) for word in argv if word.startswith("--") and "=" in word)
    print(f"fake driver: {' '.join(argv)}", flush=True)  # noqa: T201  # the driver's log
    if "application-id" in arguments:
        run_application(arguments["application-id"])
    else:
        _run_stream(arguments["stream"], arguments["run-id"])


def _run_stream(stream: str, run_id: str) -> None:
    behaviour = behaviour_of(stream)
    if behaviour.fails_with:
        sys.stderr.write(f"{FAILURE_MARK}{behaviour.fails_with}\n")
        sys.exit(1)
    with open_ledger(os.environ["SLUICE_LEDGER_URL"]) as ledger:
        _record_batches(ledger, stream, run_id, beat_seconds=behaviour.beat_seconds)


def _record_batches(ledger: Ledger, stream: str, run_id: str, *, beat_seconds: float) -> None:
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    generation = current_generation(ledger, stream, checkpoints_root=os.environ["SLUICE_CHECKPOINTS"]).generation
    declared = load_declarations(Path(os.environ["SLUICE_PIPELINES"]), only=stream).stream(stream).declaration
    record_fingerprint(ledger, stream, generation, fingerprint_of(declared, state_operators=()))
    batch = 0
    while not asked_to_end.wait(beat_seconds):
        try:
            is_to_stop = beat(ledger, run_id).desired_state is DesiredState.STOPPED
            if behaviour_of(stream).hangs:
                continue
            if is_to_stop:
                break
            record_batch(ledger, batch_of(PublicationKey(stream=stream, generation=generation, batch=batch), run_id))
        except LedgerUnreachableError as error:
            print(f"goes on without the ledger: {error}", flush=True)  # noqa: T201  # the driver's log
            continue
        batch += 1
    record_end(ledger, run_id, state=RunState.FINISHED, exit_code=0, reason="stopped as requested")
