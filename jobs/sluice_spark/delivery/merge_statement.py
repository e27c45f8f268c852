"""Reads the rows of staged batches and puts their MERGE together, before the target is looked at.

Whatever is done between the check of the mark and the commit of the MERGE is time in which other writers may commit and
so refuse it. `KeptRows` therefore reads the rows and keeps them, and builds the whole statement, ahead of the check.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from types import TracebackType

from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType, UUIDType
from pyspark.sql import Column, DataFrame, MergeIntoWriter, SparkSession, Window
from pyspark.sql import functions as fn
from pyspark.sql.types import BinaryType, DataType

from sluice.publication.staged_batch import StagedBatch, publication_summary
from sluice.stored_keys import OPERATION_COLUMN
from sluice_spark.session.columns import quoted
from sluice_spark.sinks.iceberg import DELETE, IcebergTarget, read_staged

_BATCH = "_sluice_batch"
_PLACE = "_sluice_place"


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToMerge:
    """Staged batches that were read.

    statement: their MERGE into the target. Its bounds on the target's partitions follow from the equality of keys, so
        they stay true when the partitioning changes meanwhile.
    """

    batches: tuple[StagedBatch, ...]
    statement: MergeIntoWriter


class KeptRows:
    """Reads staged batches once, however often their MERGE is tried. Leaving the block releases them."""

    def __init__(self, session: SparkSession, target: IcebergTarget) -> None:
        self._session = session
        self._target = target
        self._read: RowsToMerge | None = None
        self._kept = ExitStack()

    def __enter__(self) -> KeptRows:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._release()

    def of(self, batches: Sequence[StagedBatch], table: Table) -> RowsToMerge:
        """Read batches, unless they are the ones that were read last. What the session commits by SQL carries their
        summary until other batches are read or the block ends.

        Parameters
        ----------
        table: the target; its partitioning decides which bounds are of use.
        """
        if self._read is None or self._read.batches != tuple(batches):
            self._release()
            self._read = RowsToMerge(batches=tuple(batches), statement=self._prepared(batches, table))
        return self._read

    def _prepared(self, batches: Sequence[StagedBatch], table: Table) -> MergeIntoWriter:
        # The session's tables never refresh themselves.
        self._session.sql(f"REFRESH TABLE {self._target.staging_identifier}")
        kept = newest_rows(self._session, self._target, batches).persist()
        self._kept.callback(kept.unpersist)
        rows = kept.alias(BATCH_VIEW)
        bounds = partition_bounds(rows, self._target, table)
        if not bounds:  # nothing has read the rows yet
            kept.count()
        summary = publication_summary([batch.summary for batch in batches])
        self._kept.enter_context(summary_of_sql(self._session, summary))
        return merge_statement(rows, self._target, bounds, columns=[field.name for field in table.schema().fields])

    def _release(self) -> None:
        self._read = None
        self._kept.close()


def newest_rows(session: SparkSession, target: IcebergTarget, batches: Sequence[StagedBatch]) -> DataFrame:
    """The staged rows, one for each key: the newest change of a change feed, otherwise the row of the newest batch."""
    read = [
        _staged_rows(session, target, batch).withColumn(_BATCH, fn.lit(batch.summary.key.batch))
        for batch in batches
        if batch.data_files > 0
    ]
    # A column may have been added to the table between two batches.
    rows = reduce(partial(DataFrame.unionByName, allowMissingColumns=True), read)
    if len(read) > 1:
        keys = [fn.col(quoted(key)) for key in target.declared.keys]
        ordered = [fn.col(quoted(column)).desc_nulls_last() for column in ordering_of(target)]
        newest_first = Window.partitionBy(*keys).orderBy(*ordered, fn.col(_BATCH).desc())
        rows = rows.withColumn(_PLACE, fn.row_number().over(newest_first)).where(fn.col(_PLACE) == 1).drop(_PLACE)
    return rows.drop(_BATCH)


def _staged_rows(session: SparkSession, target: IcebergTarget, batch: StagedBatch) -> DataFrame:
    """The rows of one batch, with their operation."""
    rows = read_staged(session, target, batch)
    if OPERATION_COLUMN in rows.columns:
        return rows
    # A snapshot is read with the schema of its time, which may have had no operation column.
    return rows.withColumn(OPERATION_COLUMN, fn.lit(None).cast("string"))


def merge_statement(
    rows: DataFrame, target: IcebergTarget, bounds: Sequence[Column], *, columns: Sequence[str]
) -> MergeIntoWriter:
    """The MERGE of rows into a target. Its `merge()` executes it, and can be called again after a refusal.

    Parameters
    ----------
    rows: with the alias `BATCH_VIEW`, one for each key.
    bounds: further conditions on the target's rows, which follow from the equality of keys.
    columns: those of the target. One that the rows do not have was added to the table after they were staged: it keeps
        its value where a row is replaced, and is null where one is new.
    """
    condition = _same_key(target)
    for bound in bounds:
        condition = condition & bound
    staged = {quoted(name): fn.col(f"{BATCH_VIEW}.{quoted(name)}") for name in columns if name in rows.columns}
    added = {quoted(name): fn.lit(None) for name in columns if name not in rows.columns}
    newer = _is_newer(target)
    merge = rows.mergeInto(target.identifier, condition)
    merge = merge.whenMatched(_is_delete() if newer is None else newer & _is_delete()).delete()
    merge = merge.whenMatched(newer).update(staged)
    return merge.whenNotMatched(~_is_delete()).insert(staged | added)


def ordering_of(target: IcebergTarget) -> tuple[str, ...]:
    """The columns that order the changes of a key across batches; none when the number of the batch orders them."""
    return target.declared.ordering if target.declared.operation_column is not None else ()


def _same_key(target: IcebergTarget) -> Column:
    """Whether a row of the batch and a row of the target have the same key. A null is a value like any other, as it is
    where the rows of a batch are compared with each other."""
    keys = (quoted(key) for key in target.declared.keys)
    return fn.expr(" AND ".join(f"{target.identifier}.{key} <=> {BATCH_VIEW}.{key}" for key in keys))


def _is_delete() -> Column:
    """Whether a row of the batch removes its key from the target; a row without an operation does not."""
    return fn.coalesce(fn.col(f"{BATCH_VIEW}.{OPERATION_COLUMN}"), fn.lit("")) == DELETE


def _is_newer(target: IcebergTarget) -> Column | None:
    """Whether a row of the batch may change the row of the target; none when nothing is ordered and it always may.

    A change that comes late changes nothing. The columns of the ordering are compared in turn, and a missing value is
    the lowest. Of two rows that tie, the one that comes later counts, which makes a repeated merge harmless.
    """
    ordering = [quoted(column) for column in ordering_of(target)]
    if not ordering:
        return None
    there, here = (", ".join(f"{side}.{column}" for column in ordering) for side in (target.identifier, BATCH_VIEW))
    return fn.expr(f"struct({here}) >= struct({there})")


@contextmanager
def summary_of_sql(spark: SparkSession, summary: Mapping[str, str]) -> Iterator[None]:
    """While the block runs, the snapshots that SQL commits carry these properties in their summary."""
    names = {f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in summary.items()}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in names:
            spark.conf.unset(name)


BATCH_VIEW = "sluice_batch"
"""The name of the staged rows in the conditions of a MERGE."""

_ORDERED_OTHERWISE = (UUIDType, FloatType, DoubleType)
"""Types without bounds: Iceberg would skip files that hold the key. Spark orders a uuid as text, Iceberg by its halves
as signed numbers; to Spark -0.0 equals 0.0, to Iceberg it is less."""

_MOST_VALUES = 200
"""So many partitions are named one by one in a MERGE; above this number, as a range from the lowest to the highest."""


def partition_bounds(rows: DataFrame, target: IcebergTarget, table: Table) -> list[Column]:
    """The conditions on the target's columns, from the rows of a batch; none for a table without useful partitions.

    With the bounds, only rows that others add to those partitions refuse the MERGE. They must be exact: a row of the
    target that lies outside them is not found, and its key is inserted a second time. So no bound passes through the
    values of Python, whose times are local: it is read as text and becomes a literal of the column's type in Spark.

    A column that is not part of the key bounds nothing: the replaced row may lie in another partition than the new one.

    Parameters
    ----------
    rows: with the alias `BATCH_VIEW`; they are read once or twice for each column.
    """
    return [
        _bound(rows, column, fn.expr(f"{target.identifier}.{quoted(column)}"), is_by_value=is_by_value)
        for column, is_by_value in dict(_partition_keys(target, table)).items()
    ]


def _partition_keys(target: IcebergTarget, table: Table) -> Iterator[tuple[str, bool]]:
    """The keys by which the table is partitioned, and whether each value is a partition of its own."""
    by_value = {part.source_id for part in table.spec().fields if isinstance(part.transform, IdentityTransform)}
    for part in table.spec().fields:
        column = table.schema().find_column_name(part.source_id)
        if isinstance(table.schema().find_type(part.source_id), _ORDERED_OTHERWISE):
            continue
        if column is not None and column in target.declared.keys:
            yield column, part.source_id in by_value


def _bound(rows: DataFrame, column: str, theirs: Column, *, is_by_value: bool) -> Column:
    ours, kind = fn.col(f"{BATCH_VIEW}.{quoted(column)}"), rows.schema[column].dataType
    if is_by_value:
        values = [row[0] for row in rows.select(_text(ours, kind)).distinct().limit(_MOST_VALUES + 1).collect()]
        if len(values) <= _MOST_VALUES:
            named = [_literal(value, kind) for value in values if value is not None]
            return _or_null(theirs.isin(*named) if named else None, theirs, has_null=None in values)
    found = (_text(fn.min(ours), kind), _text(fn.max(ours), kind), fn.count_if(ours.isNull()))
    lowest, highest, nulls = rows.agg(*found).collect()[0]
    within = theirs.between(_literal(lowest, kind), _literal(highest, kind)) if lowest is not None else None
    return _or_null(within, theirs, has_null=nulls > 0)


def _or_null(within: Column | None, theirs: Column, *, has_null: bool) -> Column:
    if within is None:
        return theirs.isNull()
    return within | theirs.isNull() if has_null else within


def _text(value: Column, kind: DataType) -> Column:
    return fn.hex(value) if isinstance(kind, BinaryType) else value.cast("string")


def _literal(text: str, kind: DataType) -> Column:
    return fn.unhex(fn.lit(text)) if isinstance(kind, BinaryType) else fn.lit(text).cast(kind)
