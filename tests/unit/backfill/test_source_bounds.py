"""At which snapshot a source is read, from the end offset of the stream and the history of the table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV2

from sluice.backfill.intervals import Interval
from sluice.backfill.observe_inputs import bound_of_table, changed_table
from sluice.backfill.old_input_rows import without_old_rows
from sluice.tables.table_observation import RemovedRows

UPDATED = {"added-records": "10", "added-position-deletes": "10"}
REMOVED = RemovedRows(column="at", before=datetime(2026, 8, 22, 12, tzinfo=UTC))
COMPACTED = {"added-records": "100", "deleted-records": "110", "removed-position-deletes": "10"}


def table_of(*operations: str, first: int = 1) -> Table:
    """A table whose snapshots are numbered from 1; those before `first` are expired. An append adds two files."""
    snapshots = [
        {
            "snapshot-id": number,
            "parent-snapshot-id": number - 1 if number > 1 else None,
            "sequence-number": number,
            "timestamp-ms": 1_700_000_000_000 + number,
            "manifest-list": f"s3://b/{number}.avro",
            "summary": {
                "operation": operation,
                "added-data-files": "0" if operation == "replace" else "2",
                "total-data-files": str(2 * number),
            },
        }
        for number, operation in enumerate(operations, start=1)
        if number >= first
    ]
    metadata = TableMetadataV2.model_validate(
        {
            "format-version": 2,
            "location": "s3://b/t",
            "last-column-id": 1,
            "last-updated-ms": 1_700_000_000_000,
            "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
            "current-schema-id": 0,
            "partition-specs": [{"spec-id": 0, "fields": []}],
            "default-spec-id": 0,
            "last-partition-id": 999,
            "sort-orders": [{"order-id": 0, "fields": []}],
            "default-sort-order-id": 0,
            "last-sequence-number": len(operations),
            "current-snapshot-id": len(operations),
            "snapshots": snapshots,
            "refs": {"main": {"snapshot-id": len(operations), "type": "branch"}},
        }
    )
    return Table(("bronze", "flights"), metadata, "s3://b/m.json", PyArrowFileIO(), NoopCatalog("none"))


def offset(snapshot_id: int, position: int, **more: Any) -> dict[str, Any]:
    """An offset as Iceberg's source writes it."""
    return {"version": 1, "snapshot_id": snapshot_id, "position": position, "scan_all_files": False, **more}


@pytest.mark.parametrize(
    ("table", "end", "expected"),
    [
        (table_of("append", "append"), offset(1, 2), 1),
        (table_of("append", "append"), offset(2, 2), 2),
        (table_of("append", "append"), offset(2, 0), 1),
        (table_of("append", "overwrite", "append"), offset(1, 2), 2),
        (table_of("append", "overwrite", "replace", "append"), offset(2, 2), 3),
        (table_of("append", "delete"), offset(2, 0), 2),
    ],
    ids=["all of it", "the head", "none of it", "a correction follows", "at a correction", "at a deletion"],
)
def test_a_source_is_read_as_far_as_the_stream_has(table: Table, end: dict[str, Any], expected: int) -> None:
    bound = bound_of_table(end, table, input_name="records", column=None)

    assert (bound.snapshot_id, bound.problem) == (expected, "")


@pytest.mark.parametrize(
    ("table", "end", "problem"),
    [
        (table_of("append"), offset(1, 1), "the stream has read 1 of the 2 files that snapshot 1 added."),
        (
            table_of("append", "append"),
            offset(2, 0, scan_all_files=True),
            "the stream has read 0 of the 4 files that snapshot 2 added.",
        ),
        (table_of("append"), offset(-1, -1), "the stream has read nothing of bronze.flights yet."),
        (table_of("append"), None, "the stream has read nothing of bronze.flights yet."),
        (table_of("append", "append", first=2), offset(1, 2), "is expired."),
        (table_of("append", "append", first=2), offset(2, 0), "is expired."),
        (
            table_of("append", "append", "replace", "overwrite", "append"),
            offset(1, 2),
            "snapshot 4 corrected bronze.flights after rows that the stream has not read yet.",
        ),
        (
            table_of("append", "overwrite", "append", "delete"),
            offset(1, 2),
            "snapshot 4 corrected bronze.flights after",
        ),
    ],
    ids=[
        "within a snapshot",
        "before the first file of a whole table",
        "at the beginning",
        "unknown",
        "expired",
        "before an expired one",
        "before a correction",
        "between corrections",
    ],
)
def test_what_cannot_be_read_exactly_is_a_problem(table: Table, end: dict[str, Any] | None, problem: str) -> None:
    bound = bound_of_table(end, table, input_name="records", column=None)

    assert bound.snapshot_id is None
    assert problem in bound.problem


@pytest.mark.parametrize(
    ("now", "changed"),
    [
        (table_of("append"), None),
        (table_of("append", "append"), None),
        (table_of("append", "replace"), None),
        (table_of("append", "overwrite"), "snapshot 2 corrected bronze.flights"),
        (table_of("append", "replace", "delete", "append"), "snapshot 3 corrected bronze.flights"),
        (
            table_of("append", "append", "overwrite"),
            "snapshot 3 corrected bronze.flights after rows that the stream has not read yet",
        ),
    ],
)
def test_what_has_changed_an_input_since_the_plan(now: Table, changed: str | None) -> None:
    planned = bound_of_table(offset(1, 2), table_of("append"), input_name="records", column=None)

    assert changed_table(planned, offset(1, 2), now) == changed


def test_an_input_with_another_history_has_changed() -> None:
    planned = bound_of_table(offset(1, 2), table_of("append"), input_name="records", column=None)

    changed = changed_table(replace(planned, snapshot_id=9), offset(1, 2), table_of("append", "replace"))

    assert changed == "the history of bronze.flights does not lead back to snapshot 9"


@pytest.mark.parametrize(
    ("counts", "is_whole"),
    [
        ({"added-records": "3"}, True),
        ({"added-records": "3", "deleted-records": "3"}, True),
        ({"added-records": "3", "deleted-records": "4"}, False),
        ({"added-position-deletes": "1"}, False),
        ({"added-records": "3", "added-equality-deletes": "1"}, False),
    ],
    ids=["an append", "a correction", "a deletion", "a delete file", "a delete file by values"],
)
def test_a_table_is_whole_until_rows_are_removed(counts: dict[str, str], *, is_whole: bool) -> None:
    table = table_of("append", "overwrite")
    summary = table.metadata.snapshots[-1].summary
    assert summary is not None
    summary.additional_properties.update(counts)

    bound = bound_of_table(offset(1, 2), table, input_name="records", column="at")

    assert bound.has_lost_rows is not is_whole
    assert bound.whole() == replace(bound, column=None)


def test_a_compaction_removes_no_row() -> None:
    """It leaves out the 10 of 110 rows that an update has replaced: from delete files beside, it writes data files."""
    table = table_of("append", "overwrite", "replace")
    for snapshot, counts in zip(table.metadata.snapshots[1:], (UPDATED, COMPACTED), strict=True):
        assert snapshot.summary is not None
        snapshot.summary.additional_properties.update(counts)

    assert not bound_of_table(offset(1, 2), table, input_name="records", column="at").has_lost_rows


@pytest.mark.parametrize("is_rolled_back", [False, True], ids=["an expired snapshot between", "rolled back"])
def test_a_history_that_does_not_lead_to_what_was_read_is_a_problem(*, is_rolled_back: bool) -> None:
    """A tag keeps the snapshot that was read. What changed the rows since is unknown: a correction may be expired."""
    table = table_of("append", "append", "overwrite", "append")
    read, head = (2, 1) if is_rolled_back else (1, 4)
    listed = [one for one in table.metadata.snapshots if is_rolled_back or one.snapshot_id != 3]
    table.metadata = table.metadata.model_copy(update={"snapshots": listed, "current_snapshot_id": head})

    bound = bound_of_table(offset(read, 2), table, input_name="records", column=None)

    assert bound.snapshot_id is None
    assert f"does not lead back to snapshot {read}, which the stream has read up to" in bound.problem


@pytest.mark.parametrize(("first", "is_expired"), [(1, False), (2, True)])
def test_a_table_says_that_what_it_has_lost_before_is_unknown(first: int, *, is_expired: bool) -> None:
    table = table_of("append", "append", "append", first=first)

    bound = bound_of_table(offset(3, 2), table, input_name="records", column="at")

    assert (bound.has_expired_history, bound.has_lost_rows) == (is_expired, False)


@pytest.mark.parametrize(("hours", "is_gone"), [(-1, True), (0, False), (1, False)])
def test_of_an_interval_before_what_was_removed_rows_are_missing(hours: int, *, is_gone: bool) -> None:
    table = table_of("append")
    table.metadata.properties.update(REMOVED.entries())
    start = REMOVED.before + timedelta(hours=hours)
    bound = bound_of_table(offset(1, 2), table, input_name="records", column="at")

    found = without_old_rows(bound, table, wide=Interval(start=start, end=start + timedelta(days=1)))

    assert (found.is_gone, bool(found.problem), found.complete_after) == (is_gone, is_gone, REMOVED.before)
    assert found.has_lost_rows
    if is_gone:
        assert found.problem == (
            "of bronze.flights, rows whose at is before 2026-08-22 12:00:00 UTC were removed as too old."
        )
        assert found.way_out.endswith("after 2026-08-22 12:00:00 UTC.")


@pytest.mark.parametrize("column", ["delivered_at", None], ids=["another time", "read whole"])
def test_by_another_time_no_interval_is_known_to_be_whole(column: str | None) -> None:
    """A row that is old by the time of the retention may be of an interval of today."""
    table = table_of("append")
    table.metadata.properties.update(REMOVED.entries())
    start = REMOVED.before + timedelta(days=50)
    bound = bound_of_table(offset(1, 2), table, input_name="records", column=column)

    found = without_old_rows(bound, table, wide=Interval(start=start, end=start + timedelta(days=1)))

    assert (found.is_gone, found.complete_after, found.has_lost_rows) == (True, None, True)
    assert "reads: {records: at}" in found.way_out
    assert ("read by delivered_at" if column else "read whole") in found.problem


def test_a_table_that_removes_nothing_is_as_it_was() -> None:
    table = table_of("append")
    bound = bound_of_table(offset(1, 2), table, input_name="records", column="at")
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert without_old_rows(bound, table, wide=Interval(start=start, end=start + timedelta(days=1))) == bound


def test_a_removal_of_old_rows_corrects_nothing() -> None:
    """It may come between a plan and its end, and behind rows that the stream has not read yet."""
    table = table_of("append", "append", "delete")
    planned = bound_of_table(offset(1, 2), table_of("append"), input_name="records", column=None)
    assert changed_table(planned, offset(1, 2), table) is not None
    removal = table.metadata.snapshots[-1].summary
    assert removal is not None
    removal.additional_properties.update(REMOVED.entries())

    assert changed_table(planned, offset(1, 2), table) is None
    assert bound_of_table(offset(2, 2), table, input_name="records", column=None).snapshot_id == 3
