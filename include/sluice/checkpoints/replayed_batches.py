"""The batches that a repair leaves in a checkpoint, for the next run to take the state through: `replay/BATCH`. Pure.

Spark runs one planned batch and continues behind it, so those that follow cannot stand in its offset log.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from sluice.checkpoints.checkpoint_files import ReadableCheckpoint
from sluice.checkpoints.checkpoint_layout import (
    COMMITS,
    FileObservation,
    entry_of,
    log_files,
    metadata_of,
    next_batch_metadata,
    offsets_of,
)
from sluice.errors import UsageError

REPLAY = "replay"

_WATERMARK = "batchWatermarkMs"


def replayed_batches(files: Iterable[FileObservation]) -> tuple[int, ...]:
    """The batches that are left to run again, in order.

    Parameters
    ----------
    files: of the checkpoint, or below `REPLAY`.
    """
    return tuple(log_files(files, REPLAY))


def replayed_through(files: Iterable[FileObservation]) -> int:
    """The newest batch that the next run takes the state through; -1 without any, or where one is missing behind the
    newest commit."""
    found = tuple(files)
    left, committed = replayed_batches(found), max(log_files(found, COMMITS), default=-1)
    is_whole = bool(left) and left[0] <= committed + 1 and left == tuple(range(left[0], left[-1] + 1))
    return left[-1] if is_whole else -1


def refuse_pending_replay(stream: str, checkpoint: ReadableCheckpoint) -> None:
    """Refuse what would take the state of a stream for that of its tables while batches are left to run again.

    Raises
    ------
    UsageError: with these batches. CheckpointError: when the storage does not answer.
    """
    if left := replayed_batches(checkpoint.list_files(REPLAY)):
        raise UsageError(
            f"The state of {stream} is a copy that stands behind the tables: the batches {left[0]} to {left[-1]} are "
            "still to be run again for it.",
            next_step=f"Let a start do that first: `sluice stream start {stream}`.",
        )


def replayed_entry(entry: str, *, before: str, commit: str) -> str:
    """The entry of a batch for the offset log. Its watermark is the one that it had, or what the batch before it leads
    to by now, where that is later: a query that starts again has seen less, and the ledger may not know it.

    Parameters
    ----------
    entry: as the repair has left it. before, commit: the entries of the batch before it in the two logs.
    """
    metadata = json.loads(metadata_of(entry))
    follows = json.loads(next_batch_metadata(metadata_of(before), commit))
    metadata[_WATERMARK] = max(metadata[_WATERMARK], follows[_WATERMARK])
    return entry_of(json.dumps(metadata, separators=(",", ":")), offsets_of(entry))
