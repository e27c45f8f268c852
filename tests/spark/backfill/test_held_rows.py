"""What a target held when a backfill was planned: its rows then, under the names that its columns have now."""

from __future__ import annotations

from tests.fixtures.backfills import COLUMNS, DAY_5, row
from tests.fixtures.workshop import Workshop

from sluice.backfill.intervals import parse_interval
from sluice_spark.backfill.held_rows import HeldRows

INTERVAL = parse_interval(DAY_5, "2013-01-06")
PLANNED = [row(1, day=5), row(2, day=6), {"id": 3, "word": "timeless", "at": None}]


def plan(workshop: Workshop) -> HeldRows:
    """The rows as they were before the time and the word got other names, a column came and a row was added."""
    workshop.declare_table("target", COLUMNS)
    workshop.append("target", PLANNED)
    planned = workshop.table("target").current_snapshot()
    assert planned is not None
    table = workshop.table("target")
    with table.update_schema() as change:
        change.rename_column("at", "departure")
        change.rename_column("word", "at")
        change.add_column("note", table.schema().find_type("word"))
    later = {"id": 4, "at": "later", "departure": row(4, day=5)["at"], "note": "n"}
    workshop.append("target", [later])
    catalog = workshop.settings.catalog.name
    table = workshop.table("target")
    return HeldRows.at(workshop.spark, catalog, table, head=planned.snapshot_id, column="departure")


def test_rows_of_a_snapshot_have_the_names_of_now(workshop: Workshop) -> None:
    held = plan(workshop)
    named = [{"id": one["id"], "at": one["word"], "departure": one["at"], "note": None} for one in PLANNED]
    for one in named:
        one["departure"] = one["departure"] and one["departure"].replace(tzinfo=None)  # as PySpark gives it

    found = {
        "everything": held.everything(),
        "of_interval": held.of_interval(INTERVAL),
        "outside": held.outside(INTERVAL),
        "without_time": held.without_time(),
    }

    assert {name: [one.asDict() for one in rows.orderBy("id").collect()] for name, rows in found.items()} == {
        "everything": named,
        "of_interval": named[:1],
        "outside": named[1:2],
        "without_time": named[2:],
    }
