"""Observes how far each input of a stream can be read for a backfill, one way for each kind of source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog

from sluice.backfill.backfill_plan import PublishedBatch
from sluice.backfill.file_bounds import bound_of_files
from sluice.backfill.intervals import Interval
from sluice.backfill.read_bounds import FilesBound, InputBound, TopicBound
from sluice.backfill.source_bounds import bound_of
from sluice.backfill.topic_bounds import bound_of_topics
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import FilesSource, IcebergSource, KafkaSource
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import find_generation
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.tables.declared_tables import require_table


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedInputs:
    """The inputs of a stream from which rows arrive. generation: of the mark. wide: the interval with its margin."""

    catalog: Catalog
    ledger: Ledger
    stream: LoadedStream
    settings: Settings
    generation: int
    wide: Interval

    def bounds(self, published: PublishedBatch) -> Iterator[InputBound]:
        """How far each is read.

        Raises
        ------
        LakehouseError, CheckpointError, LedgerError: when a source, a table or the ledger cannot be reached.
        SettingsError: when the deployment lacks a connection.
        """
        for name in self.stream.declaration.inputs:
            bound = self._bound(name, published)
            if bound is not None and not bound.problem and not _is_read_evenly(name, published):
                problem = "it is read twice, and not equally far."
                bound = replace(bound, problem=problem)
            if bound is not None:
                yield bound

    def _bound(self, name: str, published: PublishedBatch) -> InputBound | None:
        backfill, declared = self.stream.declaration.backfill, self.stream.declaration.inputs[name]
        if not declared.is_stream:
            return None
        column = backfill.reads.get(name) if backfill is not None else None
        offset = published.end_offsets.get(name)
        match declared.declared_source.source:
            case IcebergSource() as source:
                return bound_of(offset, require_table(self.catalog, source.table), input_name=name, column=column)
            case KafkaSource() as source:
                return self._topics(name, source, offset, column)
            case FilesSource() as source:
                return self._files(name, source, published, column)
        return None  # a declaration with another source is refused

    def _topics(self, name: str, source: KafkaSource, offset: object, column: str | None) -> TopicBound:
        from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

        topics = KafkaTopics(self.settings.connection(source.connection, KafkaConnection))
        return bound_of_topics(offset, topics, source, input_name=name, column=column, wide=self.wide)

    def _files(self, name: str, source: FilesSource, published: PublishedBatch, column: str | None) -> FilesBound:
        generation = find_generation(self.ledger, self.stream.name)
        if generation is None or generation.generation != self.generation:
            problem = "the files that the stream has read are not known before its next batch."
            return FilesBound(input=name, column=column, problem=problem)
        return bound_of_files(
            published.end_offsets.get(name),
            source,
            input_name=name,
            column=column,
            root=self.settings.connection(source.connection, FilesConnection).root,
            checkpoint=generation.checkpoint,
            object_store=self.settings.object_store,
        )


def _is_read_evenly(name: str, published: PublishedBatch) -> bool:
    """Whether an input that is joined with itself was read equally far both times; each has an offset of its own."""
    offsets = published.end_offsets
    return all(offsets[one] == offsets.get(name) for one in offsets if one.startswith(f"{name} ("))
