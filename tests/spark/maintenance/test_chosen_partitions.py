"""Spark rewrites the partitions that are due, whatever their transform, and leaves all other files as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, ClassVar

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform
from tests.fixtures.drill import sampled
from tests.fixtures.workshop import Workshop
from tests.spark.maintenance.test_maintenance import BY_SPARK

from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.ledger.maintenance_runs import StepObservation, StepOutcome
from sluice.maintenance import compaction_plan
from sluice.maintenance.maintenance_plan import MaintenancePlan, plan_maintenance
from sluice.maintenance.maintenance_steps import TableMaintainer
from sluice.maintenance.pin_plan import PinPlan
from sluice.tables.inspection import observe_table
from sluice.tables.table_observation import TableObservation
from sluice_spark.maintenance import SparkProcedures

HOUR = timedelta(hours=1)
SMALL = 48 * 1024**2
COLUMNS = {
    "id": "long",
    "word": "string",
    "at": "timestamptz",
    "local": "timestamp",
    "day": "date",
    "price": "decimal(10,2)",
    "is_new": "boolean",
}
ROWS: Sequence[Mapping[str, Any]] = (
    {"id": -3, "word": "it's", "at": datetime(1969, 12, 31, 23, 30, tzinfo=UTC), "day": date(1969, 12, 31)},
    {"id": 2**40, "word": "null", "at": datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=UTC), "day": date(2024, 2, 29)},
    {"id": 8, "word": 'a "b"/c=d', "at": datetime(2024, 3, 1, tzinfo=UTC), "day": date(2024, 3, 1)},
    {"id": None, "word": None, "at": None, "day": None},
    {"id": 9, "word": "\u00fc%", "at": datetime(2024, 3, 1, 5, tzinfo=UTC), "day": date(2024, 3, 2)},
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning"),
]
"""pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector."""


def rows() -> list[dict[str, Any]]:
    """Rows with values that are hard to name, nulls among them."""
    more: Sequence[Mapping[str, Any]] = (
        {"price": Decimal("-0.50"), "is_new": True},
        {"price": Decimal("10.00"), "is_new": False},
        {"price": Decimal("10.05"), "is_new": True},
        {"price": None, "is_new": None},
        {"price": Decimal("0.00"), "is_new": False},
    )
    return [
        {**one, **two, "local": one["at"] and one["at"].replace(tzinfo=None)}
        for one, two in zip(ROWS, more, strict=True)
    ]


def seen_table(workshop: Workshop, table: str) -> TableObservation:
    """A table as it is."""
    return observe_table(workshop.table(table), name=table, small_file_bytes=SMALL, now=datetime.now(UTC))


def files(workshop: Workshop, table: str) -> dict[str, set[str]]:
    """The data files of each partition."""
    opened = workshop.table(table)
    found: dict[str, set[str]] = {}
    for task in opened.scan().plan_files():
        path = opened.specs()[task.file.spec_id].partition_to_path(task.file.partition, opened.schema())
        found.setdefault(path, set()).add(task.file.file_path)
    return found


PARTITIONED: list[list[dict[str, Any]]] = [
    [{"column": "id"}],
    [{"column": "word"}],
    [{"column": "at"}],
    [{"column": "local"}],
    [{"column": "day"}],
    [{"column": "price"}],
    [{"column": "is_new"}],
    [{"column": "at", "transform": "day"}],
    [{"column": "at", "transform": "hour"}],
    [{"column": "local", "transform": "day"}],
    [{"column": "day", "transform": "month"}],
    [{"column": "at", "transform": "year"}],
    [{"column": "id", "transform": "bucket", "width": 3}],
    [{"column": "word", "transform": "bucket", "width": 3}],
    [{"column": "word", "transform": "truncate", "width": 2}],
    [{"column": "price", "transform": "truncate", "width": 50}],
    [{"column": "at", "transform": "day"}, {"column": "id", "transform": "bucket", "width": 2}],
]


@pytest.mark.parametrize(
    "parts",
    sampled(PARTITIONED, [PARTITIONED[1], PARTITIONED[7], PARTITIONED[12]], full=PARTITIONED),
    ids=lambda parts: "+".join(f"{part.get('transform', 'identity')}_{part['column']}" for part in parts),
)
def test_a_partition_is_rewritten_alone(workshop: Workshop, parts: list[dict[str, Any]]) -> None:
    table = workshop.declare_table("rows", COLUMNS, partitioning=parts)
    for _ in range(2):
        workshop.append(table, rows())
    before = workshop.rows(table)
    procedures = SparkProcedures(catalog="lakehouse", table=table, open_session=lambda: workshop.spark)

    for one in seen_table(workshop, table).partitions:
        earlier = files(workshop, table)
        where = one.filter or ""
        done = procedures.rewrite_data_files({"rewrite-all": "true"}, where=where, is_sorted=False, z_order=())

        later = files(workshop, table)
        assert done["rewritten_data_files_count"] == len(earlier[one.partition]) >= 2, where
        assert not earlier.pop(one.partition) & later.pop(one.partition)
        assert later == earlier, "no file of another partition"
    assert workshop.rows(table) == before


def planned(workshop: Workshop, table: str, *, now: datetime) -> MaintenancePlan:
    """What is planned at a time for a table of which an hour is left alone."""
    declared = {"compaction": {"target_file_bytes": "64MiB", "min_input_files": 3, "leave_recent": "1 hour"}}
    policy = MaintenanceDeclaration.model_validate({**declared, "manifest_rewrite": None, "expiry": None})
    no_pins = PinPlan(pins=(), to_set=(), to_remove=(), holds=(), keep_since=None)
    return plan_maintenance(policy=policy, seen=seen_table(workshop, table), pins=no_pins, now=now)


def carried_out(
    workshop: Workshop, table: str, plan: MaintenancePlan, *, procedures: SparkProcedures | None = None
) -> StepObservation:
    """What becomes of the compaction that is planned."""
    by_spark = SparkProcedures(catalog="lakehouse", table=table, open_session=lambda: workshop.spark)
    maintainer = TableMaintainer(
        name=table,
        table=workshop.table(table),
        procedures=procedures or by_spark,
        before_step=lambda _: None,
        identity="a1",
    )
    return maintainer.carry_out(plan)[1]


def of_words(workshop: Workshop, *, properties: Mapping[str, str] | None = None) -> str:
    """A table that only Spark compacts, with three files in each of two partitions, `b` the newer one; its name."""
    more: dict[str, Any] = {"properties": {**BY_SPARK, **(properties or {})}, "partitioning": [{"column": "word"}]}
    table = workshop.declare_table("rows", {"id": "long", "word": "string"}, **more)
    for word in ("a", "b"):
        for number in range(3):
            workshop.append(table, [{"id": 10 * number + place, "word": word} for place in range(10)])
    return table


def written(workshop: Workshop, table: str, partition: str) -> datetime:
    """When a partition was written last."""
    found = {one.partition: one.written_at for one in seen_table(workshop, table).partitions}[partition]
    assert found is not None
    return found


def test_the_partitions_that_rest_are_compacted_while_another_one_is_written(workshop: Workshop) -> None:
    table = of_words(workshop)
    before, rows_before = files(workshop, table), workshop.rows(table)
    now = written(workshop, table, "word=b") + HOUR - timedelta(milliseconds=1)

    done = carried_out(workshop, table, planned(workshop, table, now=now))

    assert (done.outcome, done.result["rewritten_data_files_count"]) == (StepOutcome.DONE, 3)
    after = files(workshop, table)
    assert (len(after["word=a"]), after["word=b"]) == (1, before["word=b"])
    assert workshop.rows(table) == rows_before
    assert planned(workshop, table, now=now).due == (), "right after a run nothing is due"
    later = now + HOUR
    assert carried_out(workshop, table, planned(workshop, table, now=later)).outcome is StepOutcome.DONE
    assert {len(one) for one in files(workshop, table).values()} == {1}
    assert workshop.rows(table) == rows_before
    assert planned(workshop, table, now=later).due == ()


def test_deletes_of_now_make_a_partition_recent(workshop: Workshop) -> None:
    """A MERGE writes its delete files into the partitions of the rows that it replaces."""
    table = of_words(workshop, properties={"write.delete.mode": "merge-on-read"})
    newest = written(workshop, table, "word=b")
    workshop.spark.sql(f"REFRESH TABLE lakehouse.{table}")
    workshop.spark.sql(f"DELETE FROM lakehouse.{table} WHERE word = 'a' AND id < 5")  # noqa: S608  # our own names

    assert written(workshop, table, "word=a") > newest
    assert written(workshop, table, "word=b") == newest
    plan = planned(workshop, table, now=newest + HOUR)
    assert (plan.steps[1].partitions, plan.steps[1].left) == (("word=b",), 1)


@pytest.mark.full  # every run has the rule (`test_rewrite_calls.py`)
def test_after_a_change_of_the_partitions_all_wait_for_the_recent_one(workshop: Workshop) -> None:
    """Of a file of an earlier spec no filter selects the partition alone."""
    table = of_words(workshop)
    with workshop.table(table).update_spec() as change:
        change.add_field("id", BucketTransform(2), "id_bucket")
    for number in range(3):
        workshop.append(table, [{"id": number, "word": "c"}])
    newest = max(one.written_at for one in seen_table(workshop, table).partitions if one.written_at is not None)

    (_, step, *_) = planned(workshop, table, now=newest + HOUR - timedelta(milliseconds=1)).steps
    assert (str(step.reason), step.calls) == ("partitions_unnamed", ())
    assert "because the table has files of an earlier partition spec" in step.explanation

    rows_before = workshop.rows(table)
    plan = planned(workshop, table, now=newest + HOUR)
    assert [call.where for call in plan.steps[1].calls] == [""]
    assert carried_out(workshop, table, plan).outcome is StepOutcome.DONE
    assert workshop.rows(table) == rows_before


class BeatenProcedures(SparkProcedures):
    """Before it commits a rewrite of the partition `b`, somebody else replaces one of its files."""

    wheres: ClassVar[list[str]] = []
    write: ClassVar[Callable[[], None]]

    def rewrite_data_files(self, options: Mapping[str, str], *, where: str, **order: Any) -> Mapping[str, Any]:
        """Rewrite, and lose where it is that partition."""
        self.wheres.append(where)
        return super().rewrite_data_files(options, where=where, **order)

    @contextmanager
    def _action(self) -> Iterator[tuple[Any, Any, Any]]:
        with super()._action() as loaded:
            if '"b"' in self.wheres[-1]:
                type(self).write()
            yield loaded


@pytest.mark.full  # every run has the steps without Spark (`test_maintenance_steps.py`)
def test_parts_that_lost_against_a_writer_are_no_success(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    table = of_words(workshop)
    before = workshop.rows(table)
    smallest = min(one.data_bytes for one in seen_table(workshop, table).partitions)
    monkeypatch.setattr(compaction_plan, "COMMIT_BYTES", smallest)
    plan = planned(workshop, table, now=written(workshop, table, "word=b") + HOUR)
    assert len(plan.steps[1].calls) == 2
    numbers = iter(range(30))

    def write() -> None:
        opened, number = workshop.table(table), next(numbers)
        row = pa.Table.from_pylist([{"id": number, "word": "b"}], schema=opened.schema().as_arrow())
        opened.overwrite(row, f"id = {number} and word = 'b'")

    monkeypatch.setattr(BeatenProcedures, "write", staticmethod(write), raising=False)
    beaten = BeatenProcedures(catalog="lakehouse", table=table, open_session=lambda: workshop.spark)

    done = carried_out(workshop, table, plan, procedures=beaten)

    assert (done.outcome, done.reason, done.attempts) == (StepOutcome.YIELDED, "writers_won", 3)
    assert done.explanation.endswith("; 1 of 2 parts were made")
    assert done.result["rewritten_data_files_count"] == 3
    after = files(workshop, table)
    assert (len(after["word=a"]), len(after["word=b"]) > 1, next(numbers)) == (1, True, 3)
    assert workshop.rows(table) == before
