"""How a fake driver behaves: as in the file `<FAKE_DRIVERS>/<subject>.json`; without one it works well."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

BEHAVIOURS_VARIABLE = "FAKE_DRIVERS"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How the work on a stream or a table goes on and ends.

    fails_with: its last words, `<ErrorClass>: <message>`; empty when it does not fail.
    reason: the reason in the line before.
    beat_seconds: between two heartbeats of a stream's driver, each of which brings a batch.
    hangs: whether a driver brings no batch and does not obey, as one whose main thread hangs while its heartbeat lives;
        a work item is not ended while its subject hangs.
    publishes: whether an increment finds rows to publish.
    """

    fails_with: str = ""
    reason: str = "unexplained"
    beat_seconds: float = 0.2
    hangs: bool = False
    publishes: bool = True


def tell_drivers(folder: Path, subject: str, behaviour: Behaviour) -> None:
    """Say how the work on a stream or a table is to go on from now. A reader sees all of it or nothing."""
    part = folder / f"{subject}.part"
    part.write_text(json.dumps(asdict(behaviour)))
    part.rename(folder / f"{subject}.json")


def behaviour_of(subject: str) -> Behaviour:
    """What the file of a subject says."""
    file = Path(os.environ[BEHAVIOURS_VARIABLE], f"{subject}.json")
    return Behaviour(**json.loads(file.read_text())) if file.exists() else Behaviour()
