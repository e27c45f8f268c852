"""Puts the MERGE of staged rows into a target together; nothing is looked up before it is executed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from pyspark.sql import Column, DataFrame, MergeIntoWriter, SparkSession
from pyspark.sql import functions as fn

from sluice.publication.staging_layout import OPERATION_COLUMN
from sluice_spark.session.identifiers import quoted
from sluice_spark.sinks.iceberg import DELETE, IcebergTarget

BATCH_VIEW = "sluice_batch"
"""The name of the staged rows in the conditions of a MERGE."""


def merge_statement(rows: DataFrame, target: IcebergTarget, bounds: Sequence[Column]) -> MergeIntoWriter:
    """The MERGE of rows into a target; `merge` executes it, again when it was refused.

    Parameters
    ----------
    rows: under the name of `BATCH_VIEW`, one for each key.
    bounds: further conditions on the target's rows, which follow from the equality of keys.
    """
    condition = _same_key(target)
    for bound in bounds:
        condition = condition & bound
    newer = _is_newer(target)
    merge = rows.mergeInto(target.identifier, condition)
    merge = merge.whenMatched(_is_delete() if newer is None else newer & _is_delete()).delete()
    merge = merge.whenMatched(newer).updateAll()
    return merge.whenNotMatched(~_is_delete()).insertAll()


def ordering_of(target: IcebergTarget) -> str | None:
    """The column by which a change is newer than another, in whichever batch; none when the batch alone says it."""
    return target.declared.ordering_column if target.declared.operation_column is not None else None


def _same_key(target: IcebergTarget) -> Column:
    """When a row of the batch and one of the target are of the same key."""
    keys = (quoted(key) for key in target.declared.keys)
    return fn.expr(" AND ".join(f"{target.identifier}.{key} = {BATCH_VIEW}.{key}" for key in keys))


def _is_delete() -> Column:
    """When a row of the batch takes its key out of the target; one without an operation does not."""
    return fn.coalesce(fn.col(f"{BATCH_VIEW}.{OPERATION_COLUMN}"), fn.lit("")) == DELETE


def _is_newer(target: IcebergTarget) -> Column | None:
    """When a row of the batch may touch the target's: a change that comes late changes nothing. Rows that no ordering
    places are the oldest; of two that tie, the one that comes later counts, which makes a repeated merge harmless.
    None where nothing is ordered: always."""
    ordering = ordering_of(target)
    if ordering is None:
        return None
    column = quoted(ordering)
    there = f"{target.identifier}.{column}"
    return fn.expr(f"{there} IS NULL OR coalesce({BATCH_VIEW}.{column} >= {there}, false)")


@contextmanager
def summary_of_sql(spark: SparkSession, summary: Mapping[str, str]) -> Iterator[None]:
    """Snapshots that SQL commits meanwhile carry these properties in their summary."""
    names = {f"spark.sql.iceberg.snapshot-property.{name}": value for name, value in summary.items()}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name in names:
            spark.conf.unset(name)
