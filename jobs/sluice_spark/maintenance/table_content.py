"""Whether a rewrite kept what the table holds: the rows before and after it are counted and, when cheap, compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sluice.tables.table_observation import TableObservation

HASHED_UP_TO_BYTES = 256 * 1024**2
"""Up to this size of a table its rows are hashed, which reads it twice: seconds for this much. Above, they are
counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """What a snapshot holds: its rows, and the sum of their hashes when it was asked for.

    The sum does not depend on the order of the rows, and a row that is there twice is in it twice.
    """

    rows: int
    hash_sum: int | None


def contents_of(
    session: SparkSession, qualified: str, snapshot_ids: Sequence[int], *, is_hashed: bool
) -> Mapping[int, Content]:
    """Count the rows of snapshots and, when asked, sum up their hashes; all in one query.

    Parameters
    ----------
    qualified: the table's name, quoted.
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
    """The rewrites on main after a snapshot, each with the snapshot it replaced: (parent, rewrite).

    Other commits may lie in between: a rewrite is compared with its own parent, not with what was there first.
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
    """What differs between the rewrites and what they replaced; empty when nothing does."""
    for parent, rewrite in rewrites:
        found = contents_of(session, qualified, (parent, rewrite), is_hashed=is_hashed)
        if found[parent] != found[rewrite]:
            return f"snapshot {rewrite} holds {found[rewrite]}, snapshot {parent} before it {found[parent]}"
    return ""
