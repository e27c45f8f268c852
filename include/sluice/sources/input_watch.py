"""Watches the inputs of a run before each batch: they must be the same things, with the fields that the plan reads,
and what is skipped of them is added to the observation of the batch.

A declaration asks for the count of skipped input with `on_data_loss: count` of a Kafka input or `skip` of an Iceberg
input. Every other input stops the stream instead, and its source is not observed. Skipped input is what the source lost
before it was read, or what the declaration excludes; it is a function of offsets and of what the sources hold.

A topic that appears while a run reads all whose names match has an id from its first look on. It is kept then: at the
next start, what has its name may be another one already.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.source_declarations import IcebergSource, KafkaSource
from sluice.errors import CheckpointError, LakehouseError, LedgerError, SettingsError
from sluice.ledger.batches import BatchObservation
from sluice.settings import KafkaConnection, Settings
from sluice.sources.iceberg_positions import (
    StreamOffset,
    TableStep,
    first_offsets,
    history_of,
    snapshot_of,
    stream_offset_of,
)
from sluice.sources.seen_schemas import SchemaSightings
from sluice.sources.source_identities import (
    PLANS_AGAIN,
    Identities,
    SourceFields,
    answer_to_fields,
    changed_fields,
    fields_of,
    find_replaced,
    input_table_name,
    topic_identities,
)
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import load_table, require_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from sluice.declarations.stream_declaration import StreamDeclaration
    from sluice.sources.kafka_topics import KafkaTopics

_log = logging.getLogger(__name__)

Rows = TypeVar("Rows")


class InputChangedError(Exception):
    """An input is not what the plan of a run was made with. The run delivers no further batch and plans again."""


class InputWatch:
    """Compares the inputs of one run with what it was planned with.

    Parameters
    ----------
    declaration: the stream. settings: the connections and the catalog of the deployment.
    identities: the ids that the run has begun with, and those of what was not there then.
    keep: keeps the ids of topics that have none yet. A ledger that is away stops no batch: it is asked with the next.
    fields: of each Iceberg table that the plan reads as it is, by name.
    sightings: keeps the schemas that are seen.
    """

    def __init__(
        self,
        declaration: StreamDeclaration,
        settings: Settings,
        *,
        identities: Identities,
        keep: Callable[[Identities], object],
        fields: Mapping[str, SourceFields],
        sightings: SchemaSightings,
    ) -> None:
        self._settings = settings
        self._identities = dict(identities)
        self._keep = keep
        self._unkept: dict[str, str] = {}
        self._fields = fields
        self._sightings = sightings
        streamed = [one.declared_source.source for one in declaration.inputs.values() if one.is_stream]
        self._topics = [source for source in streamed if isinstance(source, KafkaSource)]
        tables = [source.table for source in streamed if isinstance(source, IcebergSource)]
        self._tables = tuple(dict.fromkeys([*tables, *fields]))
        self._clients: dict[str, KafkaTopics] = {}

    def ahead_of(self, deliver: Callable[[Rows, int], None]) -> Callable[[Rows, int], None]:
        """Wrap the delivery of batches. The wrapped one raises what `look` raises, and delivers nothing then; without
        such an input, `deliver` itself is returned."""
        if not self._topics and not self._tables:
            return deliver

        def look_and_deliver(rows: Rows, batch: int) -> None:
            self.look()
            deliver(rows, batch)

        return look_and_deliver

    def look(self) -> None:
        """Compare the inputs as they are now.

        Raises
        ------
        InputChangedError: when an input is another one, or its fields are not those of the plan: the run plans again.
        LakehouseError: when a source does not answer.
        """
        found = [*self._replaced_topics(), *(phrase for name in self._tables for phrase in self._changes_of(name))]
        if found:
            raise InputChangedError(f"planned again, because its inputs changed: {'; '.join(found)}")

    def close(self) -> None:
        """Close the connections to Kafka: a run may be kept by what it has planned longer than it works."""
        self._clients.clear()

    def _replaced_topics(self) -> list[str]:
        of_inputs = [topic_identities(source, self._client(source)) for source in self._topics]
        seen = {name: identity for of_input in of_inputs for name, identity in of_input.items()}
        self._take_in({name: identity for name, identity in seen.items() if name not in self._identities})
        return [str(one) for one in find_replaced(self._identities, seen)]

    def _take_in(self, new: Identities) -> None:
        self._identities.update(new)
        self._unkept.update(new)
        if not self._unkept:
            return
        try:
            self._keep(dict(self._unkept))
        except LedgerError as error:
            _log.warning("the ids of %s could not be kept: %s", ", ".join(sorted(self._unkept)), error)
        else:
            self._unkept.clear()

    def _changes_of(self, name: str) -> list[str]:
        table = require_table(self._catalog, name)
        seen = {input_table_name(name): str(table.metadata.table_uuid)}
        replaced = [str(one) for one in find_replaced(self._identities, seen)]
        now = fields_of(table.schema())
        planned = self._fields.get(name, {})
        self._sightings.see_table(name, now, answer=PLANS_AGAIN if replaced else answer_to_fields(planned, now))
        changed = changed_fields(planned, now)
        return [*replaced, *(f"{name}: {one}" for one in changed)]

    def _client(self, source: KafkaSource) -> KafkaTopics:
        from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

        if source.connection not in self._clients:
            self._clients[source.connection] = KafkaTopics(
                self._settings.connection(source.connection, KafkaConnection)
            )
        return self._clients[source.connection]

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._settings)


def declared_offsets(starting: object) -> Mapping[str, Mapping[str, int]] | None:
    """The offsets at which a first batch is declared to start, as Spark writes them; none when no offsets are declared.

    Parameters
    ----------
    starting: of a Kafka input. A negative offset is an end of its partition, from which nothing is lost.
    """
    if not isinstance(starting, Mapping):
        return None
    return {
        topic: {str(partition): offset if offset >= 0 else sys.maxsize for partition, offset in partitions.items()}
        for topic, partitions in starting.items()
    }


def lost_offsets(start: Any, end: Any, *, firsts: Mapping[str, Mapping[int, int]]) -> Mapping[str, int]:
    """Count the offsets of a batch of Kafka records that had been removed when the batch began.

    Offsets also count transaction markers and records that compaction removed; the result is then slightly too large.
    Records that are removed between the start of the batch and their reading, a matter of seconds, are not counted.

    Parameters
    ----------
    start, end: the batch's offsets as Spark's Kafka source writes them: topic → partition → next offset. `start` is
        None for a first batch that begins with the records that exist.
    firsts: the offset of the first record of each partition when the batch began, by topic.

    Returns
    -------
    The number of lost offsets by `<topic>/<partition>`, only for partitions that lost any.
    """
    if not isinstance(start, Mapping) or not isinstance(end, Mapping):
        return {}
    lost = {}
    for topic, partitions in end.items():
        for partition, until in partitions.items():
            first = firsts.get(topic, {}).get(int(partition), 0)
            # A partition that was added since the last batch is read from its beginning, offset 0.
            gone = min(int(until), first) - int(start.get(topic, {}).get(partition, 0))
            if gone > 0:
                lost[f"{topic}/{partition}"] = gone
    return lost


def skipped_rows(
    start: Any, end: Any, *, history: Sequence[TableStep], first: StreamOffset | None = None
) -> Mapping[str, int]:
    """Count the rows of skipped snapshots between two offsets of a reader of appended rows.

    Parameters
    ----------
    start, end: the batch's offsets as Iceberg's source writes them. `start` is None for the first batch.
    history: the snapshots of the table, newest first; see `history_of`.
    first: where the first batch starts; None when that is unknown, and it starts with the oldest snapshot.

    Returns
    -------
    The rows that each skipped snapshot added or removed, by `snapshot <id>`, only for snapshots with such rows.
    """
    skipped = {}
    begins_at = first if start is None else stream_offset_of(start)
    includes_start = start is None and first is not None and first.position == 0 and not first.scan_all_files
    is_read = False
    for step in history:
        is_read = is_read or step.snapshot_id == snapshot_of(end)
        is_start = begins_at is not None and step.snapshot_id == begins_at.snapshot_id
        if is_start and not includes_start:
            break
        if is_read and step.changed_rows:
            skipped[f"snapshot {step.snapshot_id}"] = step.changed_rows
        if is_start:
            break
    return skipped


Firsts: TypeAlias = Mapping[str, Mapping[int, int]]


class SkippedInputWatch:
    """Counts the skipped input of the batches of one run.

    Parameters
    ----------
    declaration: the stream.
    settings: the connections and the catalog of the deployment.
    checkpoint: its location. inputs: the input of each source of the query, in Spark's order.
    """

    def __init__(
        self, declaration: StreamDeclaration, settings: Settings, *, checkpoint: str, inputs: Sequence[str]
    ) -> None:
        self._settings = settings
        self._checkpoint = checkpoint
        self._inputs = inputs
        sources = {name: given.declared_source.source for name, given in declaration.inputs.items() if given.is_stream}
        self._topics = {
            name: source
            for name, source in sources.items()
            if isinstance(source, KafkaSource) and source.on_data_loss == "count"
        }
        self._tables = {
            name: source
            for name, source in sources.items()
            if isinstance(source, IcebergSource) and "skip" in (source.on_overwrite, source.on_delete)
        }
        self._firsts: dict[int, dict[str, Firsts]] = {}

    def ahead_of(self, deliver: Callable[[Rows, int], None]) -> Callable[[Rows, int], None]:
        """Wrap the delivery of batches: before each batch, the first offsets of the Kafka inputs are read.

        The wrapped delivery raises a LakehouseError when Kafka does not answer, because a loss that cannot be counted
        must not go unnoticed. Without such an input, `deliver` itself is returned.
        """
        if not self._topics:
            return deliver

        def observe_and_deliver(rows: Rows, batch: int) -> None:
            self._firsts[batch] = {name: self._read_firsts(source) for name, source in self._topics.items()}
            deliver(rows, batch)

        return observe_and_deliver

    def completing(self, hand_over: Callable[[BatchObservation], None]) -> Callable[[BatchObservation], None]:
        """Wrap the hand-over of observed batches: each gets its skipped input, if any input of the stream may skip."""
        if not self._topics and not self._tables:
            return hand_over

        def complete_and_hand_over(batch: BatchObservation) -> None:
            hand_over(self._completed(batch))

        return complete_and_hand_over

    def _completed(self, batch: BatchObservation) -> BatchObservation:
        firsts = self._firsts.pop(batch.key.batch, {})
        lost = {
            name: lost_offsets(
                batch.start_offsets.get(name) or declared_offsets(source.starting),
                batch.end_offsets.get(name),
                firsts=firsts.get(name, {}),
            )
            for name, source in self._topics.items()
        }
        skipped = {name: self._skipped_rows(source, batch, name) for name, source in self._tables.items()}
        found = {name: places for name, places in (lost | skipped).items() if places}
        for name, places in found.items():
            _log.warning("batch %d: input %s: %d rows were skipped", batch.key.batch, name, sum(places.values()))
        left_out = batch.skipped_input
        both = {name: {**left_out.get(name, {}), **found.get(name, {})} for name in (*left_out, *found)}
        return replace(batch, skipped_input=both)

    def _read_firsts(self, source: KafkaSource) -> Firsts:
        from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

        topics = KafkaTopics(self._settings.connection(source.connection, KafkaConnection))
        try:
            return topics.firsts_of(topics.partitions_of(source))
        except LakehouseError as error:
            raise LakehouseError(f"Data loss cannot be counted: {error.message}") from error

    def _skipped_rows(self, source: IcebergSource, batch: BatchObservation, name: str) -> Mapping[str, int]:
        try:
            table = load_table(self._catalog, source.table)
        except (LakehouseError, SettingsError) as error:
            _log.error("batch %d: the skipped rows of %s are unknown: %s", batch.key.batch, source.table, error)
            return {}
        start, end = batch.start_offsets.get(name), batch.end_offsets.get(name)
        history = tuple(history_of(table)) if table is not None else ()
        first = self._first_offset(name) if start is None else None
        return skipped_rows(start, end, history=history, first=first)

    def _first_offset(self, name: str) -> StreamOffset | None:
        try:
            found = first_offsets(open_checkpoint_files(self._checkpoint, self._settings.object_store))
        except CheckpointError as error:
            _log.warning("where input %s began is unknown: %s", name, error)
            return None
        return found.get(self._inputs.index(name)) if name in self._inputs else None

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self._settings)
