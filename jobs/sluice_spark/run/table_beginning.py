"""Begins a new checkpoint in the inputs of a stream, exactly as declared (decision 0045).

Purpose: left to itself, Iceberg's source begins with what the oldest listed snapshot added, and reads nothing older.
The sources of Kafka and Delta begin with the oldest that is left, and do not say that it is not what was declared.

How it works: before the first batch of a checkpoint is planned, and at no other time, the start of each input is
decided. Kafka and Delta must still have what is declared. In an Iceberg table the start is decided from its history,
its snapshot is pinned, and the offset is written where Iceberg's source keeps its first one. A scan of one snapshot is
the first batch: it is written as planned, because only a batch that ends within the snapshot is read right. What
another writer commits meanwhile comes after it.

What it does not do: a checkpoint with a planned batch is left as it is, whatever is declared now.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from sluice.declarations.source_declarations import DeltaSource, IcebergSource, KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import DeclarationError, LakehouseError
from sluice.ledger.connection import Ledger, database_time
from sluice.maintenance.pin_plan import Pin, PinKind
from sluice.maintenance.position_pins import commit_pins
from sluice.maintenance.table_readers import streamed_tables
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.sources.iceberg_positions import StreamOffset, TableStep, history_of, history_read_by
from sluice.sources.table_starts import NeedsAppend, TableStart, Unreachable, plan_declared_start
from sluice.sources.topic_starts import missing_offsets, missing_times
from sluice.stored_keys import START_OF
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.run.run_checkpoint import RunCheckpoint
from sluice_spark.session.checkpoint_metadata import (
    plan_first_batch,
    read_checkpoint,
    read_first_offset,
    write_first_offsets,
)
from sluice_spark.session.columns import quoted_table
from sluice_spark.session.jvm import first_line, jvm_of
from sluice_spark.sources.delta import oldest_commit

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_log = logging.getLogger(__name__)

_UNREAD_ROWS = Unreachable(
    reason="the rows up to which the stream has read it cannot be scanned at one snapshot: later ones were appended",
    next_step="Let the stream read what is there, and repeat the command.",
)

_TRIES = 5
"""How often a start is decided again because another writer or an expiry changed the history in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBeginning:
    """The beginning of one checkpoint.

    now: the time of the ledger. until: how far a table may be read, by input; empty for a stream of its own.
    """

    spark: SparkSession
    catalog: Catalog
    settings: Settings
    checkpoint: RunCheckpoint
    now: datetime
    until: Mapping[str, StreamOffset] = field(default_factory=dict)

    def begin(self, name: str, source: IcebergSource, *, number: int) -> TableStart | None:
        """Decide and pin where an input begins; none when its table has no snapshot yet.

        Parameters
        ----------
        number: of the input among the sources of the query.

        Raises
        ------
        DeclarationError: when the declared start cannot be met: nothing is left out silently.
        LakehouseError: when the table cannot be read, or others change its history all the time.
        """
        begun = read_first_offset(self.spark, self.checkpoint.location, number)
        for _ in range(_TRIES):
            table = require_table(self.catalog, source.table)
            history = self._history(table, name)
            found = plan_declared_start(table, source, now=self.now, begun=begun, history=history)
            if isinstance(found, NeedsAppend) and history and not _is_head(table, history[0]):
                found = _UNREAD_ROWS
            match found:
                case None:
                    return None
                case Unreachable():
                    raise self._refused(name, found)
                case NeedsAppend():
                    self._append(name, source, found)
                case TableStart():
                    self._pin(table, name, found)
                    if self._is_still_there(source, found):
                        _log.info("input %s begins: %s of %s, %s", name, found.way, source.table, found.first.text())
                        return found
        raise LakehouseError(
            f"Input {name} cannot begin: the history of {source.table} was changed {_TRIES} times while the start was "
            "decided.",
            next_step="Start the stream again when no expiry and no rewrite of the table runs.",
        )

    def _history(self, table: Table, name: str) -> tuple[TableStep, ...] | None:
        """The history of a table as far as it may be read; none when nothing bounds it."""
        end = self.until.get(name)
        return None if end is None else history_read_by(tuple(history_of(table)), end)

    def _append(self, name: str, source: IcebergSource, needs: NeedsAppend) -> None:
        generation = self.checkpoint.generation
        _log.info("appending an empty snapshot to %s: input %s begins after it", source.table, name)
        append_start_snapshot(
            self.spark,
            source.table,
            catalog=self.settings.catalog.name,
            start_of=f"{generation.stream}:{generation.generation}:{name}",
            cleans=needs.cleans,
        )

    def _pin(self, table: Table, name: str, start: TableStart) -> None:
        """A pin that fails makes nothing wrong: the source refuses a snapshot that is gone."""
        pin = Pin(
            kind=PinKind.POSITION,
            stream=self.checkpoint.generation.stream,
            endpoint=name,
            snapshot_id=start.first.snapshot_id,
        )
        try:
            commit_pins(table, to_set=(pin,), properties={})
        except LakehouseError as error:
            _log.warning("the start of input %s could not be pinned: %s", name, error)

    def _is_still_there(self, source: IcebergSource, start: TableStart) -> bool:
        history = history_of(require_table(self.catalog, source.table))
        return any(step.snapshot_id == start.first.snapshot_id for step in history)

    def _refused(self, name: str, found: Unreachable) -> DeclarationError:
        return DeclarationError(
            f"Input {name} cannot begin as declared: {found.reason}.",
            location=self.checkpoint.stream.location(("inputs", name, "stream", "iceberg", "starting")),
            next_step=found.next_step,
        )


def _is_head(table: Table, step: TableStep) -> bool:
    return step.snapshot_id == table.metadata.current_snapshot_id


def begin_in_tables(
    spark: SparkSession,
    ledger: Ledger,
    plan: StreamPlan,
    checkpoint: RunCheckpoint,
    settings: Settings,
    *,
    until: Mapping[str, StreamOffset] | None = None,
) -> RunCheckpoint:
    """Begin a checkpoint without a planned batch in the Iceberg inputs of its stream.

    Parameters
    ----------
    until: how far a table may be read, by input; unset: all of it.

    Returns
    -------
    The checkpoint as it is then.

    Raises
    ------
    DeclarationError, LakehouseError: as `InputBeginning.begin` raises them.
    """
    declared = {name: source for name, source in streamed_tables(plan.declaration) if name in plan.sources}
    if checkpoint.state.newest_planned >= 0 or not declared:
        return checkpoint
    now = database_time(ledger)
    beginning = InputBeginning(
        spark=spark,
        catalog=open_catalog(settings),
        settings=settings,
        checkpoint=checkpoint,
        now=now,
        until=until or {},
    )
    begun = {name: beginning.begin(name, source, number=plan.sources.index(name)) for name, source in declared.items()}
    starts = {name: start for name, start in begun.items() if start is not None}
    firsts = {plan.sources.index(name): start.first for name, start in starts.items()}
    write_first_offsets(spark, checkpoint.location, firsts)
    ends = {name: start.scan_end.text() for name, start in starts.items() if start.scan_end is not None}
    if ends:
        plan_first_batch(
            spark,
            checkpoint.location,
            [ends.get(name) for name in plan.places],
            is_registered=checkpoint.state.query_id is not None,
            planned_at=now,
        )
    return replace(checkpoint, state=read_checkpoint(spark, checkpoint.location))


def require_reachable_starts(spark: SparkSession, checkpoint: RunCheckpoint, settings: Settings) -> None:
    """Check the inputs of a checkpoint without a planned batch. With `on_data_loss: count` a loss is counted.

    Raises
    ------
    DeclarationError: when records or commits are gone, or may be: which, and what can be declared.
    LakehouseError: when Kafka does not answer.
    """
    if checkpoint.state.newest_planned >= 0:
        return
    declaration = checkpoint.stream.declaration
    for name, topics in _bound_topics(declaration):
        if missing := tuple(_missing_records(topics, settings)):
            ways = "`starting: earliest` or a later start, or `on_data_loss: count` to begin with what is left"
            raise _refused(checkpoint, ("inputs", name, "stream", "kafka", "starting"), "; ".join(missing), ways)
    for name, table in _bound_delta_tables(declaration):
        if missing := tuple(_missing_commits(spark, table, settings)):
            ways = "a later time, or leave it out to read every row of the table"
            raise _refused(checkpoint, ("inputs", name, "stream", "delta", "from_timestamp"), "; ".join(missing), ways)


def _refused(checkpoint: RunCheckpoint, key: tuple[str, ...], problem: str, ways: str) -> DeclarationError:
    return DeclarationError(
        f"Input {key[1]} cannot begin as declared: {problem}.",
        location=checkpoint.stream.location(key),
        next_step=f"Declare {ways}.",
    )


def _bound_topics(declaration: StreamDeclaration) -> Iterator[tuple[str, KafkaSource]]:
    for name, declared in declaration.inputs.items():
        source = declared.declared_source.source
        if not declared.is_stream or not isinstance(source, KafkaSource) or source.on_data_loss != "fail":
            continue
        if isinstance(source.starting, dict | datetime):
            yield name, source


def _missing_records(source: KafkaSource, settings: Settings) -> Iterator[str]:
    from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

    topics = KafkaTopics(settings.connection(source.connection, KafkaConnection))
    partitions = topics.partitions_of(source)
    bounds = topics.bounds_of(partitions, isolation="read_uncommitted")
    if isinstance(source.starting, dict):
        yield from missing_offsets(source.starting, bounds)
    elif isinstance(source.starting, datetime):
        yield from missing_times(source.starting, topics.offsets_since(partitions, source.starting), bounds)


def _bound_delta_tables(declaration: StreamDeclaration) -> Iterator[tuple[str, DeltaSource]]:
    for name, declared in declaration.inputs.items():
        source = declared.declared_source.source
        if declared.is_stream and isinstance(source, DeltaSource) and source.from_timestamp is not None:
            yield name, source


def _missing_commits(spark: SparkSession, source: DeltaSource, settings: Settings) -> Iterator[str]:
    oldest = oldest_commit(spark, source, settings.connection(source.connection, FilesConnection))
    declared = source.from_timestamp
    if declared is not None and oldest.version > 0 and oldest.committed_at > declared:
        yield (
            f"the oldest commit in the log of {source.path} is version {oldest.version}, of "
            f"{oldest.committed_at.isoformat()}, and {declared.isoformat()} is declared"
        )


def append_start_snapshot(spark: SparkSession, table: str, *, catalog: str, start_of: str, cleans: bool) -> None:
    """Append a snapshot without files. No row changes.

    Parameters
    ----------
    start_of: who needs it, for those who read the history.
    cleans: rewrite the manifests that list removed files before, in the same commit.

    Raises
    ------
    LakehouseError: when the catalog refuses.
    """
    jvm = jvm_of(spark)
    try:
        opened = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, quoted_table(catalog, table)
        )
        opened.refresh()
        transaction = opened.newTransaction()
        if cleans:
            _rewrite_unclean(spark, opened, transaction)
        transaction.newFastAppend().set(START_OF, start_of).commit()
        transaction.commitTransaction()
    except Py4JJavaError as error:
        raise LakehouseError(
            f"An empty snapshot cannot be appended to {table}: {first_line(error)}",
            next_step=f"A stream can begin after a snapshot that appends: append a row to {table}, or declare "
            "`starting: latest`.",
        ) from error


def _rewrite_unclean(spark: SparkSession, table: JavaObject, transaction: JavaObject) -> None:
    """Rewrite the manifests that list removed files, into one for each partition spec. The live files stay listed."""
    jvm = jvm_of(spark)
    unclean = [one for one in table.currentSnapshot().dataManifests(table.io()) if one.deletedFilesCount()]
    # Of a map with a default, every look-up has the same answer: all files belong into one manifest.
    same = jvm.scala.collection.immutable.HashMap().withDefaultValue("start")
    chosen = jvm.org.apache.iceberg.relocated.com.google.common.base.Predicates.__getattr__("in")(
        jvm.java.util.ArrayList(unclean)
    )
    rewrite = transaction.rewriteManifests()
    rewrite.clusterBy(jvm.scala.jdk.javaapi.FunctionConverters.asJavaFunction(same))
    rewrite.rewriteIf(chosen)
    rewrite.commit()
