"""Observes a checkpoint without Spark, also while a driver writes it, and compares its files with their checksums.

Hadoop writes `.NAME.crc` beside each file on a local disk: `crc`, a zero, the length of a block, and a CRC-32 for each
block. Spark writes `NAME.crc` beside each file of the state, on every storage: JSON with a CRC-32C of the whole.
Source: Hadoop's `ChecksumFileSystem`, and Spark 4.1's `ChecksumCheckpointFileManager`.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import google_crc32c

from sluice.checkpoints.checkpoint_files import ReadableCheckpoint
from sluice.checkpoints.checkpoint_layout import (
    COMMITS,
    OFFSETS,
    CheckpointContents,
    FileObservation,
    checksum_path,
    hidden_checksum_path,
    log_files,
    paths_to_compare,
    paths_to_read,
)

MOST_BYTES = 64 * 1024**2
"""How much of one checkpoint a scheduled check reads, the smallest files first: below a second on any storage. A start
compares every file that it loads."""

_READERS = 8
"""How many files are read at once: enough to hide an object store's latency."""

_HADOOP_HEADER = struct.Struct(">4si")
_HADOOP_MAGIC = b"crc\0"


def damaged_files(
    checkpoint: ReadableCheckpoint, listed: Sequence[FileObservation], wanted: Sequence[str], *, most_bytes: int | None
) -> frozenset[str]:
    """Those of some files that are not what was written.

    Parameters
    ----------
    listed: every file of the checkpoint. wanted: the paths to compare; those without a checksum are left out.
    most_bytes: how much is read at most; unset: all of it.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    names = {seen.path for seen in listed}
    chosen = list(_within(listed, frozenset(wanted), most_bytes))
    with ThreadPoolExecutor(_READERS) as pool:
        found = pool.map(lambda path: _is_damaged(checkpoint, path, names), chosen)
        return frozenset(path for path, is_damaged in zip(chosen, found, strict=True) if is_damaged)


def _within(listed: Sequence[FileObservation], wanted: frozenset[str], most_bytes: int | None) -> Iterator[str]:
    read = 0
    for seen in sorted((one for one in listed if one.path in wanted), key=lambda one: one.size_bytes):
        read += seen.size_bytes
        if most_bytes is not None and read > most_bytes:
            return
        yield seen.path


def _is_damaged(checkpoint: ReadableCheckpoint, path: str, names: set[str]) -> bool:
    hidden, beside = hidden_checksum_path(path), checksum_path(path)
    if hidden not in names and beside not in names:
        return False
    content = checkpoint.read_bytes(path)
    if content is None:  # Spark removes old files while it runs
        return False
    if hidden in names and (blocks := checkpoint.read_bytes(hidden)) is not None:
        return not _fits_blocks(content, blocks)
    recorded = checkpoint.read_text(beside) if beside in names else None
    return recorded is not None and not _fits_whole(content, recorded)


def _fits_blocks(content: bytes, checksums: bytes) -> bool:
    """Whether a content has Hadoop's checksums. Checksums of another form say nothing."""
    if len(checksums) < _HADOOP_HEADER.size or not checksums.startswith(_HADOOP_MAGIC):
        return True
    _, length = _HADOOP_HEADER.unpack_from(checksums)
    blocks = (content[start : start + length] for start in range(0, len(content), length))
    return checksums[_HADOOP_HEADER.size :] == b"".join(struct.pack(">I", zlib.crc32(block)) for block in blocks)


def _fits_whole(content: bytes, recorded: str) -> bool:
    """Whether a content has the checksum that Spark recorded. A record of another form says nothing."""
    try:
        known = json.loads(recorded)
        if known["algorithm"] != "CRC32C":
            return True
        return bool(google_crc32c.value(content) == int(known["value"]) % 2**32)
    except (ValueError, KeyError, TypeError):
        return True


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
    with ThreadPoolExecutor(_READERS) as pool:
        found = zip(paths, pool.map(checkpoint.read_text, paths), strict=True)
        return {path: text for path, text in found if text is not None}
