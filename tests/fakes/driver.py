"""A driver without Spark, quick to start: it beats, records batches, obeys the desired state, and fails on command.

A real process with the real command line of `spark-submit` and the real ledger, so that everything around a driver is
tested for real. How it behaves stands in the file `<FAKE_DRIVERS>/<subject>.json`; without one it works well. The
subject is the stream or the table that the job is about.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from sluice.checkpoints.compatibility import fingerprint_of
from sluice.declarations.load_declarations import load_declarations
from sluice.errors import LedgerUnreachableError
from sluice.launching.kept_driver import DriverAnswer, receive_line, send_line
from sluice.ledger.batches import BatchObservation, PublicationKey, newest_batch, record_batch
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.generations import current_generation, record_fingerprint
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import beat, record_end

BEHAVIOURS_VARIABLE = "FAKE_DRIVERS"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How a fake driver works and ends.

    fails_with: its last words, `<ErrorClass>: <message>`; empty when it does not fail.
    beat_seconds: between two heartbeats, each of which brings a batch.
    hangs: whether it brings no batch and does not obey, as a driver whose main thread hangs while its heartbeat lives.
        A job that is no run of a stream works until it is killed.
    publishes: whether an increment finds rows to publish.
    """

    fails_with: str = ""
    beat_seconds: float = 0.2
    hangs: bool = False
    publishes: bool = True


def tell_drivers(folder: Path, subject: str, behaviour: Behaviour) -> None:
    """Say how the next drivers of a stream or a table are to behave."""
    (folder / f"{subject}.json").write_text(json.dumps(asdict(behaviour)))


def main(argv: Sequence[str]) -> None:
    """Do as the job of this command line would."""
    arguments = dict(word.removeprefix("--").split("=", 1) for word in argv if word.startswith("--") and "=" in word)
    subject = arguments.get("stream") or arguments["table"]
    print(f"fake driver of {subject}: {' '.join(argv)}", flush=True)  # noqa: T201  # the driver's log
    if "socket" in arguments:
        _keep_increments(subject, arguments["socket"], kept_seconds=float(arguments["kept-seconds"]))
        return
    behaviour = _behaviour_of(subject)
    if behaviour.fails_with:
        sys.stderr.write(f"sluice: failed: {behaviour.fails_with}\n")
        sys.exit(1)
    if "run-id" in arguments:
        with open_ledger(os.environ["SLUICE_LEDGER_URL"]) as ledger:
            _run_stream(ledger, subject, arguments["run-id"], beat_seconds=behaviour.beat_seconds)
    elif behaviour.hangs:
        threading.Event().wait()
    elif any("run_increment" in word for word in argv) and behaviour.publishes:
        with open_ledger(os.environ["SLUICE_LEDGER_URL"]) as ledger:
            _run_increment(ledger, subject)


def _keep_increments(stream: str, address: str, *, kept_seconds: float) -> None:
    """Run increments as they are asked for, until one fails or none is asked for a while."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        listener.settimeout(kept_seconds)
        is_well = True
        while is_well:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                break
            with connection:
                receive_line(connection)
                last_line = f"the fake is idle: {uuid4()}"
                send_line(connection, DriverAnswer(state="accepted", pid=os.getpgrp(), last_line=last_line))
                is_well = _ran_kept_increment(stream)
                print(last_line, flush=True)  # noqa: T201  # the driver's log
                send_line(connection, DriverAnswer(state="ended", exit_code=0 if is_well else 1))
    Path(address).unlink()


def _ran_kept_increment(stream: str) -> bool:
    behaviour = _behaviour_of(stream)
    if behaviour.fails_with:
        print(f"sluice: failed: {behaviour.fails_with}", flush=True)  # noqa: T201  # the driver's log
        return False
    with open_ledger(os.environ["SLUICE_LEDGER_URL"]) as ledger:
        _run_increment(ledger, stream)
    return True


def _behaviour_of(subject: str) -> Behaviour:
    told = Path(os.environ[BEHAVIOURS_VARIABLE], f"{subject}.json")
    return Behaviour(**json.loads(told.read_text())) if told.exists() else Behaviour()


def _run_stream(ledger: Ledger, stream: str, run_id: str, *, beat_seconds: float) -> None:
    asked_to_end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: asked_to_end.set())
    generation = current_generation(ledger, stream, checkpoints_root=os.environ["SLUICE_CHECKPOINTS"]).generation
    declared = load_declarations(Path(os.environ["SLUICE_PIPELINES"]), only=stream).stream(stream).declaration
    record_fingerprint(ledger, stream, generation, fingerprint_of(declared, state_operators=()))
    batch = 0
    while not asked_to_end.wait(beat_seconds):
        try:
            is_to_stop = beat(ledger, run_id).desired_state is DesiredState.STOPPED
            if _behaviour_of(stream).hangs:
                continue
            if is_to_stop:
                break
            record_batch(ledger, _batch(PublicationKey(stream=stream, generation=generation, batch=batch), run_id))
        except LedgerUnreachableError as error:
            print(f"goes on without the ledger: {error}", flush=True)  # noqa: T201  # the driver's log
            continue
        batch += 1
    record_end(ledger, run_id, state=RunState.FINISHED, exit_code=0, reason="stopped as requested")


def _run_increment(ledger: Ledger, stream: str) -> None:
    """Publish one batch, after those of earlier increments."""
    generation = current_generation(ledger, stream, checkpoints_root=os.environ["SLUICE_CHECKPOINTS"]).generation
    newest = newest_batch(ledger, stream)
    number = newest.key.batch + 1 if newest is not None else 0
    record_batch(ledger, _batch(PublicationKey(stream=stream, generation=generation, batch=number), "an increment"))


def _batch(key: PublicationKey, run_id: str) -> BatchObservation:
    return BatchObservation(
        key=key,
        run_id=run_id,
        started_at=datetime.now(UTC),
        duration_ms=1,
        input_rows=1,
        published_rows={"main": 1},
        snapshot_ids={"main": key.batch + 1},
    )
