"""The offsets of Iceberg's streaming source: `{version, snapshot_id, position, scan_all_files}`.

The source keeps its first one in the checkpoint, below `sources/<number>/offsets/0`.
Source: org.apache.iceberg.spark.source.StreamingOffset and SparkMicroBatchStream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from sluice.checkpoints.checkpoint_files import CheckpointFiles

_FIRST_OFFSET = re.compile(r"sources/(\d+)/offsets/0")
_FIELDS = frozenset({"version", "snapshot_id", "position", "scan_all_files"})


def snapshot_of(offset: object) -> int | None:
    """The snapshot of one of Iceberg's offsets, as text or already read; unset when another kind of source wrote it."""
    content = offset
    if isinstance(offset, str):
        try:
            content = json.loads(offset)
        except ValueError:  # the offset of a source that does not write JSON
            return None
    if not isinstance(content, Mapping) or not _FIELDS.issuperset(content) or "snapshot_id" not in content:
        return None
    return int(content["snapshot_id"])


def first_offsets(checkpoint: CheckpointFiles) -> Mapping[int, int]:
    """The snapshot of the first offset of every Iceberg source, by the source's number.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    found = {}
    for seen in checkpoint.list_files("sources"):
        match = _FIRST_OFFSET.fullmatch(seen.path)
        snapshot_id = snapshot_of(checkpoint.read_text(seen.path)) if match else None
        if match and snapshot_id is not None:
            found[int(match[1])] = snapshot_id
    return dict(sorted(found.items()))
