"""Backfills of outputs whose batches replace rows: the newest row of each key, and whole partitions.

Every run backfills rows that are appended (`test_backfills.py`), and keeps the newest row of each key in a stream
(`tests/spark/delivery/test_merges.py`).
"""

from __future__ import annotations

import pytest
from tests.fixtures.backfills import (
    COLUMNS,
    DAY_5,
    at_step,
    backfill,
    delete_days,
    marks,
    row,
    rows_of_days,
)
from tests.fixtures.workshop import Workshop

from sluice.ledger.backfill_attempts import BackfillState
from sluice.publication.crash_points import CrashPoint


@pytest.mark.full
def test_of_each_key_the_newest_row_of_the_interval_remains(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    columns = {**COLUMNS, "version": "long"}
    source, target = (workshop.declare_table(table, columns) for table in ("source", "target"))
    workshop.declare_stream(
        name,
        sql="SELECT * FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={
            "copies": {
                "iceberg": {"table": target, "mode": "merge", "keys": ["id", "at"], "ordering_column": "version"}
            }
        },
        backfill={"column": "at", "balance": "rows"},
    )
    for version in (1, 2):
        workshop.append("source", [{**one, "version": version} for one in rows_of_days(f"w{version}")])
        workshop.run(name)
    merged = workshop.rows("target")
    assert {one["word"] for one in merged} == {"w2"}
    before = marks(workshop, "target")
    delete_days(workshop, "target")

    result = backfill(workshop, name)

    assert workshop.rows("target") == merged
    rows = result.rows
    assert (rows["read"], rows["published"], rows["outside"], rows["duplicate"]) == (48, 9, 30, 9)
    assert backfill(workshop, name).state is BackfillState.UNCHANGED
    assert marks(workshop, "target") == before


@pytest.mark.full
def test_whole_partitions_within_the_interval_are_replaced(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", COLUMNS, partitioning=[{"column": "at", "transform": "day"}])
    workshop.declare_stream(
        name,
        sql="SELECT * FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"copies": {"iceberg": {"table": target, "mode": "overwrite_partitions"}}},
        backfill={"column": "at", "balance": "rows"},
    )
    workshop.append("source", rows_of_days())
    workshop.run(name)
    delete_days(workshop, "target", end="2013-01-07")

    def go_on() -> None:
        """A batch of the stream replaces the partition of a day that is being backfilled."""
        workshop.append("source", [row(69, day=6)])
        workshop.run(name)
        assert [one["id"] for one in workshop.rows("target") if one["at"].day == 6] == [69]

    result = backfill(workshop, name, start=DAY_5, end="2013-01-07", reached=at_step(CrashPoint.STAGED, go_on))

    assert workshop.rows("target") == sorted([*rows_of_days(), row(69, day=6)], key=lambda one: one["id"])
    assert (result.key.rsplit("/", 1)[1], result.rows["published"]) == ("2", 7)
    assert backfill(workshop, name, start=DAY_5, end="2013-01-07").state is BackfillState.UNCHANGED
