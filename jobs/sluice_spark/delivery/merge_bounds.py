"""The partitions of a target that a batch can touch, as conditions of its MERGE.

With the bounds, only rows that others add to those partitions refuse the MERGE. They must be exact: a row of the target
that lies outside them is not found, and its key is inserted a second time. So no bound passes through Python's values,
whose times are local: it is read as text and becomes a literal of the column's type in Spark again.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType, UUIDType
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import BinaryType, DataType

from sluice_spark.session.columns import quoted
from sluice_spark.sinks.iceberg import IcebergTarget

BATCH_VIEW = "sluice_batch"
"""The name of the staged rows in the conditions of a MERGE."""

_ORDERED_OTHERWISE = (UUIDType, FloatType, DoubleType)
"""Types without bounds: Iceberg would skip files that hold the key. Spark orders a uuid as text, Iceberg by its halves
as signed numbers; to Spark -0.0 equals 0.0, to Iceberg it is less."""

_MOST_VALUES = 200
"""So many partitions are named one by one in a MERGE; above this number, as a range from the lowest to the highest."""


def partition_bounds(rows: DataFrame, target: IcebergTarget, table: Table) -> list[Column]:
    """The conditions on the target's columns, from the rows of a batch; none for a table without useful partitions.

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
