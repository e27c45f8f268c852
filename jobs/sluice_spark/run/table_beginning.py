"""Begins a new checkpoint in the Iceberg inputs of a stream, exactly as declared (decision 0045).

Purpose: left to itself, Iceberg's source begins with what the oldest listed snapshot added, and reads nothing older.

How it works: before the first batch of a checkpoint is planned, and at no other time, the start of each input is
decided from the history of its table, its snapshot is pinned, and the offset is written where Iceberg's source keeps
its first one. A scan of one snapshot is the first batch: it is written as planned, because only a batch that ends
within the snapshot is read right. What another writer commits meanwhile comes after it.

What it does not do: a checkpoint with a planned batch is left as it is, whatever is declared now.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from sluice.declarations.source_declarations import IcebergSource
from sluice.errors import DeclarationError, LakehouseError
from sluice.ledger.connection import Ledger, database_time
from sluice.maintenance.pin_commit import commit_pins
from sluice.maintenance.pin_plan import Pin, PinKind
from sluice.maintenance.table_readers import streamed_tables
from sluice.settings import Settings
from sluice.sources.declared_starts import plan_declared_start
from sluice.sources.iceberg_positions import history_of
from sluice.sources.table_starts import NeedsAppend, TableStart, Unreachable
from sluice.stored_keys import START_OF
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import require_table
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.run.run_checkpoint import RunCheckpoint
from sluice_spark.session.checkpoint_metadata import read_checkpoint
from sluice_spark.session.columns import quoted_table
from sluice_spark.session.jvm import first_line, jvm_of
from sluice_spark.session.planned_batch import plan_first_batch, read_first_offset, write_first_offsets

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_log = logging.getLogger(__name__)

_TRIES = 5
"""How often a start is decided again because another writer or an expiry changed the history in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputBeginning:
    """The beginning of one checkpoint. now: the time of the ledger."""

    spark: SparkSession
    catalog: Catalog
    settings: Settings
    checkpoint: RunCheckpoint
    now: datetime

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
            found = plan_declared_start(table, source, now=self.now, begun=begun)
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


def begin_in_tables(
    spark: SparkSession, ledger: Ledger, plan: StreamPlan, checkpoint: RunCheckpoint, settings: Settings
) -> RunCheckpoint:
    """Begin a checkpoint without a planned batch in the Iceberg inputs of its stream.

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
        spark=spark, catalog=open_catalog(settings), settings=settings, checkpoint=checkpoint, now=now
    )
    begun = {name: beginning.begin(name, source, number=plan.sources.index(name)) for name, source in declared.items()}
    starts = {name: start for name, start in begun.items() if start is not None}
    firsts = {plan.sources.index(name): start.first for name, start in starts.items()}
    write_first_offsets(spark, checkpoint.location, firsts)
    ends = {name: start.scan_end for name, start in starts.items() if start.scan_end is not None}
    if ends:
        plan_first_batch(
            spark,
            checkpoint.location,
            [ends.get(name) for name in plan.sources],
            is_registered=checkpoint.state.query_id is not None,
            planned_at=now,
        )
    return replace(checkpoint, state=read_checkpoint(spark, checkpoint.location))


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
