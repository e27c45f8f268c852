"""Checks that a rewrite kept the content of a table: its rows are counted, and compared within a budget of bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice_spark.session.row_content import fingerprint_of, sums_of_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of a snapshot: the number of its rows, and the sums of their hashes if requested."""

    rows: int
    sums: tuple[int, int] | None


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
        row["snapshot_id"]: Content(rows=row["rows"], sums=fingerprint_of(row).sums if is_hashed else None)
        for row in found
    }


def _content(session: SparkSession, qualified: str, snapshot_id: int, *, is_hashed: bool) -> DataFrame:
    rows = session.read.option("versionAsOf", str(snapshot_id)).table(qualified)
    counted = sums_of_rows(rows) if is_hashed else [fn.count(fn.lit(1)).alias("rows")]
    return rows.agg(fn.lit(snapshot_id).alias("snapshot_id"), *counted)


def changed_content(
    session: SparkSession, qualified: str, rewrites: Sequence[tuple[int, int]], *, is_hashed: bool
) -> str:
    """Describe the first difference between a rewrite and its parent; empty when there is none."""
    for parent, rewrite in rewrites:
        found = contents_of(session, qualified, (parent, rewrite), is_hashed=is_hashed)
        if found[parent] != found[rewrite]:
            return f"snapshot {rewrite} contains {found[rewrite]}, its parent {parent} contains {found[parent]}"
    return ""
