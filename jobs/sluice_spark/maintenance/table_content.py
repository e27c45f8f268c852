"""Checks that a rewrite kept the content of a table: its rows are counted, and compared within a budget of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice_spark.session.columns import comparable_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a snapshot: the number of its rows, and the sum of their hashes if requested.

    The sum does not depend on the order of the rows, and counts duplicate rows.
    """

    rows: int
    hash_sum: int | None


def contents_of(
    session: SparkSession, qualified: str, snapshot_ids: Sequence[int], *, is_hashed: bool
) -> Mapping[int, Content]:
    """Count the rows of snapshots, and sum up their hashes if requested, in one query.

    Parameters
    ----------
    qualified: the quoted name of the table.
    snapshot_ids: the snapshots.
    is_hashed: whether the rows are hashed.
    """
    found = reduce(
        DataFrame.unionAll,
        [_content(session, qualified, snapshot_id, is_hashed=is_hashed) for snapshot_id in snapshot_ids],
    ).collect()
    return {
        row["snapshot_id"]: Content(
            rows=row["rows"], hash_sum=None if row["hash_sum"] is None else int(row["hash_sum"])
        )
        for row in found
    }


def _content(session: SparkSession, qualified: str, snapshot_id: int, *, is_hashed: bool) -> DataFrame:
    rows = session.read.option("versionAsOf", str(snapshot_id)).table(qualified)
    # Spark cannot hash a map, so its entries are hashed in the order of their keys.
    row_hash = fn.xxhash64(*comparable_columns(rows)) if is_hashed else fn.lit(None)
    return rows.agg(
        fn.lit(snapshot_id).alias("snapshot_id"),
        fn.count(fn.lit(1)).alias("rows"),
        fn.sum(row_hash.cast("decimal(38, 0)")).alias("hash_sum"),
    )


def changed_content(
    session: SparkSession, qualified: str, rewrites: Sequence[tuple[int, int]], *, is_hashed: bool
) -> str:
    """Describe the first difference between a rewrite and its parent; empty when there is none."""
    for parent, rewrite in rewrites:
        found = contents_of(session, qualified, (parent, rewrite), is_hashed=is_hashed)
        if found[parent] != found[rewrite]:
            return f"snapshot {rewrite} contains {found[rewrite]}, its parent {parent} contains {found[parent]}"
    return ""
