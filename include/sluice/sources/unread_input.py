"""The input that a stream has not read yet: the content of its source after the stream's position.

Records and rows are counted from values that `source_heads` has read; files are listed here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import unquote

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.declarations.source_declarations import FilesSource
from sluice.ledger.records.lag import LagObservation
from sluice.settings import ObjectStoreSettings
from sluice.sources.iceberg_positions import TableStep, snapshot_of

BEFORE_ALL_SNAPSHOTS = -1
"""The snapshot id in the first offset of Iceberg's source when the table had no snapshot yet."""

_FILE_LOG = re.compile(r"sources/\d+/(\d+)(\.compact)?")
"""The log of a file source in a checkpoint. Source: org.apache.spark.sql.execution.streaming.FileStreamSourceLog."""


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


def unread_rows(offset: Any, *, history: Sequence[TableStep], after: datetime | None = None) -> LagObservation:
    """Count the appended rows of a table that a reader has not read.

    Parameters
    ----------
    offset: the reader's position: what Iceberg's source writes, parsed from JSON; None before its first batch.
    history: the snapshots of the table, newest first; see `history_of`.
    after: the time after which a reader without a position begins; unset: it begins with the first snapshot.
    """
    position = snapshot_of(offset)
    rows = 0
    for step in history:
        if step.snapshot_id == position:
            return LagObservation(rows=rows + _unread_rows_of(step, read_files=int(offset["position"])))
        is_skipped = position is None and after is not None and step.is_before(after)
        rows += 0 if is_skipped else step.appended_rows
    if position is None or position == BEFORE_ALL_SNAPSHOTS:
        return LagObservation(rows=rows)
    problem = f"its snapshot {position} is no longer in the table's history"
    return LagObservation(rows=None, problem=problem, is_failure=True)


def _unread_rows_of(step: TableStep, *, read_files: int) -> int:
    """The unread rows of a snapshot after `read_files` of its files, assuming that its files are equally large."""
    if step.appended_files == 0:
        return 0
    unread = max(0, step.appended_files - read_files)
    return -(-step.appended_rows * unread // step.appended_files)


def unread_files(
    source: FilesSource, *, root: str, checkpoint: str | None, object_store: ObjectStoreSettings
) -> Collection[str]:
    """List the files of a folder that no planned batch has read, as URIs.

    Parameters
    ----------
    source: the input.
    root: the folder of its connection.
    checkpoint: the stream's checkpoint; None before its first batch.
    object_store: the settings of the S3 store.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    folder = open_checkpoint_files(root, object_store)
    listed = {f"{root.rstrip('/')}/{path}" for path in _present_files(source, folder)}
    if checkpoint is None:
        return listed
    return listed - set(_read_files(open_checkpoint_files(checkpoint, object_store)))


def _present_files(source: FilesSource, folder: CheckpointFiles) -> Iterator[str]:
    """The files that Spark would read: in the folder and in its partitions, such as `day=1`, without hidden ones."""
    parts = [re.escape(part).replace(r"\*", "[^/]*") for part in source.path.strip("/").split("/") if part]
    is_read = re.compile("/".join([*parts, r"(?:[^/_.][^/]*=[^/]*/)*[^/_.][^/]*"]))
    fixed = source.path.partition("*")[0].rpartition("/")[0] if "*" in source.path else source.path.strip("/")
    return (seen.path for seen in folder.list_files(fixed) if is_read.fullmatch(seen.path))


def _read_files(checkpoint: CheckpointFiles) -> Iterator[str]:
    """The files in the logs of all file sources. A compacted log contains everything before it."""
    for seen in checkpoint.list_files("sources"):
        if _FILE_LOG.fullmatch(seen.path):
            for line in (checkpoint.read_text(seen.path) or "").splitlines()[1:]:
                yield unquote(json.loads(line)["path"])
