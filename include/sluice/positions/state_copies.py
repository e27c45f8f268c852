"""The copies of a stream's state, as its checks and `sluice stream show` list them: a lost one is put back from one."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sluice.checkpoints.checkpoint_copies import CheckpointCopy, Rehearsal, copies_location, find_rehearsal, list_copies
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.checkpoints.compatibility import STATE_MEANING, STATE_OPERATORS
from sluice.errors import CheckpointError
from sluice.ledger.generations import GenerationObservation
from sluice.positions.stream_position import StreamPosition, Witness
from sluice.settings import ObjectStoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopies:
    """The copies of a checkpoint with state, newest first. rehearsals: of those that were rehearsed, by name.
    problem: why they are unknown; empty otherwise."""

    copies: tuple[CheckpointCopy, ...] = ()
    rehearsals: Mapping[str, Rehearsal] = field(default_factory=dict, hash=False)
    problem: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether nothing shows that a lost state could not be put back."""
        found = self.rehearsals.get(self.copies[0].clock) if self.copies else None
        return not self.problem and (found is None or not found.problem)

    def sentence(self, *, newest_batch: int | None) -> str:
        """The newest one, for a person. newest_batch: that is committed; it says how far the copy is behind."""
        if self.problem:
            return f"the copies of its state are unknown: {self.problem}"
        if not self.copies:
            return "its state has no copy yet: the next orderly stop makes one"
        newest = self.copies[0]
        behind = 0 if newest_batch is None else max(0, newest_batch - newest.committed)
        return (
            f"the newest copy of its state stands behind batch {newest.committed}, {behind} before the newest one, "
            f"made {newest.copied_at:%Y-%m-%d %H:%M:%S} UTC; {len(self.copies)} kept; {self._rehearsed(newest)}"
        )

    def _rehearsed(self, copy: CheckpointCopy) -> str:
        if (found := self.rehearsals.get(copy.clock)) is None:
            return "not rehearsed yet"
        at = f"rehearsed {found.rehearsed_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{at}: it does not do, {found.problem}" if found.problem else f"{at}, in {found.seconds:.0f} s"

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


def with_copies(
    seen: StreamPosition, object_store: ObjectStoreSettings, unknown: MutableMapping[Witness, str]
) -> StreamPosition:
    """The position with its copies, where the ledger does not know whether the query keeps state: they show it then.

    Parameters
    ----------
    unknown: gets the checkpoint where they do not answer: what it lacks is not known without them.
    """
    if not seen.checkpoint or STATE_OPERATORS in seen.fingerprint:
        return seen
    try:
        store = open_checkpoint_files(copies_location(seen.checkpoint), object_store)
        return replace(seen, has_copies=bool(list_copies(store)))
    except CheckpointError as error:
        unknown.setdefault(Witness.CHECKPOINT, str(error))
        return replace(seen, contents=None)
