"""The entries of the offset log and the commit log of a checkpoint, and its `metadata`. Pure.

An entry of the offset log has a version, the metadata of the batch as JSON, and a line for each place in which the
query reads a source. An entry of the commit log has a version and the watermark behind the batch. Source: Spark 4.1's
`OffsetSeqLog` and `CommitLog`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

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
