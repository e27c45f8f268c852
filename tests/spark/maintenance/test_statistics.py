"""Statistics by Spark: computed once, kept by what follows, and refused by a store once."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable
from tests.fixtures.upkeep import maintain
from tests.fixtures.workshop import Workshop
from tests.spark.maintenance.test_maintenance import NO_EXPIRY, step, unneeded

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.maintenance_declaration import StatisticsDeclaration
from sluice.ledger.events import Actor
from sluice.ledger.maintenance_runs import MaintenanceStep, StepOutcome
from sluice.maintenance.orphan_removal import OrphanRemoval
from sluice.maintenance.run_maintenance import problems_after
from sluice.maintenance.statistics_plan import compute_statistics, decide_statistics
from sluice.maintenance.step_decision import StepAction, StepDecision
from sluice.tables.inspection import observe_table
from sluice.tables.table_observation import StatisticsKind, TableObservation
from sluice_spark.maintenance import SparkProcedures

COLUMNS = {"a": "long", "word": "string", "empty": "string"}
STATISTICS = MaintenanceStep.COMPUTE_STATISTICS

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning"),
]


def declared(
    workshop: Workshop, statistics: dict[str, Any], *, policy: dict[str, Any] | None = None, **more: Any
) -> str:
    """A table with two snapshots, whose statistics are declared; its name."""
    maintenance = {"compaction": None, **NO_EXPIRY, **(policy or {}), "statistics": statistics}
    table = workshop.declare_table("rows", COLUMNS, maintenance=maintenance, **more)
    for first in (0, 20):
        append(workshop, table, first)
    return table


def append(workshop: Workshop, table: str, first: int) -> None:
    """Append twenty rows."""
    workshop.append(table, [{"a": number, "word": "xy"[number % 2]} for number in range(first, first + 20)])


def of_columns(workshop: Workshop, table: str) -> dict[int, dict[str, str]]:
    """The number of distinct values that is known of each column, by snapshot."""
    opened = workshop.table(table)
    return {
        file.snapshot_id: {
            opened.schema().find_column_name(blob.fields[0]) or "": (blob.properties or {})["ndv"]
            for blob in file.blob_metadata
        }
        for file in opened.metadata.statistics
    }


def newest_of(workshop: Workshop, table: str) -> int:
    """The newest snapshot."""
    return workshop.table(table).metadata.current_snapshot_id or 0


def test_distinct_values_are_counted_once_and_again_when_the_table_has_changed(workshop: Workshop) -> None:
    table = declared(workshop, {"columns": ["a", "empty"], "older_than": "1 millisecond"})

    first = step(maintain(workshop, table), STATISTICS)

    assert first.outcome is StepOutcome.DONE
    newest = newest_of(workshop, table)
    assert of_columns(workshop, table) == {newest: {"a": "40", "empty": "0"}}
    again = maintain(workshop, table, open_session=unneeded)
    assert (step(again, STATISTICS).outcome, step(again, STATISTICS).reason) == (
        StepOutcome.SKIPPED,
        "statistics_current",
    )
    append(workshop, table, 40)
    assert step(maintain(workshop, table), STATISTICS).outcome is StepOutcome.DONE
    assert of_columns(workshop, table)[newest_of(workshop, table)] == {"a": "60", "empty": "0"}
    assert newest in of_columns(workshop, table), "those of an earlier snapshot stay as long as it does"


def test_what_a_store_refuses_turns_one_run_red_and_no_later_one(workshop: Workshop) -> None:
    """The store of the local stack takes no Parquet file among the metadata of a table."""
    table = declared(workshop, {"columns": ["a"]}, partitioning=[{"column": "word"}])

    first = maintain(workshop, table)

    done = step(first, STATISTICS)
    assert (done.outcome, done.reason) == (StepOutcome.REFUSED, "store_refuses")
    assert "the store takes no statistics of partitions: the object store answers 403, Forbidden" in done.explanation
    assert len(problems_after(workshop.ledger, first)) == 1
    assert of_columns(workshop, table) == {newest_of(workshop, table): {"a": "40"}}, "the others are computed"
    again = maintain(workshop, table, open_session=unneeded)
    assert step(again, STATISTICS).outcome is StepOutcome.SKIPPED
    assert "answers 403" in step(again, STATISTICS).explanation
    assert problems_after(workshop.ledger, again) == ()


def test_partitions_are_counted_in_a_file_that_the_store_takes(workshop: Workshop) -> None:
    table = declared(workshop, {"columns": []}, partitioning=[{"column": "word"}])
    with workshop.table(table).transaction() as change:
        change.set_properties({"write.format.default": "avro"})

    done = step(maintain(workshop, table), STATISTICS)

    assert done.outcome is StepOutcome.DONE
    (listed,) = workshop.table(table).metadata.partition_statistics
    assert listed.statistics_path == done.result["partitions"]
    assert step(maintain(workshop, table, open_session=unneeded), STATISTICS).outcome is StepOutcome.SKIPPED


@pytest.mark.full  # every run: those of an earlier snapshot stay
def test_statistics_are_kept_by_commits_expiry_and_the_removal_of_orphans(workshop: Workshop) -> None:
    at_once = {"expiry": {"older_than": "1 millisecond", "retain_last": 1}, "manifest_rewrite": None}
    table = declared(workshop, {"columns": ["a"], "older_than": "1 day"}, policy=at_once)
    maintain(workshop, table)
    first = newest_of(workshop, table)
    opened = workshop.table(table)
    (path,) = [file.statistics_path for file in opened.metadata.statistics]

    append(workshop, table, 40)
    assert list(of_columns(workshop, table)) == [first], "a commit of pyiceberg"
    with opened.refresh().manage_snapshots() as snapshots:
        snapshots.create_tag(first, "kept")
    assert step(maintain(workshop, table), MaintenanceStep.EXPIRE_SNAPSHOTS).outcome is not StepOutcome.FAILED
    actor, declarations = Actor.component("a test"), load_declarations(workshop.folder)
    OrphanRemoval(catalog=workshop.catalog, ledger=workshop.ledger, declarations=declarations, actor=actor).remove(
        table
    )
    assert list(of_columns(workshop, table)) == [first]
    assert opened.io.new_input(path).exists()

    with opened.refresh().manage_snapshots() as snapshots:
        snapshots.remove_tag("kept")
    maintain(workshop, table)
    assert of_columns(workshop, table) == {}, "they go with their snapshot"
    assert not opened.io.new_input(path).exists()


def test_both_kinds_are_computed_in_a_catalog_of_files(workshop: Workshop, tmp_path: Path) -> None:
    session, name = workshop.spark, "counted.db.rows"
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": str(tmp_path),
        ".cache-enabled": "false",
    }.items():
        session.conf.set(f"spark.sql.catalog.counted{key}", value)
    session.sql(f"CREATE TABLE {name} (id BIGINT, word STRING) USING iceberg PARTITIONED BY (word)")
    session.range(20).selectExpr("id", "if(id % 2 = 0, 'x', 'y') AS word").writeTo(name).append()
    policy, now = StatisticsDeclaration(older_than=timedelta(days=1)), datetime.now(UTC)

    def seen() -> TableObservation:
        files = tmp_path.glob("db/rows/metadata/*.metadata.json")
        newest = max(files, key=lambda file: int(file.name[1:].split(".")[0]))
        return observe_table(StaticTable.from_metadata(str(newest)), name=name, small_file_bytes=1, now=now)

    def decided(*, later: timedelta = timedelta()) -> StepDecision:
        return decide_statistics(policy, seen(), now + later, tried=None)

    engine = SparkProcedures(catalog="counted", table="db.rows", open_session=lambda: session)
    result = compute_statistics(engine, decided())

    assert set(result) == {"basis", "refused", "columns", "partitions"}
    assert [(one.kind, one.columns) for one in seen().statistics] == [
        (StatisticsKind.COLUMNS, ("id", "word")),
        (StatisticsKind.PARTITIONS, ()),
    ]
    assert decided().action is StepAction.SKIP
    session.range(1).selectExpr("id", "'z' AS word").writeTo(name).append()
    assert decided().action is StepAction.SKIP
    assert decided(later=timedelta(days=2)).action is StepAction.RUN
