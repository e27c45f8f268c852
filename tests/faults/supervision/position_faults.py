"""Faults that befall the position of a stream: its checkpoint goes, beside a ledger that is whole, older or lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from enum import StrEnum
from pathlib import Path

from sqlalchemy import text
from tests.faults.supervision.process_faults import process_of, seconds_of_start
from tests.faults.supervision.report import Recovery
from tests.faults.supervision.scene import NotRecoveredError, Scene

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.demo.demonstration import unpause_streams
from sluice.ledger.generations import find_generation
from sluice.ledger.run_values import RunState

GRANTED_SECONDS = 30.0
"""What the way back may take beyond the driver's own start, from the first command on."""


class LedgerIs(StrEnum):
    """What the ledger still has of the stream. OLDER: the first half of its batches. LOST: nothing of its position."""

    WHOLE = "whole"
    OLDER = "older"
    LOST = "lost"


_FORGETS = {
    LedgerIs.WHOLE: (),
    LedgerIs.OLDER: (
        "DELETE FROM batches WHERE stream = :stream "
        "AND batch > (SELECT max(batch) / 2 FROM batches WHERE stream = :stream)",
    ),
    LedgerIs.LOST: (
        "DELETE FROM batches WHERE stream = :stream",
        "DELETE FROM generations WHERE stream = :stream",
    ),
}


def lose_checkpoint(scene: Scene, stream: str, *, ledger: LedgerIs, is_copied: bool = False) -> Recovery:
    """SIGKILL, and the checkpoint is removed: no other driver starts, until a person repairs the position and starts
    the stream, by one command.

    is_copied: whether the stream is restarted before, since each stop copies a checkpoint with state; what it publishes
        after that is behind the copy.
    """
    if is_copied:
        _restart(scene, stream)
    run, generation = scene.run(stream), find_generation(scene.platform.ledger, stream)
    if generation is None:
        raise NotRecoveredError(f"{stream} has no generation.")
    os.killpg(process_of(run).pid, signal.SIGKILL)
    lost_at = time.time()
    files = open_checkpoint_files(generation.checkpoint, scene.platform.settings.object_store)
    for file in files.list_files():
        files.remove(file.path)
    with scene.platform.ledger.transaction() as connection:
        for statement in _FORGETS[ledger]:
            connection.execute(text(statement), {"stream": stream})
    detected = scene.wait_for(lambda: _refused_at(scene, stream, after=run.token), f"a start of {stream} is refused")
    ordered_at = time.time()
    _sluice("repair", stream, "--yes", "--start")
    published = scene.await_publication(stream, token=run.token + 1, after_seconds=ordered_at)
    unpause_streams(scene.platform)  # a stream that needs a person was paused
    seconds = seconds_of_start(scene, stream, run_id=published.run_id)
    return Recovery(
        detected_seconds=detected - lost_at,
        recovered_seconds=published.at_seconds - ordered_at,
        start_seconds=seconds,
        bound_seconds=seconds + GRANTED_SECONDS,
    )


def _restart(scene: Scene, stream: str) -> None:
    before, ordered_at = scene.run(stream), time.time()
    _sluice("restart", stream)
    scene.await_publication(stream, token=before.token + 1, after_seconds=ordered_at)


def _refused_at(scene: Scene, stream: str, *, after: int) -> float | None:
    """When a later run ended by the finding about the checkpoint, since the epoch; none while none did."""
    run = scene.run(stream)
    if run.token <= after or run.state is not RunState.FAILED or run.ended_at is None:
        return None
    if "heckpoint" not in str(run.reason):
        raise NotRecoveredError(f"{stream} failed for another reason: {run.reason}")
    return run.ended_at.timestamp()


def _sluice(*order: str) -> None:
    """What a person types; the environment has the stack."""
    command = [str(Path(sys.executable).with_name("sluice")), "stream", *order]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603  # ours
    if done.returncode != 0:
        raise NotRecoveredError(f"`{' '.join(['sluice', *command[1:]])}` ended with {done.returncode}: {done.stderr}")
