"""Delete files of which no manifest says what they hide are written away, too, and then nothing is found to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable
from pyiceberg.transforms import IdentityTransform
from tests.fixtures.drill import first_of
from tests.fixtures.upkeep import maintain
from tests.fixtures.workshop import Workshop
from tests.spark.maintenance.test_chosen_partitions import carried_out
from tests.spark.maintenance.test_deleted_rows import delete, outcome
from tests.spark.maintenance.test_maintenance import NO_EXPIRY, unneeded

from sluice.declarations.maintenance_declaration import CompactionDeclaration, MaintenanceDeclaration
from sluice.ledger.maintenance_runs import StepOutcome
from sluice.maintenance.compaction_plan import decide_compaction
from sluice.maintenance.maintenance_plan import MaintenancePlan, plan_maintenance
from sluice.maintenance.pin_plan import PinPlan
from sluice.maintenance.step_decision import StepAction, StepDecision, StepReason
from sluice.tables.inspection import observe_table
from sluice.tables.table_observation import TableObservation
from sluice_spark.maintenance import SparkProcedures, is_conflict
from sluice_spark.session.jvm import jvm_of

NOW = datetime(2026, 11, 30, tzinfo=UTC)
COMPACTION = {"compaction": {"target_file_bytes": "64MiB", "min_input_files": 50}, **NO_EXPIRY}

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector."""


def of_words(workshop: Workshop, *, is_partitioned: bool = True) -> str:
    """A table with two files of ten rows in each of two partitions; its name."""
    more: dict[str, Any] = {"partitioning": [{"column": "word"}]} if is_partitioned else {}
    table = workshop.declare_table(
        "rows",
        {"id": "long", "word": "string"},
        properties={"write.delete.mode": "merge-on-read", "write.delete.granularity": "partition"},
        maintenance=COMPACTION,
        **more,
    )
    for first in (0, 10):
        workshop.append(table, [{"id": first + place, "word": word} for place in range(10) for word in ("a", "b")])
    return table


def rows(workshop: Workshop, table: str) -> list[tuple[int, str]]:
    """The rows of a table as Spark reads them now: pyiceberg reads no equality deletes."""
    workshop.spark.sql(f"REFRESH TABLE lakehouse.{table}")
    return sorted((row["id"], row["word"]) for row in workshop.spark.table(f"lakehouse.{table}").collect())


def data_files(workshop: Workshop, table: str, word: str) -> set[str]:
    """The data files of a partition."""
    stored = workshop.table(table).inspect.data_files().to_pylist()
    return {one["file_path"] for one in stored if one["partition"]["word"] == word}


def delete_equal(workshop: Workshop, table: str, ids: Sequence[int], *, partition: str = "", spec_id: int = 0) -> None:
    """Delete the rows with some ids by an equality delete, as Flink does."""
    opened = workshop.table(table)
    path = f"{opened.location()}/data/{uuid4().hex}.parquet"
    content = pa.BufferOutputStream()
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})])
    pq.write_table(pa.table({"id": list(ids)}, schema=schema), content)
    written = content.getvalue().to_pybytes()
    with opened.io.new_output(path).create() as file:
        file.write(written)
    jvm = jvm_of(workshop.spark)
    stored = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
        workshop.spark._jsparkSession, f"lakehouse.{table}"
    )
    gateway: Any = workshop.spark.sparkContext._gateway
    fields = gateway.new_array(gateway.jvm.int, 1)
    fields[0] = 1
    built = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(stored.specs().get(spec_id))
    built = built.ofEqualityDeletes(fields).withPath(path).withFormat("parquet")
    built = built.withFileSizeInBytes(len(written)).withRecordCount(len(ids))
    if partition:
        built = built.withPartitionPath(partition)
    stored.newRowDelta().addDeletes(built.build()).commit()


@pytest.mark.parametrize("is_partitioned", first_of(True, False), ids=["partitioned", "one partition"])
def test_delete_files_that_data_files_share_are_written_away(workshop: Workshop, is_partitioned: bool) -> None:
    table = of_words(workshop, is_partitioned=is_partitioned)
    delete(workshop, table, "word = 'a' AND id BETWEEN 3 AND 18")
    delete(workshop, table, "word = 'b' AND id = 4")
    before = rows(workshop, table)
    kept = data_files(workshop, table, "b") if is_partitioned else set()

    run = maintain(workshop, table)

    assert outcome(run) == (StepOutcome.DONE, "deleted_rows")
    assert rows(workshop, table) == before
    assert [(row["id"], row["word"]) for row in workshop.rows(table)] == before, "read without Spark"
    assert len(before) == 23
    assert run.before.delete_files > run.after.delete_files
    assert run.after.delete_files == is_partitioned, "those of the other partition hide too little"
    assert not is_partitioned or data_files(workshop, table, "b") == kept
    assert outcome(maintain(workshop, table, open_session=unneeded))[0] is StepOutcome.SKIPPED


@pytest.mark.full  # every run: other shared ones, above
def test_a_rewritten_file_whose_name_is_among_those_of_a_shared_delete_file_is_not_rewritten_again(
    workshop: Workshop,
) -> None:
    """Of such a delete file Iceberg knows the first and the last name, and the delete is the newest commit."""
    table = workshop.declare_table(
        "rows",
        {"id": "long"},
        properties={"write.delete.mode": "merge-on-read", "write.delete.granularity": "partition"},
        maintenance=COMPACTION,
    )
    opened = workshop.table(table)
    paths = [f"{opened.location()}/data/{name}.parquet" for name in ("0", "z")]
    for place, path in enumerate(paths):
        content = pa.BufferOutputStream()
        pq.write_table(pa.table({"id": range(10 * place, 10 * place + 10)}), content)
        with opened.io.new_output(path).create() as file:
            file.write(content.getvalue().to_pybytes())
    opened.add_files(paths)
    delete(workshop, table, "id BETWEEN 3 AND 18")

    run = maintain(workshop, table)

    assert outcome(run) == (StepOutcome.DONE, "deleted_rows")
    assert [row["id"] for row in workshop.rows(table)] == [0, 1, 2, 19]
    assert run.after.delete_files == 0
    assert outcome(maintain(workshop, table, open_session=unneeded))[0] is StepOutcome.SKIPPED


@pytest.mark.full  # every run: those that hide much
def test_shared_delete_files_that_hide_nothing_go_once(workshop: Workshop) -> None:
    """A data file that they are of is gone, and the other one stays, for which Iceberg keeps them."""
    table = of_words(workshop)
    delete(workshop, table, "word = 'a' AND id IN (1, 2, 3, 4, 5, 6, 7, 8, 11)")
    workshop.spark.sql(f"DELETE FROM lakehouse.{table} WHERE word = 'a' AND id < 10")  # noqa: S608  # our own names
    before = rows(workshop, table)

    first = maintain(workshop, table)
    second = maintain(workshop, table, open_session=unneeded)

    assert rows(workshop, table) == before
    assert first.after.delete_files == 0
    assert outcome(second)[0] is StepOutcome.SKIPPED


@pytest.mark.full  # every run: delete files
def test_deletion_vectors_are_written_away_once_they_hide_much(workshop: Workshop, tmp_path: Path) -> None:
    """In a catalog of files: the object store of the local stack takes no deletion vector into a table's folder."""
    session, name = workshop.spark, "vectors.db.rows"
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".warehouse": str(tmp_path),
        ".cache-enabled": "false",
    }.items():
        session.conf.set(f"spark.sql.catalog.vectors{key}", value)
    properties = "TBLPROPERTIES ('format-version' = '3', 'write.delete.mode' = 'merge-on-read')"
    session.sql(f"CREATE TABLE {name} (id BIGINT, word STRING) USING iceberg PARTITIONED BY (word) {properties}")
    for word in ("a", "b"):
        session.range(20).coalesce(2).selectExpr("id", f"'{word}' AS word").writeTo(name).append()

    def delete_below(number: int) -> None:
        session.sql(f"DELETE FROM {name} WHERE word = 'a' AND id < {number}")  # noqa: S608  # our own names

    def seen() -> TableObservation:
        newest = max(
            tmp_path.glob("db/rows/metadata/*.metadata.json"), key=lambda file: int(file.name[1:].split(".")[0])
        )
        return observe_table(StaticTable.from_metadata(str(newest)), name=name, small_file_bytes=1, now=NOW)

    def decided() -> StepDecision:
        return decide_compaction(CompactionDeclaration(), seen(), NOW)

    delete_below(2)
    assert decided().action is StepAction.SKIP
    delete_below(8)
    before, decision = seen(), decided()
    assert [(one.partition, one.deleted_rows) for one in before.partitions] == [("word=a", 8), ("word=b", 0)]
    assert (decision.reason, len(decision.calls)) == (StepReason.DELETED_ROWS, 1)
    (call,) = decision.calls
    procedures = SparkProcedures(catalog="vectors", table="db.rows", open_session=lambda: session)
    done = procedures.rewrite_data_files(
        {**decision.options, **call.options}, where=call.where, is_sorted=False, z_order=()
    )

    assert (done["rewritten_data_files_count"], done["removed_delete_files_count"]) == (1, 1)
    assert (before.delete_files, seen().delete_files) == (1, 0)
    assert sorted((row["id"], row["word"]) for row in session.table(name).collect()) == sorted(
        [*((number, "a") for number in range(8, 20)), *((number, "b") for number in range(20))]
    )
    assert decided().action is StepAction.SKIP


@pytest.mark.full  # every run: beside newer ones, below
def test_equality_deletes_are_written_away_once_they_are_many(workshop: Workshop) -> None:
    table = of_words(workshop)
    delete_equal(workshop, table, [1, 2], partition="word=a")
    assert outcome(maintain(workshop, table, open_session=unneeded))[0] is StepOutcome.SKIPPED
    delete_equal(workshop, table, [5, 11, 12, 500], partition="word=a")
    before, kept = rows(workshop, table), data_files(workshop, table, "b")
    assert [number for number, word in before if word == "a"] == [
        number for number in range(20) if number not in (1, 2, 5, 11, 12)
    ]

    run = maintain(workshop, table)

    assert outcome(run) == (StepOutcome.DONE, "deleted_rows")
    assert rows(workshop, table) == before
    assert run.after.delete_files == 0
    assert data_files(workshop, table, "b") == kept
    assert outcome(maintain(workshop, table, open_session=unneeded))[0] is StepOutcome.SKIPPED


@pytest.mark.full  # as above
def test_equality_deletes_of_all_partitions_stay(workshop: Workshop) -> None:
    """They are of another partition spec than the data files, and hide rows of all of them."""
    table = of_words(workshop, is_partitioned=False)
    delete(workshop, table, "true")
    with workshop.table(table).update_spec() as change:
        change.add_field("word", IdentityTransform(), "word")
    workshop.append(table, [{"id": place, "word": word} for place in range(20, 40) for word in ("a", "b")])
    assert {file["spec_id"] for file in workshop.table(table).inspect.data_files().to_pylist()} == {1}
    delete_equal(workshop, table, range(30, 40))
    delete(workshop, table, "word = 'a' AND id < 29")
    left = sorted([(29, "a"), *((number, "b") for number in range(20, 30))])
    assert rows(workshop, table) == left

    run = maintain(workshop, table)

    assert outcome(run) == (StepOutcome.DONE, "deleted_rows")
    assert rows(workshop, table) == left
    assert run.after.delete_files == 1
    assert outcome(maintain(workshop, table, open_session=unneeded))[0] is StepOutcome.SKIPPED


def planned(workshop: Workshop, table: str, *, min_input_files: int = 50) -> MaintenancePlan:
    """What is planned for a table as it is."""
    policy = MaintenanceDeclaration(
        compaction=CompactionDeclaration(min_input_files=min_input_files), manifest_rewrite=None, expiry=None
    )
    seen = observe_table(workshop.table(table), name=table, small_file_bytes=96 * 1024**2, now=NOW)
    no_pins = PinPlan(pins=(), to_set=(), to_remove=(), holds=(), keep_since=None)
    return plan_maintenance(policy=policy, seen=seen, pins=no_pins, now=NOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overtaken(SparkProcedures):
    """After it has read the table for a rewrite that writes deletes away, somebody else writes."""

    write: Callable[[], None]
    options: dict[str, str] = field(default_factory=dict)

    def rewrite_data_files(self, options: Mapping[str, str], *, where: str, **order: Any) -> Mapping[str, Any]:
        """Rewrite, overtaken where every file with deletes is."""
        self.options.clear()
        self.options.update(options)
        return SparkProcedures.rewrite_data_files(self, options, where=where, **order)

    @contextmanager
    def _action(self) -> Iterator[tuple[Any, Any, Any]]:
        with SparkProcedures._action(self) as loaded:
            if self.options.pop("delete-file-threshold", ""):
                self.write()
            yield loaded


def overtaken(workshop: Workshop, table: str, write: Callable[[], None]) -> Overtaken:
    """The procedures of a table that is written to meanwhile."""
    return Overtaken(catalog="lakehouse", table=table, open_session=lambda: workshop.spark, write=write)


@pytest.mark.parametrize(
    ("is_newest", "attempts"),
    [(False, 1), pytest.param(True, 2, marks=pytest.mark.full)],
    ids=["equality", "newest positions"],
)
def test_equality_deletes_of_meanwhile_hide_their_rows_and_win_no_run(
    workshop: Workshop, is_newest: bool, attempts: int
) -> None:
    """A stream of upserts commits some all the time."""
    table = of_words(workshop)
    delete_equal(workshop, table, [1, 2, 5, 11, 12, 500], partition="word=a")
    if is_newest:
        delete(workshop, table, "word = 'a' AND id IN (3, 18)")
    numbers = iter((7, 8, 9))
    procedures = overtaken(workshop, table, lambda: delete_equal(workshop, table, [next(numbers)], partition="word=a"))
    before = rows(workshop, table)

    done = carried_out(workshop, table, planned(workshop, table), procedures=procedures)

    assert (done.outcome, done.attempts) == (StepOutcome.DONE, attempts)
    gone = {(number, "a") for number in (7, 8)[:attempts]}
    assert rows(workshop, table) == [row for row in before if row not in gone]
    assert planned(workshop, table).due == ()


@pytest.mark.parametrize(
    ("min_input_files", "outcome", "files"),
    [pytest.param(2, StepOutcome.DONE, 1, marks=pytest.mark.full), (50, StepOutcome.YIELDED, 2)],
)
def test_position_deletes_of_meanwhile_win_but_small_files_are_put_together(
    workshop: Workshop, min_input_files: int, outcome: StepOutcome, files: int
) -> None:
    table = of_words(workshop)
    delete_equal(workshop, table, [1, 2, 5, 11, 12, 500], partition="word=a")
    numbers = iter((7, 8, 9))
    procedures = overtaken(workshop, table, lambda: delete(workshop, table, f"word = 'a' AND id = {next(numbers)}"))
    before = rows(workshop, table)
    plan = planned(workshop, table, min_input_files=min_input_files)

    done = carried_out(workshop, table, plan, procedures=procedures)

    assert (done.outcome, len(data_files(workshop, table, "a"))) == (outcome, files)
    gone = {(number, "a") for number in (7, 8, 9)} - {(number, "a") for number in numbers}
    assert rows(workshop, table) == [row for row in before if row not in gone]
    assert len(gone) == done.attempts
    cause = "writers committed first, 3 times of 3: Cannot commit, found new position delete for replaced data file: "
    assert done.outcome is StepOutcome.DONE or done.explanation.startswith(cause)


@pytest.mark.parametrize(
    ("name", "message", "expected"),
    [
        ("CommitFailedException", "Requirement failed: branch main has changed", True),
        ("ValidationException", "Missing required files to delete: s3://lakehouse/a.parquet", True),
        ("ValidationException", "Cannot remove dangling deletes: current snapshot changed from 1 to 2", True),
        ("ValidationException", "Cannot find source column for partition field: 1000: p: identity(7)", False),
        ("ValidationException", "", False),
        ("CommitStateUnknownException", "Cannot commit, the catalog is away", False),
    ],
)
def test_what_iceberg_finds_wrong_with_a_table_is_no_writer(name: str, message: str, expected: bool) -> None:
    assert is_conflict(f"org.apache.iceberg.exceptions.{name}", message) is expected
