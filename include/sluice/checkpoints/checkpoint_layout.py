"""The files of a checkpoint as Spark lays them out: which file is which by its path, and the entries of its logs.

An entry of the offset log has a version, the metadata of the batch as JSON, and a line for each place in which the
query reads a source. An entry of the commit log has a version and the watermark behind the batch.

Source: Spark 4.1's `CheckpointFileManager`, `HDFSMetadataLog`, `OffsetSeqLog`, `CommitLog`,
`HDFSBackedStateStoreProvider` and `RocksDBFileManager`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sluice.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class FileObservation:
    """One file of a checkpoint, or of another folder.

    path: below the folder, with forward slashes.
    version: what an object store changes with the content, also within the second of `modified_at`; empty elsewhere.
    """

    path: str
    size_bytes: int
    modified_at: datetime
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointContents:
    """The contents of a checkpoint folder: name, size and age of every file, and the text of the few that are checked.

    newest_planned_batch: the newest batch of the offset log *before* the commit log was listed. A live stream continues
        meanwhile, so only then a batch without a commit is really uncommitted.
    texts: by path: `metadata`, the newest files of the offset and the commit log, and the checksums of the newest
        state files. A file that Spark removed in between has none.
    damaged: the files that are not what was written, by the checksums beside them.
    """

    location: str
    files: tuple[FileObservation, ...]
    newest_planned_batch: int | None
    texts: Mapping[str, str]
    damaged: frozenset[str] = frozenset()


METADATA = "metadata"

OFFSETS = "offsets"

COMMITS = "commits"

BEGUN = "begun"
"""Not Spark's: a file that a run writes once its query has started. A continuation that is not started has none, and
neither has what a command that died has left of one."""

TEXTS_OF_A_LOG = 3
"""How many of the newest files of a log are read: a restart reads the last two, and one more shows that they agree."""

_OPERATOR = re.compile(r"state/(?P<operator>\d+)/_metadata/(metadata|v2/(?P<batch>\d+))")
"""What Spark notes of each operator with state: at its first batch, and where its state has a schema, again later."""

_STATE_FILE = re.compile(r"(?P<version>\d+)(_[0-9a-f-]+)?\.(?P<kind>delta|changelog|snapshot|zip)")

CHECKSUM_SUFFIX = ".crc"

_FULL_KINDS = frozenset({"snapshot", "zip"})


def is_hidden(path: str) -> bool:
    """Whether a file is Hadoop's own: a checksum or an unfinished file. Its name starts with a dot."""
    return path.rpartition("/")[2].startswith(".")


def log_files(files: Iterable[FileObservation], log: str) -> Mapping[int, FileObservation]:
    """The files of the offset or the commit log, by batch number, in rising order."""
    found = {}
    for seen in files:
        folder, _, name = seen.path.rpartition("/")
        if folder == log and name.isdecimal():
            found[int(name)] = seen
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """One file of a state store: the changes that lead to `version`, or the full state at it (`is_full`)."""

    version: int
    is_full: bool
    file: FileObservation


def state_stores(files: Iterable[FileObservation]) -> Mapping[str, Sequence[StateFile]]:
    """The files of every state store, by the store's folder (`state/<operator>/<partition>[/<name>]`)."""
    stores: dict[str, list[StateFile]] = {}
    for seen in files:
        folder, _, name = seen.path.rpartition("/")
        match = _STATE_FILE.fullmatch(name)
        if match is None or not folder.startswith("state/") or "_metadata" in folder:
            continue
        found = StateFile(version=int(match["version"]), is_full=match["kind"] in _FULL_KINDS, file=seen)
        stores.setdefault(folder, []).append(found)
    return dict(sorted(stores.items()))


def operator_files(files: Iterable[FileObservation]) -> Mapping[str, FileObservation]:
    """The newest file with what Spark notes of each operator with state, by the operator's number."""
    found: dict[str, tuple[int, FileObservation]] = {}
    for seen in files:
        if (match := _OPERATOR.fullmatch(seen.path)) is not None:
            batch = int(match["batch"] or 0)
            if match["operator"] not in found or batch >= found[match["operator"]][0]:
                found[match["operator"]] = (batch, seen)
    return {operator: seen for operator, (_, seen) in found.items()}


def needed_state_files(store: Sequence[StateFile], version: int) -> tuple[StateFile, ...]:
    """The files that are read to load a store at `version`: the newest full state up to it, and all later changes."""
    upto = [found for found in store if found.version <= version]
    base = max((found.version for found in upto if found.is_full), default=0)
    return tuple(found for found in upto if (found.version == base and found.is_full) or found.version > base)


def checksum_path(path: str) -> str:
    """The path of the checksum that Spark 4.1 writes for a state file."""
    return f"{path}{CHECKSUM_SUFFIX}"


def hidden_checksum_path(path: str) -> str:
    """The path of the checksums that Hadoop writes beside a file on a local disk."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}.{name}{CHECKSUM_SUFFIX}"


def paths_to_compare(files: Sequence[FileObservation], *, is_whole: bool = False) -> tuple[str, ...]:
    """The files that are compared with their checksums.

    Parameters
    ----------
    is_whole: whether the whole state is, and not only what a start loads.
    """
    state = [found.file.path for store in state_stores(files).values() for found in store]
    return (*_log_paths(files, is_whole=is_whole), *(state if is_whole else _loaded_paths(files)))


def paths_to_read(files: Sequence[FileObservation], *, is_whole: bool = False) -> tuple[str, ...]:
    """The files whose text a check needs; the others are checked by name, size and age.

    Parameters
    ----------
    is_whole: whether every entry of the logs is read.
    """
    listed = {seen.path for seen in files}
    compared = paths_to_compare(files, is_whole=is_whole)
    state = (checksum_path(path) for path in compared if path.startswith("state/"))
    operators = (seen.path for seen in operator_files(files).values())
    return tuple(name for name in (*_log_paths(files, is_whole=is_whole), *state, *operators) if name in listed)


def _log_paths(files: Sequence[FileObservation], *, is_whole: bool) -> list[str]:
    logs = (log_files(files, OFFSETS), log_files(files, COMMITS))
    newest = 0 if is_whole else -TEXTS_OF_A_LOG
    return [METADATA, *(seen.path for log in logs for seen in list(log.values())[newest:])]


def _loaded_paths(files: Sequence[FileObservation]) -> list[str]:
    """The files from which a start loads the state: at the newest commit."""
    commits = log_files(files, COMMITS)
    return [
        needed.file.path
        for store in (state_stores(files).values() if commits else ())
        for needed in needed_state_files(store, max(commits) + 1)
    ]


HEADER_LINES = 2
"""Of an entry of the offset log: the version, and the metadata of the batch."""

NO_OFFSET = "-"
"""The line of a place from which nothing was read."""

EMPTY_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark writes into the commit log for a batch of a query without event time."""

_WATERMARK, _NEXT_WATERMARK = "batchWatermarkMs", "nextBatchWatermarkMs"
"""The watermark of a batch in the offset log, and the one behind it in the commit log."""


def query_id_in(text: str) -> str | None:
    """The id of the query in a `metadata`; none where it has none."""
    try:
        found = json.loads(text)["id"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def entry_of(metadata: str, offsets: Sequence[str | None]) -> str:
    """An entry of the offset log. offsets: by place; none where nothing was read."""
    return "\n".join(["v1", metadata, *(NO_OFFSET if one is None else one for one in offsets)])


def metadata_of(entry: str) -> str:
    """The metadata of a batch, as JSON, from its entry of the offset log."""
    return entry.splitlines()[HEADER_LINES - 1]


def offsets_of(entry: str) -> tuple[str | None, ...]:
    """The end offsets of a batch by place, from its entry of the offset log; none where nothing was read."""
    return tuple(None if line == NO_OFFSET else line for line in entry.splitlines()[HEADER_LINES:])


def batch_metadata(conf: Mapping[str, str], *, planned_at: datetime, watermark: datetime | None) -> str:
    """The metadata of a batch.

    Parameters
    ----------
    conf: the settings that the checkpoint keeps; those that are missing are the session's. watermark: of the batch.
    """
    content: dict[str, Any] = {
        _WATERMARK: milliseconds(watermark),
        "batchTimestampMs": milliseconds(planned_at),
        "conf": dict(conf),
    }
    return json.dumps(content, separators=(",", ":"))


def planned_time(metadata: Mapping[str, Any]) -> datetime:
    """When a batch was planned, by its metadata; 1970 where that does not say."""
    return datetime.fromtimestamp(int(metadata.get("batchTimestampMs", 0)) / 1000, UTC)


def milliseconds(moment: datetime | None) -> int:
    """Milliseconds since 1970, as Spark counts event time; 0 without one."""
    return 0 if moment is None else round(moment.timestamp() * 1000)


def next_batch_metadata(metadata: str, commit: str) -> str:
    """The metadata of the next batch: Spark takes the watermark of a planned batch from there, and not from the commit
    before it."""
    content = json.loads(metadata)
    content[_WATERMARK] = max(content.get(_WATERMARK, 0), watermark_behind(commit))
    return json.dumps(content, separators=(",", ":"))


def commit_behind(metadata: str) -> str:
    """The entry of the commit log for a batch that leaves the watermark where it was, by the batch's metadata."""
    return "v1\n" + json.dumps({_NEXT_WATERMARK: json.loads(metadata).get(_WATERMARK, 0)}, separators=(",", ":"))


def watermark_behind(commit: str) -> int:
    """The watermark behind a batch, in milliseconds, from its entry of the commit log."""
    return int(json.loads(commit.strip().splitlines()[-1]).get(_NEXT_WATERMARK, 0))


REPLAY = "replay"
"""Not Spark's: the batches that a repair leaves in a checkpoint, for the next run to take the state through. Spark runs
one planned batch and continues behind it, so those that follow cannot stand in its offset log."""


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


def refuse_pending_replay(stream: str, files: Iterable[FileObservation]) -> None:
    """Refuse what would take the state of a stream for that of its tables while batches are left to run again.

    Parameters
    ----------
    files: of its checkpoint, or below `REPLAY`.

    Raises
    ------
    UsageError: with these batches.
    """
    if left := replayed_batches(files):
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
