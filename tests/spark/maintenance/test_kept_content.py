"""What maintenance must keep: the content of every type of column, and the snapshots that static inputs name."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.fixtures.upkeep import maintain
from tests.fixtures.workshop import Workshop

from sluice.ledger.maintenance_runs import MaintenanceStep, StepOutcome
from sluice_spark.maintenance import changed_content


@pytest.mark.full  # every run has the plan of the pins (`test_pin_plan.py`)
def test_expiry_keeps_the_snapshots_that_static_inputs_name(workshop: Workshop) -> None:
    """By id and by a time, whatever was expired between them and the newest one."""
    expiry = {"compaction": None, "expiry": {"older_than": "1 millisecond", "retain_last": 1}}
    table = workshop.declare_table("rows", {"id": "long", "word": "string"}, maintenance=expiry)
    for number in range(4):
        workshop.append(table, [{"id": number, "word": f"word {number}"}])
    first, second, *_ = workshop.table(table).snapshots()
    then = datetime.fromtimestamp(second.timestamp_ms / 1000, UTC).isoformat()
    arriving = workshop.declare_table("arriving", {"id": "long"})
    places = ("by_id", "by_time")
    workshop.declare_stream(
        f"s{workshop.namespace}",
        python="""
            def transform(records, by_id, by_time):
                return {
                    "by_id": records.crossJoin(by_id.select("word")),
                    "by_time": records.crossJoin(by_time.select("word")),
                }
        """,
        inputs={
            "records": {"stream": {"iceberg": {"table": arriving}}},
            "by_id": {"static": {"iceberg": {"table": table, "snapshot_id": first.snapshot_id}}},
            "by_time": {"static": {"iceberg": {"table": table, "as_of": then}}},
        },
        outputs={
            name: {"iceberg": {"table": workshop.declare_table(name, {"id": "long", "word": "string"})}}
            for name in places
        },
    )

    for _ in range(2):  # the second run has only the tags to go by
        maintain(workshop, table)
    workshop.append("arriving", [{"id": 1}])
    workshop.run(f"s{workshop.namespace}")

    assert len(workshop.table(table).snapshots()) == 3
    assert [row["word"] for row in workshop.rows("by_id")] == ["word 0"]
    assert [row["word"] for row in workshop.rows("by_time")] == ["word 0", "word 1"]


def test_a_table_with_maps_is_compacted_and_compared(workshop: Workshop) -> None:
    columns = {"notes": "map<string, long>", "nested": "list<struct<notes: map<string, long>, id: long>>"}
    compaction = {"compaction": {"target_file_bytes": "64MiB", "min_input_files": 5}}
    name = workshop.declare_table("rows", columns, maintenance=compaction)
    for number in range(6):
        notes = [("b", number), ("a", None)]
        workshop.append(name, [{"notes": notes, "nested": [{"notes": notes, "id": number}, None]}, {"notes": None}])

    run = maintain(workshop, name)

    (done,) = (one for one in run.operations if one.step is MaintenanceStep.REWRITE_DATA_FILES)
    assert (done.outcome, run.after.files) == (StepOutcome.DONE, 1)
    assert (done.result["rewrites_verified"], done.result["rows_hashed"]) == (1, True)
    before, after = (snapshot.snapshot_id for snapshot in workshop.table(name).snapshots()[-3:-1])
    assert "contains Content(rows=" in changed_content(
        workshop.spark, f"`lakehouse`.`{workshop.namespace}`.`rows`", ((before, after),), is_hashed=True
    )


def test_rows_are_counted_where_to_compare_them_would_read_too_much(workshop: Workshop) -> None:
    policy = {"compaction": {"target_file_bytes": "64MiB", "min_input_files": 2}, "content_check_bytes": 0}
    name = workshop.declare_table("rows", {"id": "long"}, maintenance=policy)
    for number in range(3):
        workshop.append(name, [{"id": number}])

    run = maintain(workshop, name)

    (done,) = (one for one in run.operations if one.step is MaintenanceStep.REWRITE_DATA_FILES)
    assert done.outcome is StepOutcome.DONE
    assert (done.result["rewrites_verified"], done.result["rows_hashed"]) == (1, False)
