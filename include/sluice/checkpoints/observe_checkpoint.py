"""Observes a checkpoint without Spark, also while a driver writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from sluice.checkpoints.checkpoint_files import ReadableCheckpoint
from sluice.checkpoints.checkpoint_layout import (
    COMMITS,
    OFFSETS,
    CheckpointContents,
    log_files,
    paths_to_compare,
    paths_to_read,
)
from sluice.checkpoints.file_checksums import MOST_BYTES, READERS, damaged_files


def observe_checkpoint(checkpoint: ReadableCheckpoint, *, is_whole: bool = False) -> CheckpointContents:
    """Observe a checkpoint that a driver may be writing meanwhile.

    It lists the offset log, then the commit log, then everything. A batch that the first listing has and the second has
    not is really uncommitted, and a batch of the second listing has its offsets in the third.

    Parameters
    ----------
    is_whole: whether every entry of the logs is read, and every file of the state compared with its checksum, and not
        only those that a start needs, up to `MOST_BYTES`.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    planned = log_files(checkpoint.list_files(OFFSETS), OFFSETS)
    committed = checkpoint.list_files(COMMITS)
    others = [seen for seen in checkpoint.list_files() if not seen.path.startswith(f"{COMMITS}/")]
    files = tuple(sorted([*committed, *others], key=lambda seen: seen.path))
    compared = paths_to_compare(files, is_whole=is_whole)
    return CheckpointContents(
        location=checkpoint.location,
        files=files,
        newest_planned_batch=max(planned, default=None),
        texts=_texts(checkpoint, paths_to_read(files, is_whole=is_whole)),
        damaged=damaged_files(checkpoint, files, compared, most_bytes=None if is_whole else MOST_BYTES),
    )


def _texts(checkpoint: ReadableCheckpoint, paths: Sequence[str]) -> Mapping[str, str]:
    with ThreadPoolExecutor(READERS) as pool:
        found = zip(paths, pool.map(checkpoint.read_text, paths), strict=True)
        return {path: text for path, text in found if text is not None}
