"""Checks that a rewrite kept the content of a table: rows before and after it are counted, and compared when cheap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sluice.tables.table_observation import TableObservation

HASHED_UP_TO_BYTES = 256 * 1024**2
"""The rows of tables up to this size are hashed, which reads the table twice and takes seconds. Rows of larger tables
are counted."""


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
    hash_sum = "sum(CAST(xxhash64(*) AS DECIMAL(38, 0)))" if is_hashed else "CAST(NULL AS DECIMAL(38, 0))"
    # The name is quoted, the snapshots are numbers.
    queries = [
        f"SELECT {int(one)}L AS snapshot_id, count(*) AS rows, {hash_sum} AS hash_sum "  # noqa: S608
        f"FROM {qualified} VERSION AS OF {int(one)}"
        for one in snapshot_ids
    ]
    found = session.sql(" UNION ALL ".join(queries)).collect()
    return {
        row["snapshot_id"]: Content(
            rows=row["rows"], hash_sum=None if row["hash_sum"] is None else int(row["hash_sum"])
        )
        for row in found
    }


def rewrites_since(seen: TableObservation, snapshot_id: int | None) -> tuple[tuple[int, int], ...]:
    """The rewrites on main after a snapshot, each as (parent, rewrite).

    Other commits can be in between, so a rewrite is compared with its own parent and not with the first snapshot.
    """
    found = []
    for snapshot in seen.main_line:
        if snapshot.snapshot_id == snapshot_id:
            break
        if snapshot.operation == "replace" and snapshot.parent_id is not None:
            found.append((snapshot.parent_id, snapshot.snapshot_id))
    return tuple(reversed(found))


def changed_content(
    session: SparkSession, qualified: str, rewrites: tuple[tuple[int, int], ...], *, is_hashed: bool
) -> str:
    """Describe the first difference between a rewrite and its parent; empty when there is none."""
    for parent, rewrite in rewrites:
        found = contents_of(session, qualified, (parent, rewrite), is_hashed=is_hashed)
        if found[parent] != found[rewrite]:
            return f"snapshot {rewrite} contains {found[rewrite]}, its parent {parent} contains {found[parent]}"
    return ""
