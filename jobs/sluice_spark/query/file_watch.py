"""Looks at the files of a batch before it is delivered, and puts away those of the batch before it.

Spark's source of files writes which files a batch has into a log of its own, one entry for each batch that it plans.
From there the files of a batch are known before any of them is read.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from sluice.declarations.source_declarations import FilesSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError
from sluice.settings import FilesConnection, Settings
from sluice.sources.seen_schemas import SchemaSightings
from sluice.sources.unread_input import is_same_time
from sluice_spark.session.checkpoint_metadata import find_log_text, log_names
from sluice_spark.session.jvm import jvm_of
from sluice_spark.sources.file_heads import FileHeads
from sluice_spark.sources.files import location_below, require_declared_columns

_log = logging.getLogger(__name__)

Rows = TypeVar("Rows")
BatchEnds = Callable[[int], tuple[str, str]]
"""The start and the end offsets of a batch, as JSON by input."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesWatch:
    """Looks at the inputs of files of one run.

    settings: the connections of the deployment. checkpoint: its folder.
    sources: the input of each source of the query, in Spark's order. ends_of: of a batch.
    sightings: keeps the schemas of files.
    """

    spark: SparkSession
    declaration: StreamDeclaration
    settings: Settings
    checkpoint: str
    sources: Sequence[str]
    ends_of: BatchEnds
    sightings: SchemaSightings

    def ahead_of(self, deliver: Callable[[Rows, int], None]) -> Callable[[Rows, int], None]:
        """Wrap the delivery of batches; without an input of files `deliver` itself is returned.

        The wrapped one raises a SchemaError when a file of the batch does not have the declared columns.
        """
        if not dict(self._inputs()):
            return deliver

        heads = FileHeads(self.spark, self.settings)

        def look_and_deliver(rows: Rows, batch: int) -> None:
            start, end = (json.loads(text) for text in self.ends_of(batch))
            for number, source in self._inputs():
                name = self.sources[number]
                paths = (path for path, _ in self.files_between(number, _entry(start, name), _entry(end, name)))
                see = partial(self.sightings.see_file, name.partition(" (")[0], source)
                require_declared_columns(heads, source, paths, see=see)
                if source.afterwards != "keep" and batch > 0:
                    before, _ = (json.loads(text) for text in self.ends_of(batch - 1))
                    self._put_away(source, self.files_between(number, _entry(before, name), _entry(start, name)))
            self.sightings.end_files()
            deliver(rows, batch)

        return look_and_deliver

    def _inputs(self) -> Iterator[tuple[int, FilesSource]]:
        for number, name in enumerate(self.sources):
            declared = self.declaration.inputs.get(name.partition(" (")[0])
            if declared is not None and isinstance(source := declared.declared_source.source, FilesSource):
                yield number, source

    def _put_away(self, source: FilesSource, done: Iterable[tuple[str, int]]) -> None:
        """Delete or archive the files of a batch that is committed; one that was written again since stays."""
        jvm = jvm_of(self.spark)
        for uri, read_ms in done:
            path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(uri))
            files = path.getFileSystem(self.spark._jsparkSession.sessionState().newHadoopConf())
            if not files.exists(path):
                continue
            if not is_same_time(int(files.getFileStatus(path).getModificationTime()), read_ms):
                _log.warning("%s was written again after it was read: it stays, and its new content is not read", uri)
            elif source.afterwards == "delete":
                files.delete(path, False)
            else:
                archived = jvm.org.apache.hadoop.fs.Path(self._archive_of(source) + str(path.toUri().getPath()))
                files.mkdirs(archived.getParent())
                if not files.rename(path, archived):
                    _log.warning("%s was read and stays: %s exists, or cannot be written", uri, archived.toString())

    def _archive_of(self, source: FilesSource) -> str:
        connection = self.settings.connection(source.connection, FilesConnection)
        return location_below(connection, source.archive_path or "")

    def files_between(self, source: int, start: int, end: int) -> Iterator[tuple[str, int]]:
        """The files of the entries behind one and up to another, as Spark writes them: percent-encoded URIs, each with
        the time of its last change in milliseconds since 1970."""
        for entry in range(start + 1, end + 1):
            for seen in self._entries(source, entry):
                if seen.get("batchId") == entry:
                    yield str(seen["path"]), int(seen["timestamp"])

    def _names(self, folder: str, entry: int) -> Iterator[str]:
        """Where an entry may be. Spark deletes it some time after the next compacted one has taken it in, which has
        all before it."""
        yield str(entry)
        names = (name.partition(".") for name in log_names(self.spark, self.checkpoint, folder))
        later = sorted(int(number) for number, _, kind in names if kind == "compact" and int(number) >= entry)
        yield from (f"{number}.compact" for number in later)

    def _entries(self, source: int, entry: int) -> Iterator[Mapping[str, Any]]:
        folder = f"sources/{source}"
        for name in self._names(folder, entry):
            if (text := find_log_text(self.spark, self.checkpoint, f"{folder}/{name}")) is not None:
                yield from (json.loads(line) for line in text.splitlines()[1:])
                return
        raise CheckpointError(
            f"sources/{source}/{entry} of the checkpoint {self.checkpoint} is missing: it names the files of a batch.",
            next_step="Restore the checkpoint.",
        )


def _entry(offsets: Mapping[str, object], name: str) -> int:
    """The entry at which a source of files stands; -1 before its first one."""
    offset = offsets.get(name)
    return int(offset["logOffset"]) if isinstance(offset, Mapping) else -1
