"""Copies the state of a stateful stream into a new checkpoint, at one version.

A start after batch N loads version N + 1 of every store. What the old checkpoint has beyond it is of a batch that was
planned and is left behind, so it is not copied. Everything else below `state` is: the changes and full states up to the
version, the files that a full state of RocksDB refers to, and the descriptions of the operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from sluice.checkpoints.checkpoint_files import CheckpointFiles
from sluice.checkpoints.checkpoint_layout import FileObservation, checksum_path, is_hidden, state_stores
from sluice.errors import CheckpointError

STATE = "state"

_COPIES_AT_ONCE = 8
"""Enough to hide an object store's latency; a file of the state is in memory while it is copied."""


def state_files(checkpoint: CheckpointFiles, *, version: int) -> tuple[FileObservation, ...]:
    """The files that the state has at a version, and those that belong to none.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    files = checkpoint.list_files(STATE)
    later = {found.file.path for store in state_stores(files).values() for found in store if found.version > version}
    left = later | {checksum_path(path) for path in later}
    return tuple(seen for seen in files if seen.path not in left and not is_hidden(seen.path))


def copy_files(old: CheckpointFiles, new: CheckpointFiles, files: Sequence[FileObservation]) -> None:
    """Copy files to the same paths of another checkpoint. A second call copies them again.

    Raises
    ------
    CheckpointError: when a file is gone, or a storage does not answer.
    """

    def copy(seen: FileObservation) -> None:
        content = old.read_bytes(seen.path)
        if content is None:
            raise CheckpointError(
                f"{seen.path} of the checkpoint {old.location} is gone while it is copied.",
                next_step="Find out what changes the checkpoint of a stream that is stopped, and repeat the command.",
            )
        new.write_bytes(seen.path, content)

    with ThreadPoolExecutor(_COPIES_AT_ONCE) as pool:
        for _ in pool.map(copy, files):
            pass
