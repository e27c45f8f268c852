"""The copies of a stream's state, as `sluice stream show` lists them: from where a lost state can be put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sluice.checkpoints.checkpoint_copies import CheckpointCopy, copies_location, list_copies
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.checkpoints.compatibility import STATE_MEANING, STATE_OPERATORS
from sluice.cli.stream_rendering import age_text
from sluice.errors import CheckpointError
from sluice.ledger.generations import GenerationObservation
from sluice.settings import ObjectStoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopies:
    """The copies of a checkpoint with state, newest first. problem: why they are unknown; empty otherwise."""

    copies: tuple[CheckpointCopy, ...] = ()
    problem: str = ""

    def sentence(self, *, now: datetime) -> str:
        """The newest one, for a person."""
        if self.problem:
            return f"the copies of its state are unknown: {self.problem}"
        if not self.copies:
            return "its state has no copy yet: the next orderly stop makes one"
        newest = self.copies[0]
        return (
            f"the newest copy of its state stands behind batch {newest.committed}, made "
            f"{newest.copied_at:%Y-%m-%d %H:%M:%S} UTC, {age_text(now - newest.copied_at)} ago; {len(self.copies)} kept"
        )

    def document(self, *, now: datetime) -> Mapping[str, Any]:
        """All of them, for a program."""
        return {
            "problem": self.problem or None,
            "copies": [
                {
                    "copied_at": one.copied_at.isoformat(),
                    "age_seconds": round((now - one.copied_at).total_seconds(), 3),
                    "batch": one.committed,
                    "files": len(one.files),
                    "bytes": sum(file.size_bytes for file in one.files),
                }
                for one in self.copies
            ],
        }


def observe_state_copies(
    generation: GenerationObservation | None, object_store: ObjectStoreSettings
) -> StateCopies | None:
    """The copies of the checkpoint of a generation; none when the ledger knows of no state."""
    known = {} if generation is None else generation.fingerprint
    if generation is None or not (known.get(STATE_OPERATORS) or known.get(STATE_MEANING)):
        return None
    try:
        store = open_checkpoint_files(copies_location(generation.checkpoint), object_store)
        return StateCopies(copies=list_copies(store))
    except CheckpointError as error:
        return StateCopies(problem=error.message)
