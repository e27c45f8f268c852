"""Writes the checkpoint with which a new generation continues another one: its newest batch, with moved offsets.

The files of the old checkpoint are copied, its state at the version behind that batch included. The offsets of some
sources are moved in the entry of the batch; a batch that reads exactly up to given offsets is planned as the next one,
and Spark runs a planned batch as it is. All other sources stand still in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.checkpoints.checkpoint_files import CheckpointFiles, copy_files, state_files
from sluice.checkpoints.checkpoint_layout import (
    BEGUN,
    COMMITS,
    EMPTY_COMMIT,
    METADATA,
    OFFSETS,
    FileObservation,
    log_files,
    metadata_of,
    next_batch_metadata,
    planned_time,
)
from sluice.errors import CheckpointError
from sluice.maintenance.reading_position import ReadingPosition


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedCheckpoint:
    """The contents of the new checkpoint.

    batch: the one that it continues behind.
    texts: the files that are written, by path.
    state: the files of the old checkpoint that are copied.
    """

    batch: int
    texts: Mapping[str, str]
    state: tuple[FileObservation, ...]

    @property
    def state_bytes(self) -> int:
        """The size of the copied state."""
        return sum(seen.size_bytes for seen in self.state)


def plan_checkpoint(
    old: CheckpointFiles,
    position: ReadingPosition,
    *,
    starts: Mapping[int, str],
    ends: Mapping[int, str],
) -> ContinuedCheckpoint:
    """The checkpoint that continues behind a batch. Nothing is written.

    Parameters
    ----------
    starts: by line of the batch's entry, the offset at which the next batch starts to read. ends: at which it ends;
        none leaves the next batch to Spark, and otherwise sources without one stand still in it.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    texts = {seen.path: old.read_text(seen.path) for seen in old.list_files("sources")}
    texts["metadata"] = old.read_text("metadata")
    commit = old.read_text(f"commits/{position.batch}") or EMPTY_COMMIT
    texts |= _before(old, position)
    texts[f"offsets/{position.batch}"] = position.moved_to(starts)
    texts[f"commits/{position.batch}"] = commit
    if ends:
        metadata = next_batch_metadata(position.metadata, commit)
        texts[f"offsets/{position.batch + 1}"] = position.moved_to({**starts, **ends}, metadata=metadata)
    return ContinuedCheckpoint(
        batch=position.batch,
        texts={path: text for path, text in texts.items() if text is not None and not path.endswith(".crc")},
        state=state_files(old, version=position.batch + 1),
    )


def _before(old: CheckpointFiles, position: ReadingPosition) -> dict[str, str | None]:
    """The batch before the newest one that is done. Spark reads its entry at each start behind batch 0, and refuses a
    checkpoint without one; it is taken for the start of nothing, so the newest one's will do where it was removed.

    Source: `MicroBatchExecution.populateStartOffsets` of Spark 4.1.
    """
    if position.batch == 0:
        return {}
    before = position.batch - 1
    return {
        f"offsets/{before}": old.read_text(f"offsets/{before}") or position.offsets,
        f"commits/{before}": old.read_text(f"commits/{before}") or EMPTY_COMMIT,
    }


def _is_of_a_try(old: CheckpointFiles, new: CheckpointFiles, files: Sequence[FileObservation]) -> bool:
    """Whether a folder has only what an earlier try to continue the same query can have written: no run has committed a
    batch in it behind those of the old checkpoint."""
    if any(one.path == BEGUN for one in files):
        return False
    planned, committed = log_files(files, OFFSETS), log_files(files, COMMITS)
    if not planned and not committed:
        return new.read_text(METADATA) in (None, old.read_text(METADATA))  # the state is copied first
    done, known = max(committed, default=-1), max(log_files(old.list_files(COMMITS), COMMITS), default=-1)
    is_own = all(_is_copied(old, new, number, behind=done) for number in planned if number > done)
    return new.read_text(METADATA) == old.read_text(METADATA) and done <= known and is_own


def _is_copied(old: CheckpointFiles, new: CheckpointFiles, batch: int, *, behind: int) -> bool:
    """Whether the entry of a batch has the time of another one, as what a try writes: of the same number in the old
    checkpoint, of the next one where that was removed there, or of the one that it is planned behind. A plan of Spark
    has a time of its own."""
    copied = {_planned_at(new, behind), _planned_at(old, batch), _planned_at(old, batch + 1)}
    return _planned_at(new, batch) in copied - {""}


def _planned_at(checkpoint: CheckpointFiles, batch: int) -> str:
    """When a batch was planned, as its entry in the log has it; empty where that cannot be read."""
    entry = checkpoint.read_text(f"{OFFSETS}/{batch}")
    try:
        return "" if entry is None else planned_time(json.loads(metadata_of(entry))).isoformat()
    except (IndexError, ValueError):
        return ""


def write_checkpoint(old: CheckpointFiles, new: CheckpointFiles, content: ContinuedCheckpoint, *, stream: str) -> None:
    """Write a planned checkpoint. A second try completes a first one, also one that was planned in another way.

    Raises
    ------
    CheckpointError: when the folder has files of another origin, or a storage does not answer.
    """
    own = {*content.texts, *(seen.path for seen in content.state)}
    files = new.list_files()
    foreign = [seen.path for seen in files if seen.path not in own]
    if foreign and not _is_of_a_try(old, new, files):
        raise CheckpointError(
            f"{new.location}, the folder of the new checkpoint, contains {foreign[0]} already. It may be that of a "
            "generation that the ledger does not know, as an older copy.",
            next_step=f"If it is, write the generation back first: `sluice stream repair {stream} --dry-run`. "
            "Otherwise find out whose it is, and move it away.",
        )
    for path in foreign:
        new.remove(path)
    copy_files(old, new, content.state)
    for path, text in content.texts.items():
        new.write_text(path, text)
