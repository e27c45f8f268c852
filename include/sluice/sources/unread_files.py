"""The files of a folder that a stream has not read: those that lie there, less those that its checkpoint remembers."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from urllib.parse import unquote

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.declarations.sources import FilesSource
from sluice.settings import ObjectStoreSettings

_LOG = re.compile(r"sources/\d+/(\d+)(\.compact)?")
"""The log of a file source in a checkpoint. Source: org.apache.spark.sql.execution.streaming.FileStreamSourceLog."""


def unread_files(
    source: FilesSource, *, root: str, checkpoint: str | None, object_store: ObjectStoreSettings
) -> Collection[str]:
    """The files that no planned batch has read, as URIs.

    Parameters
    ----------
    source: the input. root: the folder of its connection.
    checkpoint: the stream's checkpoint; none before its first batch.
    object_store: how the S3 store is reached.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    listed = {f"{root.rstrip('/')}/{path}" for path in _listed(source, open_checkpoint_files(root, object_store))}
    if checkpoint is None:
        return listed
    return listed - set(_remembered(open_checkpoint_files(checkpoint, object_store)))


def _listed(source: FilesSource, folder: CheckpointFiles) -> Iterator[str]:
    """The files that Spark would read: those of the folder and of its partitions, such as `day=1`, not hidden ones."""
    parts = [re.escape(part).replace(r"\*", "[^/]*") for part in source.path.strip("/").split("/") if part]
    is_read = re.compile("/".join([*parts, r"(?:[^/_.][^/]*=[^/]*/)*[^/_.][^/]*"]))
    fixed = source.path.partition("*")[0].rpartition("/")[0] if "*" in source.path else source.path.strip("/")
    return (seen.path for seen in folder.list_files(fixed) if is_read.fullmatch(seen.path))


def _remembered(checkpoint: CheckpointFiles) -> Iterator[str]:
    """The files in the logs of all file sources. A compacted log holds everything before it."""
    for seen in checkpoint.list_files("sources"):
        if _LOG.fullmatch(seen.path):
            for line in (checkpoint.read_text(seen.path) or "").splitlines()[1:]:
                yield unquote(json.loads(line)["path"])
