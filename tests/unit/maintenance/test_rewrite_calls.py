"""Spark rewrites the partitions that are due and no other ones, in parts that commit by themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from tests.unit.maintenance.test_maintenance_plan import MIB, NOON, POLICY, decide, partition, table

from sluice.declarations.maintenance_declaration import CompactionDeclaration
from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.compaction_plan import COMMIT_BYTES, MOST_COMMITS, MOST_PARTITIONS
from sluice.maintenance.step_decision import RewriteCall, StepAction, StepDecision, StepReason
from sluice.tables.manifest_reading import PartitionColumn, any_of, condition_of, filter_of, partition_columns
from sluice.tables.table_observation import TableObservation

HOUR = timedelta(hours=1)
GIBIBYTE = 1024 * MIB


def of_day(number: int, *, small_bytes: int = MIB, minutes: int = 600, deleted_rows: int = 0, files: int = 5) -> Any:
    """A partition of a day with small files, and when it was written."""
    seen = partition(files, small_bytes=small_bytes, name=f"day={number}")
    written = NOON - timedelta(minutes=minutes)
    return replace(
        seen,
        rows=100,
        deleted_rows=deleted_rows,
        written_at=written,
        filter=f'{{"type": "eq", "term": "day", "value": {number}}}',
    )


def by_spark(*partitions: Any, **more: Any) -> TableObservation:
    """A partitioned table that only Spark compacts."""
    return replace(table(*partitions), rewrite_limits=("bloom filters",), **more)


def decided(seen: TableObservation) -> StepDecision:
    """What is decided about the files of a table of which an hour is left alone."""
    compaction = CompactionDeclaration.model_validate({"target_file_bytes": 64 * MIB, "leave_recent": "1 hour"})
    policy = POLICY.model_copy(update={"compaction": compaction})
    return decide(MaintenanceStep.REWRITE_DATA_FILES, seen, policy=policy)


def named(decision: StepDecision) -> list[set[int]]:
    """The days that each call names."""
    return [_days(json.loads(call.where)) for call in decision.calls]


def _days(found: Mapping[str, Any]) -> set[int]:
    return {found["value"]} if found["type"] == "eq" else _days(found["left"]) | _days(found["right"])


def test_spark_is_asked_for_the_partitions_that_are_due_and_not_for_recent_ones() -> None:
    decision = decided(by_spark(of_day(1), of_day(2, minutes=1), of_day(3, files=4), of_day(4)))

    assert (decision.action, decision.left) == (StepAction.RUN, 1)
    assert named(decision) == [{1, 4}]
    assert decision.explanation == (
        "10 small files (2097152 bytes) in 2 of 4 partitions, by Spark because of bloom filters, "
        "1 more are left alone as recently written"
    )


def test_a_recent_partition_keeps_no_hidden_rows_of_others() -> None:
    seen = by_spark(of_day(1, deleted_rows=40), of_day(2, deleted_rows=40, minutes=1), of_day(3))
    decision = decided(replace(seen, rewrite_limits=()))

    assert (decision.reason, decision.is_for_spark) == (StepReason.DELETED_ROWS, True)
    assert named(decision) == [{1, 3}]
    assert decision.cost_bytes == 2 * MIB


@pytest.mark.parametrize(
    ("change", "named", "because"),
    [
        ({"has_earlier_spec": True}, True, "files of an earlier partition spec"),
        ({}, False, "partitions whose values no filter of Iceberg can name"),
    ],
    ids=["evolved", "no exact filter"],
)
def test_partitions_that_cannot_be_named_wait_for_the_recent_ones(
    change: dict[str, Any], named: bool, because: str
) -> None:
    first = of_day(1) if named else replace(of_day(1), filter=None)
    decision = decided(by_spark(first, of_day(2, minutes=1), **change))
    assert (decision.action, decision.reason) == (StepAction.SKIP, StepReason.PARTITIONS_UNNAMED)
    assert because in decision.explanation

    of_all = decided(by_spark(replace(first, small_files=9_000), of_day(2), **change))
    assert of_all.calls == (RewriteCall(),), "all of them, as none is recent, and once: Iceberg finds others besides"
    assert of_all.explanation.startswith("5000 small files"), "one call rewrites no more"
    assert of_all.left == 2
    assert of_all.action is StepAction.RUN


def test_a_table_without_partitions_needs_no_filter() -> None:
    assert filter_of((), [Record()]) == ""
    assert decided(by_spark(replace(of_day(1), partition="", filter=""))).calls == (RewriteCall(),)


def test_much_is_committed_in_parts() -> None:
    decision = decided(by_spark(*(of_day(day, small_bytes=GIBIBYTE // 2, files=20) for day in range(8))))
    assert named(decision) == [{0, 1}, {2, 3}, {4, 5}, {6, 7}]
    assert {tuple(call.options) for call in decision.calls} == {()}

    huge = decided(by_spark(*(of_day(day, small_bytes=100 * COMMIT_BYTES, files=5000) for day in range(20))))
    assert len(huge.calls) == MOST_COMMITS
    assert huge.left == 10
    assert huge.explanation.startswith("50000 small files (")
    assert "in 10 of 20 partitions" in huge.explanation
    assert huge.cost_bytes == 10 * 100 * COMMIT_BYTES


def test_of_a_partition_with_more_files_than_a_run_rewrites_a_part_is_left() -> None:
    decision = decided(by_spark(of_day(1, files=60_000), of_day(2)))

    assert [dict(call.options) for call in decision.calls] == [{"max-files-to-rewrite": "5000"}] * MOST_COMMITS
    assert decision.explanation.startswith("50000 small files (")
    assert (decision.left, named(decision)) == (2, [{1}] * MOST_COMMITS)


def test_hidden_rows_go_first_where_many_partitions_gain_more() -> None:
    most = MOST_PARTITIONS * MOST_COMMITS
    few = [of_day(day) for day in range(most)]
    hidden = [of_day(most + day, files=0, deleted_rows=40) for day in range(most)]
    decision = decided(by_spark(*few, *hidden))

    days = set().union(*named(decision))
    assert (len(days), len([day for day in days if day >= most])) == (most, most // 4)
    assert (decision.reason, decision.left) == (StepReason.DELETED_ROWS, most)


def test_a_partition_of_many_files_is_committed_in_parts() -> None:
    decision = decided(by_spark(of_day(1, small_bytes=3 * GIBIBYTE, files=12_000), of_day(2)))

    assert named(decision) == [{1}, {1}, {1}, {2}]
    assert [dict(call.options) for call in decision.calls] == [{"max-files-to-rewrite": "4000"}] * 3 + [{}]


def test_many_bytes_alone_are_rewritten_once() -> None:
    """A further call would find what the one before has written, where that is small or has deletes of meanwhile."""
    decision = decided(by_spark(of_day(1, small_bytes=9 * GIBIBYTE, files=400), of_day(2)))
    assert named(decision) == [{1}, {2}]
    assert {tuple(call.options) for call in decision.calls} == {()}


def test_a_run_names_so_many_partitions_at_most_and_the_next_one_the_others() -> None:
    most = MOST_PARTITIONS * MOST_COMMITS
    few = [of_day(day) for day in range(most)]
    decision = decided(by_spark(*few, of_day(most, files=9), of_day(most + 1)))

    assert max(len(days) for days in named(decision)) == MOST_PARTITIONS
    assert sum(len(days) for days in named(decision)) == most
    assert most in named(decision)[0], "what gains most comes first"
    assert decision.left == 2
    assert decision.explanation.endswith(", 2 more are left to the next run")


def test_partitions_with_one_path_are_named_together() -> None:
    """A null and the text `null` have the same path."""
    column = PartitionColumn(column="day", transform="identity", kind=StringType)
    found = filter_of((column,), [Record("null"), Record(None)])

    assert json.loads(found or "") == {
        "type": "or",
        "left": {"type": "eq", "term": "day", "value": "null"},
        "right": {"type": "is-null", "term": "day"},
    }
    assert found == filter_of((column,), [Record(None), Record("null")]), "in every process"
    assert filter_of((replace(column, kind=None),), [Record("null")]) is None
    of_days = (replace(column, kind=DateType),)
    assert filter_of(of_days, [Record(None), Record(10**7)]) is None, "one that cannot be named, beside one that can"


def columns_of(kind: IcebergType, transform: str) -> tuple[PartitionColumn, ...]:
    """The partition columns of a table that is partitioned by a column."""
    schema = Schema(NestedField(1, "at", kind), NestedField(2, "other", StringType()))
    spec = PartitionSpec(
        PartitionField(1, 1000, parse_transform(transform), "p"), PartitionField(2, 1001, IdentityTransform(), "o")
    )
    metadata = new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, "s3://lakehouse/rows", {})
    return partition_columns(metadata)


@pytest.mark.parametrize(
    ("kind", "transform", "value", "spelled"),
    [
        (LongType(), "identity", -7, -7),
        (BooleanType(), "identity", False, False),
        (StringType(), "identity", "a'b\u00fc\"", "a'b\u00fc\""),
        (DateType(), "identity", -1, "1969-12-31"),
        (TimestampType(), "identity", 1_000_001, "1970-01-01T00:00:01.000001"),
        (TimestamptzType(), "identity", -1, "1969-12-31T23:59:59.999999+00:00"),
        (DecimalType(12, 2), "identity", "-0.50", "-0.50"),
        (TimestamptzType(), "day", 19_723, "2024-01-01"),
        (TimestamptzType(), "hour", -1, -1),
        (TimestampType(), "month", 648, 648),
        (DateType(), "year", 54, 54),
        (UUIDType(), "bucket[8]", 3, 3),
        (StringType(), "truncate[4]", "abcd", "abcd"),
        (LongType(), "truncate[10]", -10, -10),
        (DecimalType(12, 2), "truncate[50]", "10.50", "10.50"),
    ],
)
def test_a_value_is_named_as_iceberg_has_it(kind: IcebergType, transform: str, value: object, spelled: object) -> None:
    columns = columns_of(kind, transform)
    found = condition_of(columns, Record(value, None))

    term = "at" if transform == "identity" else {"type": "transform", "transform": transform, "term": "at"}
    assert found == {
        "type": "and",
        "left": {"type": "eq", "term": term, "value": spelled},
        "right": {"type": "is-null", "term": "other"},
    }


@pytest.mark.parametrize(
    ("kind", "transform", "value"),
    [
        (DoubleType(), "identity", 0.0),
        (DoubleType(), "identity", None),
        (UUIDType(), "identity", "x"),
        (BinaryType(), "truncate[2]", b"a"),
        (DateType(), "identity", 10**7),
        (TimestampType(), "identity", 10**18),
    ],
)
def test_what_cannot_be_named_exactly_is_not_named(kind: IcebergType, transform: str, value: object) -> None:
    assert condition_of(columns_of(kind, transform), Record(value, "x")) is None


def test_a_field_that_was_removed_from_the_spec_names_nothing() -> None:
    columns = columns_of(LongType(), "void")
    assert condition_of(columns, Record(None, "x")) == {"type": "eq", "term": "other", "value": "x"}
    assert condition_of(columns[:1], Record(None)) is None


def test_a_filter_of_many_partitions_is_not_deep() -> None:
    """A parser of JSON refuses a thousand levels."""
    text = any_of(['{"type": "is-null", "term": "day"}'] * MOST_PARTITIONS)

    def depth(found: Mapping[str, Any]) -> int:
        return 1 + max(depth(found["left"]), depth(found["right"])) if "left" in found else 1

    assert depth(json.loads(text)) < 10


def test_rows_are_z_ordered_by_spark() -> None:
    """PyArrow knows no such order."""
    compaction = CompactionDeclaration.model_validate({"strategy": "z_order", "z_order": ["id", "at"]})
    policy = POLICY.model_copy(update={"compaction": compaction})
    seen = replace(by_spark(of_day(1)), rewrite_limits=())
    decision = decide(MaintenanceStep.REWRITE_DATA_FILES, seen, policy=policy)

    assert (decision.is_for_spark, decision.is_sorted, decision.z_order) == (True, False, ("id", "at"))
    assert decision.explanation.endswith("by Spark because of the z-order of rows")
    of_few = replace(by_spark(of_day(1, files=4)), rewrite_limits=())
    assert decide(MaintenanceStep.REWRITE_DATA_FILES, of_few, policy=policy).action is StepAction.SKIP
