"""The copies of a stream's state, as `sluice stream show` lists them: from where a lost state can be put back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sluice.checkpoints.checkpoint_copies import (
    CheckpointCopy,
    Rehearsal,
    copies_location,
    find_rehearsal,
    list_copies,
)
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.checkpoints.compatibility import STATE_MEANING, STATE_OPERATORS
from sluice.cli.stream_rendering import age_text
from sluice.errors import CheckpointError
from sluice.ledger.generations import GenerationObservation
from sluice.settings import ObjectStoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopies:
    """The copies of a checkpoint with state, newest first. rehearsals: of those that were rehearsed, by name.
    problem: why they are unknown; empty otherwise."""

    copies: tuple[CheckpointCopy, ...] = ()
    rehearsals: Mapping[str, Rehearsal] = field(default_factory=dict, hash=False)
    problem: str = ""

    def sentence(self, *, now: datetime) -> str:
        """The newest one, for a person."""
        if self.problem:
            return f"the copies of its state are unknown: {self.problem}"
        if not self.copies:
            return "its state has no copy yet: the next orderly stop makes one"
        newest = self.copies[0]
        made = f"made {newest.copied_at:%Y-%m-%d %H:%M:%S} UTC, {age_text(now - newest.copied_at)} ago"
        return (
            f"the newest copy of its state stands behind batch {newest.committed}, {made}; {len(self.copies)} kept; "
            f"{self._rehearsed(newest, now=now)}"
        )

    def _rehearsed(self, copy: CheckpointCopy, *, now: datetime) -> str:
        if (found := self.rehearsals.get(copy.clock)) is None:
            return "not rehearsed yet"
        ago = f"rehearsed {age_text(now - found.rehearsed_at)} ago"
        return f"{ago}: it does not do, {found.problem}" if found.problem else f"{ago}, in {found.seconds:.0f} s"

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
                    "rehearsal": None
                    if (seen := self.rehearsals.get(one.clock)) is None
                    else seen.model_dump(mode="json"),
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
        copies = list_copies(store)
        found = {one.clock: rehearsal for one in copies if (rehearsal := find_rehearsal(store, one)) is not None}
        return StateCopies(copies=copies, rehearsals=found)
    except CheckpointError as error:
        return StateCopies(problem=error.message)
