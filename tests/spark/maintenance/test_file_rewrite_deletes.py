"""Rows that Spark hides with delete files stay hidden when PyArrow writes the other rows of their files again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.workshop import Workshop

from sluice.maintenance.file_rewrite import CommitConflictError, rewrite_small_files
from sluice.publication.crash_points import CrashPoint
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.tables.catalog import open_catalog

MERGE_ON_READ = {"write.delete.mode": "merge-on-read", "write.delete.granularity": "partition"}

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector."""


@pytest.fixture
def table(workshop: Workshop) -> str:
    """Three files of three rows each, from which Spark has deleted the row 4 with a delete file."""
    name = workshop.declare_table("rows", {"id": "long"}, properties=MERGE_ON_READ)
    for number in range(3):
        workshop.append(name, [{"id": 3 * number + place} for place in range(3)])
    delete(workshop, name, 4)
    return name


def delete(workshop: Workshop, name: str, value: int) -> None:
    """Delete a row as Spark does, with a delete file."""
    workshop.spark.sql(f"DELETE FROM lakehouse.{name} WHERE id = {value}")  # noqa: S608  # our own names


def rewrite(workshop: Workshop, name: str, act: Callable[[], object] = lambda: None) -> Mapping[str, Any]:
    """Put the files together, and do something before the commit."""

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.COMPUTED:
            act()

    return rewrite_small_files(
        PyIcebergCommitter(open_catalog(workshop.settings)),
        name,
        partitions=("",),
        small_file_bytes=10**8,
        compared_bytes=10**9,
        now=datetime.now(UTC),
        identity="a1",
        reached=reached,
    )


def ids(workshop: Workshop, name: str) -> list[int]:
    """The ids in a table, as Spark reads it now."""
    workshop.spark.sql(f"REFRESH TABLE lakehouse.{name}")
    return sorted(row["id"] for row in workshop.spark.table(f"lakehouse.{name}").collect())


WITHOUT_4 = [0, 1, 2, 3, 5, 6, 7, 8]


def test_what_a_delete_file_hides_is_not_written_again(workshop: Workshop, table: str) -> None:
    done = rewrite(workshop, table)
    assert (done["rewritten_data_files_count"], done["added_data_files_count"]) == (3, 1)
    assert ids(workshop, table) == WITHOUT_4
    assert workshop.table(table).scan().count() == 8


def test_what_is_deleted_during_the_rewrite_does_not_come_back(workshop: Workshop, table: str) -> None:
    with pytest.raises(CommitConflictError):
        rewrite(workshop, table, lambda: delete(workshop, table, 7))
    assert ids(workshop, table) == [0, 1, 2, 3, 5, 6, 8]
    assert rewrite(workshop, table)["rewritten_data_files_count"] == 3
    assert ids(workshop, table) == [0, 1, 2, 3, 5, 6, 8]


def test_what_a_rollback_shows_again_during_the_rewrite_is_not_lost(workshop: Workshop, table: str) -> None:
    before = workshop.table(table).history()[-2].snapshot_id

    def roll_back() -> None:
        workshop.table(table).manage_snapshots().rollback_to_snapshot(before).commit()

    with pytest.raises(CommitConflictError):
        rewrite(workshop, table, roll_back)
    assert ids(workshop, table) == list(range(9))
