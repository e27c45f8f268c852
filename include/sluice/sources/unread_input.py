"""The input that a stream has not read yet, the content of its source after the stream's position, and the files that
were written again after it had read them.

Records and rows are counted from values that `source_heads` has read; files are listed here. Which of them the stream
has read, and how they were then, the logs of its checkpoint say: Spark knows a file by its path alone, so what a second
upload under the same name brings is never read. Spark numbers the entries of a log from 0 on. Now and then it writes
all entries so far into one file and later removes the single ones. Source: `FileStreamSourceLog` and
`CompactibleFileStreamLog` in org.apache.spark.sql.execution.streaming.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from typing import Any
from urllib.parse import unquote

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.declarations.source_declarations import FilesSource, TableBeginning
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError, InputReplacedError
from sluice.ledger.progress_samples import LagObservation
from sluice.settings import FilesConnection, ObjectStoreSettings, Settings
from sluice.sources.iceberg_positions import StreamOffset, TableStep, stream_offset_of

BEFORE_ALL_SNAPSHOTS = -1
"""The snapshot id in the first offset of Iceberg's source when the table had no snapshot yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionBounds:
    """The offset of the first record of a Kafka partition, and the offset that its next record will get."""

    first: int
    end: int


def unread_records(
    offset: Any, *, topics: Mapping[str, Mapping[int, PartitionBounds]], from_the_beginning: bool
) -> LagObservation:
    """Count the records of topics that a reader has not read.

    Records that were removed before they were read are not counted, because they can no longer be read. In a topic with
    transactions, offsets also count transaction markers; the result is then slightly too large.

    Parameters
    ----------
    offset: the reader's position as Spark's Kafka source writes it: topic → partition → next offset. None before its
        first batch.
    topics: the bounds of each partition, by topic.
    from_the_beginning: whether a partition without a position is read from its first record.
    """
    if offset is None and not from_the_beginning:
        return LagObservation(rows=None, problem="the stream starts at the newest record and has not started yet")
    positions = offset if isinstance(offset, Mapping) else {}
    return LagObservation(
        rows=sum(
            max(0, bounds.end - max(bounds.first, int(positions.get(topic, {}).get(str(partition), bounds.first))))
            for topic, partitions in topics.items()
            for partition, bounds in partitions.items()
        )
    )


def is_at_end(offset: Any, *, topics: Mapping[str, Mapping[int, PartitionBounds]]) -> bool:
    """Whether a reader's position is the end of every partition: then nothing is unread, and nothing was lost before it
    was read. offset, topics: as for `unread_records`.
    """
    ends = {topic: {str(number): bounds.end for number, bounds in found.items()} for topic, found in topics.items()}
    return bool(offset == ends)


def unread_rows(offset: Any, *, history: Sequence[TableStep], starting: TableBeginning = "table") -> LagObservation:
    """Count the appended rows of a table that a reader has not read.

    Parameters
    ----------
    offset: the reader's position: what Iceberg's source writes, parsed from JSON; None before its first batch.
    history: the snapshots of the table, newest first; see `history_of`.
    starting: where a reader without a position begins, as declared.
    """
    at = stream_offset_of(offset)
    if at is None:
        return _unread_from_the_start(history, starting)
    rows = 0
    for step in history:
        if step.snapshot_id == at.snapshot_id:
            return LagObservation(rows=rows + _unread_rows_of(step, at))
        rows += step.appended_rows
    if at.snapshot_id == BEFORE_ALL_SNAPSHOTS:
        return LagObservation(rows=rows)
    problem = f"its snapshot {at.snapshot_id} is no longer in the table's history"
    return LagObservation(rows=None, problem=problem, is_failure=True)


def steps_after(offset: Any, *, history: Sequence[TableStep]) -> Sequence[TableStep]:
    """The snapshots after a position, newest first; all of them without one. offset, history: as for `unread_rows`."""
    at = stream_offset_of(offset)
    return tuple(takewhile(lambda step: at is None or step.snapshot_id != at.snapshot_id, history))


def has_to_pass(offset: Any, *, history: Sequence[TableStep], failing: Mapping[str, bool]) -> bool:
    """Whether a reader has to come past a snapshot though no row of it is unread. One without a position begins with
    what an erasure has left.

    Parameters
    ----------
    offset, history: as for `unread_rows`. failing: whether it fails at an operation.
    """
    later = steps_after(offset, history=history)
    is_started = stream_offset_of(offset) is not None
    return any(failing.get(step.operation, False) or (is_started and step.is_of_erasure) for step in later)


def _unread_from_the_start(history: Sequence[TableStep], starting: TableBeginning) -> LagObservation:
    """The unread rows of a reader without a position."""
    if isinstance(starting, datetime):
        return LagObservation(rows=sum(step.appended_rows for step in history if not step.is_before(starting)))
    if starting != "table":
        return LagObservation(rows=None, problem="the stream begins after a snapshot and has not started yet")
    held = history[0].total_rows if history else 0
    return LagObservation(rows=held if held is not None else sum(step.appended_rows for step in history))


def _unread_rows_of(step: TableStep, at: StreamOffset) -> int:
    """The unread rows of a snapshot behind an offset in it, assuming that its files are equally large."""
    files, rows = (
        (step.total_files or 0, step.total_rows or 0)
        if at.scan_all_files
        else (step.appended_files, step.appended_rows)
    )
    unread = max(0, files - at.position)
    return -(-rows * unread // files) if files else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderObservation:
    """A folder beside what its reader has read.

    unread: those files that no planned batch has read, as URIs.
    changed: those that were read and were written again since. Their new content is never read: Spark knows a file by
        its path alone.
    """

    unread: frozenset[str]
    changed: frozenset[str]


def observe_folder(
    source: FilesSource,
    *,
    root: str,
    checkpoint: str | None,
    object_store: ObjectStoreSettings,
    skips_closed: bool = False,
) -> FolderObservation:
    """Compare the files of a folder with those that a stream has read, by path and time of change, as URIs.

    Parameters
    ----------
    source: the input.
    root: the folder of its connection.
    checkpoint: the stream's checkpoint; None before its first batch.
    object_store: the settings of the S3 store.
    skips_closed: whether a local file or folder that may not be looked at is left out, with a warning.

    Raises
    ------
    CheckpointError: when a storage does not answer.
    """
    folder = open_checkpoint_files(root, object_store, skips_closed=skips_closed)
    present = _present_in(folder, source, root=root)
    if checkpoint is None:
        return FolderObservation(unread=frozenset(present), changed=frozenset())
    read = read_file_times(open_checkpoint_files(checkpoint, object_store))
    return FolderObservation(unread=frozenset(present.keys() - read.keys()), changed=_changed(present, read))


def written_again(present: Mapping[str, FileObservation], checkpoint: CheckpointFiles) -> frozenset[str]:
    """Those of some files that were written again since a stream has read them.

    Parameters
    ----------
    present: as they are now, by URI. checkpoint: of the stream.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    return _changed(present, read_file_times(checkpoint))


def _changed(present: Mapping[str, FileObservation], read_ms: Mapping[str, frozenset[int]]) -> frozenset[str]:
    return frozenset(
        path
        for path in present.keys() & read_ms.keys()
        if not any(is_same_time(_milliseconds(present[path]), known) for known in read_ms[path])
    )


def read_file_times(checkpoint: CheckpointFiles) -> Mapping[str, frozenset[int]]:
    """When each read file had been changed last as it was read, in milliseconds since 1970, by URI. An input that is
    read twice has read it twice.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    seen = (one.path for one in checkpoint.list_files("sources") if _LOG_FILE.fullmatch(one.path))
    times: dict[str, set[int]] = {}
    for log in seen:
        for entry in _entries_of(checkpoint.read_text(log) or ""):
            times.setdefault(unquote(entry["path"]), set()).add(int(entry.get("timestamp", 0)))
    return {path: frozenset(found) for path, found in times.items()}


def is_same_time(first_ms: int, second_ms: int) -> bool:
    """Whether two times of change are the same one. Some answers of an object store have whole seconds only."""
    is_rounded = first_ms % 1000 == 0 or second_ms % 1000 == 0
    return first_ms == second_ms or (is_rounded and first_ms // 1000 == second_ms // 1000)


def _milliseconds(seen: FileObservation) -> int:
    """The time as Hadoop gives it: whole milliseconds, and of an object store whole seconds."""
    return math.floor(round(seen.modified_at.timestamp() * 1_000_000) / 1000)


def present_files(
    source: FilesSource, *, root: str, object_store: ObjectStoreSettings
) -> Mapping[str, FileObservation]:
    """List the files of a folder that Spark would read, by URI. source, root, object_store: as for `observe_folder`.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    return _present_in(open_checkpoint_files(root, object_store), source, root=root)


def _present_in(folder: CheckpointFiles, source: FilesSource, *, root: str) -> Mapping[str, FileObservation]:
    return {f"{root.rstrip('/')}/{seen.path}": seen for seen in _present(source, folder)}


def _present(source: FilesSource, folder: CheckpointFiles) -> Iterator[FileObservation]:
    """The files that Spark would read: below the folder, without hidden ones and those in hidden folders.

    Source: `HadoopFSUtils.shouldFilterOutPathName` of Spark 4.1.
    """
    parts = [re.escape(part).replace(r"\*", "[^/]*") for part in source.path.strip("/").split("/") if part]
    seen_part = r"(?!\.|_[^/=]*(?:/|$)|[^/]*\._COPYING_(?:/|$))[^/]+"
    is_read = re.compile("/".join([*parts, rf"(?:{seen_part}/)*{seen_part}"]))
    fixed = source.path.partition("*")[0].rpartition("/")[0] if "*" in source.path else source.path.strip("/")
    return (seen for seen in folder.list_files(fixed) if is_read.fullmatch(seen.path))


_LOG_FILE = re.compile(r"(sources/\d+)/(\d+)(\.compact)?")


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
    """The files of a log file with the number of their entry."""
    for entry in _entries_of(text):
        yield unquote(entry["path"]), int(entry.get("batchId", 0))


def _entries_of(text: str) -> Iterator[dict[str, Any]]:
    """The entries of a log file. The first line is the version of its format."""
    for line in text.splitlines()[1:]:
        entry = json.loads(line)
        if isinstance(entry, dict) and "path" in entry:  # other sources keep their first position under such a name
            yield entry


_log = logging.getLogger(__name__)

_MOST_NAMED = 3
"""How many files a message names."""

RESTORE_FILES = (
    "Put the new content there under another name and restore the file with its time of last change (an object store "
    "cannot)"
)
"""The beginning of what can be done about files that were written again."""


def changed_phrase(changed: Collection[str]) -> str:
    """A phrase for files that were written again after they were read."""
    what = "file was" if len(changed) == 1 else "files were"
    return f"{len(changed)} {what} written again after being read: {_named(changed)}"


def gone_phrase(gone: Collection[str]) -> str:
    """A phrase for files that are not there any more."""
    return f"of the files that the stream has read, {len(gone)} are gone: {_named(gone)}"


def _named(paths: Collection[str]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return f"{', '.join(sorted(paths)[:_MOST_NAMED])}{more}"


def require_unchanged_files(declaration: StreamDeclaration, settings: Settings, *, checkpoint: str) -> None:
    """Check the folders of a stream. With `on_changed: ignore` a change is logged.

    Raises
    ------
    InputReplacedError: when a file was written again after it was read.
    SettingsError: when the deployment does not have a connection.
    """
    for name, declared in declaration.inputs.items():
        source = declared.declared_source.source
        if not declared.is_stream or not isinstance(source, FilesSource):
            continue
        root = settings.connection(source.connection, FilesConnection).root
        try:
            seen = observe_folder(
                source, root=root, checkpoint=checkpoint, object_store=settings.object_store, skips_closed=True
            )
        except CheckpointError as error:  # only Spark reads it, or its storage is away
            _log.warning("input %s: whether files were written again is unknown: %s", name, error)
            continue
        if not seen.changed:
            continue
        if source.on_changed == "ignore":
            _log.warning("input %s: %s; the new content is not read", name, changed_phrase(seen.changed))
            continue
        raise InputReplacedError(
            f"Stream {declaration.stream}, input {name}: {changed_phrase(seen.changed)}.",
            next_step=f"{RESTORE_FILES}, or remove the file; with `on_changed: ignore` the stream continues without "
            "the new content.",
        )
