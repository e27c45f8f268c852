"""Reads the rows of staged batches for a MERGE, keeps them, and puts it together, before the target is looked at.

What is done between the check of the mark and the commit of the MERGE is time in which others may commit and refuse it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from types import TracebackType

from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyspark.sql import Column, DataFrame, MergeIntoWriter, SparkSession, Window
from pyspark.sql import functions as fn

from sluice.publication.staged_batch import StagedBatch, publication_summary
from sluice.publication.staging_layout import OPERATION_COLUMN
from sluice_spark.delivery.merge_statement import BATCH_VIEW, merge_statement, ordering_of, summary_of_sql
from sluice_spark.session.identifiers import quoted
from sluice_spark.sinks.iceberg import IcebergTarget

_BATCH = "_sluice_batch"
_PLACE = "_sluice_place"

_MOST_VALUES = 200
"""So many partitions are named one by one in a MERGE; above, from the lowest to the highest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToMerge:
    """Some staged batches, read.

    statement: their MERGE into the target. Its bounds on the target's partitions follow from the equality of keys, so
        they stay true whatever becomes of the partitioning meanwhile.
    """

    batches: tuple[StagedBatch, ...]
    statement: MergeIntoWriter


class KeptRows:
    """Reads staged batches once, however often their MERGE is tried; leaving the block lets go of them."""

    def __init__(self, session: SparkSession, target: IcebergTarget) -> None:
        self._session = session
        self._target = target
        self._read: RowsToMerge | None = None
        self._kept = ExitStack()

    def __enter__(self) -> KeptRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._let_go()

    def of(self, batches: Sequence[StagedBatch], table: Table) -> RowsToMerge:
        """These batches; read now unless they are the ones that were read last. Until then, or the end of the block,
        what the session commits by SQL carries their summary.

        Parameters
        ----------
        table: the target, whose partitioning tells what bounds are of use.
        """
        if self._read is None or self._read.batches != tuple(batches):
            self._let_go()
            self._read = RowsToMerge(batches=tuple(batches), statement=self._prepared(batches, table))
        return self._read

    def _prepared(self, batches: Sequence[StagedBatch], table: Table) -> MergeIntoWriter:
        self._session.sql(f"REFRESH TABLE {self._target.staging_identifier}")  # the session's tables never do it alone
        kept = newest_rows(self._session, self._target, batches).persist()
        self._kept.callback(kept.unpersist)
        rows = kept.alias(BATCH_VIEW)
        bounds = partition_bounds(rows, self._target, table)
        if not bounds:  # nothing has read the rows yet
            kept.count()
        summary = publication_summary([batch.summary for batch in batches])
        self._kept.enter_context(summary_of_sql(self._session, summary))
        return merge_statement(rows, self._target, bounds)

    def _let_go(self) -> None:
        self._read = None
        self._kept.close()


def newest_rows(session: SparkSession, target: IcebergTarget, batches: Sequence[StagedBatch]) -> DataFrame:
    """The staged rows; of a key that several batches hold, the newest change of a change feed, otherwise the newest
    batch's row."""
    read = [
        _staged_rows(session, target, batch).withColumn(_BATCH, fn.lit(batch.summary.key.batch))
        for batch in batches
        if batch.data_files > 0
    ]
    rows = reduce(DataFrame.unionByName, read)
    if len(read) > 1:
        keys = [fn.col(quoted(key)) for key in target.declared.keys]
        ordered = [fn.col(quoted(ordering)).desc_nulls_last()] if (ordering := ordering_of(target)) else []
        newest_first = Window.partitionBy(*keys).orderBy(*ordered, fn.col(_BATCH).desc())
        rows = rows.withColumn(_PLACE, fn.row_number().over(newest_first)).where(fn.col(_PLACE) == 1).drop(_PLACE)
    return rows.drop(_BATCH)


def partition_bounds(rows: DataFrame, target: IcebergTarget, table: Table) -> list[Column]:
    """Which partitions of the target a batch can touch, as conditions on its columns.

    With them only rows that others add to those partitions refuse the MERGE. A column that is no key bounds nothing:
    the row that is replaced may lie in another partition than the new one.
    """
    bounds = []
    for part in table.spec().fields:
        column = table.schema().find_column_name(part.source_id)
        if column is None or column not in target.declared.keys:
            continue
        ours, theirs = fn.col(f"{BATCH_VIEW}.{quoted(column)}"), fn.expr(f"{target.identifier}.{quoted(column)}")
        if isinstance(part.transform, IdentityTransform):
            values = [row[0] for row in rows.select(ours).distinct().limit(_MOST_VALUES + 1).collect()]
            if len(values) <= _MOST_VALUES:
                bounds.append(theirs.isin([value for value in values if value is not None]))
                continue
        lowest, highest = rows.agg(fn.min(ours), fn.max(ours)).collect()[0]
        if lowest is not None:
            bounds.append(theirs.between(fn.lit(lowest), fn.lit(highest)))
    return bounds


def _staged_rows(session: SparkSession, target: IcebergTarget, batch: StagedBatch) -> DataFrame:
    """The rows of one batch: what its snapshot added to the one before."""
    if batch.parent_id is None:
        rows = session.read.option("snapshot-id", str(batch.snapshot_id)).table(target.staging_identifier)
    else:
        reader = session.read.option("start-snapshot-id", str(batch.parent_id))
        rows = reader.option("end-snapshot-id", str(batch.snapshot_id)).table(target.staging_identifier)
    if OPERATION_COLUMN in rows.columns:
        return rows
    # A snapshot is read with the schema of its time, in which there may have been no operations.
    return rows.withColumn(OPERATION_COLUMN, fn.lit(None).cast("string"))
