"""The files that a stream has read, from the logs of its checkpoint.

Spark numbers the entries of a log from 0 on. Now and then it writes all entries so far into one file and later removes
the single ones. Source: org.apache.spark.sql.execution.streaming.FileStreamSourceLog and CompactibleFileStreamLog.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import unquote

from sluice.checkpoints.checkpoint_files import CheckpointFiles

_LOG_FILE = re.compile(r"(sources/\d+)/(\d+)(\.compact)?")


def all_read_files(checkpoint: CheckpointFiles) -> frozenset[str]:
    """Every file in the logs of all sources.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    seen = (one.path for one in checkpoint.list_files("sources") if _LOG_FILE.fullmatch(one.path))
    return frozenset(path for log in seen for path, _ in _entries(checkpoint, log))


def files_read_up_to(newest: int, checkpoint: CheckpointFiles) -> frozenset[str] | None:
    """The files that a stream with one source of files had read, up to and with an entry of its log.

    Returns
    -------
    None when the log is not complete up to there, or a source that is read twice has two logs that differ.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    logs: dict[str, dict[int, str]] = {}
    compacted: dict[str, int] = {}
    for seen in checkpoint.list_files("sources"):
        if (found := _LOG_FILE.fullmatch(seen.path)) is not None:
            source, number = found[1], int(found[2])
            if found[3] is not None:
                compacted[source] = max(number, compacted.get(source, -1))
            logs.setdefault(source, {})[number] = seen.path  # the compacted one comes after the single one
    read = {
        _read_by(checkpoint, files, compacted.get(source, 0), newest)
        for source, files in logs.items()
        if any(True for _ in _entries(checkpoint, files[min(files)]))  # the log of another source names no file
    }
    return read.pop() if len(read) == 1 else None


def _read_by(checkpoint: CheckpointFiles, files: dict[int, str], first: int, newest: int) -> frozenset[str] | None:
    needed = range(first, max(newest, first) + 1)
    texts = [checkpoint.read_text(files[number]) if number in files else None for number in needed]
    if any(text is None for text in texts):
        return None
    return frozenset(path for text in texts for path, number in _files_of(text or "") if number <= newest)


def _entries(checkpoint: CheckpointFiles, log: str) -> Iterator[tuple[str, int]]:
    return _files_of(checkpoint.read_text(log) or "")


def _files_of(text: str) -> Iterator[tuple[str, int]]:
    """The files of a log file with the number of their entry. The first line is the version of its format."""
    for line in text.splitlines()[1:]:
        entry = json.loads(line)
        if isinstance(entry, dict) and "path" in entry:  # other sources keep their first position under such a name
            yield unquote(entry["path"]), int(entry.get("batchId", 0))
