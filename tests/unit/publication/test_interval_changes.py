"""What has changed an interval since a backfill was planned, on a table with real files and history."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import EqualTo
from pyiceberg.table import Table
from pyiceberg.table.snapshots import SnapshotSummaryCollector
from tests.fixtures.delete_files import add_delete_file

from sluice.errors import IntervalChangedError, StagedFilesMissingError, UnpublishableError
from sluice.ledger.batches import PublicationKey
from sluice.publication.checked_commit import commit_checked, snapshot_of
from sluice.publication.interval_files import (
    IntervalOfTable,
    IntervalReplacement,
    TouchedFiles,
    append_staged,
    change_since,
    foreign_change_since,
    touched_files,
)
from sluice.publication.publish_batches import live_files
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staged_batch import BatchSummary, StagedMode, StagedOutput, canonical_offsets

INTERVAL = IntervalOfTable(column="at", start=datetime(2013, 1, 5, tzinfo=UTC), end=datetime(2013, 1, 6, tzinfo=UTC))
OWN = StagedOutput(stream="flights", output="main", target="n.t")
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])
BROKEN = "the history of the table does not lead back to the snapshot on which it was planned"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    """A table with a file in the interval, and one of the day before."""
    catalog = SqlCatalog("unit", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    catalog.create_namespace("n")
    made = catalog.create_table("n.t", SCHEMA)
    append(made, 4, 1)
    append(made, 5, 2)
    yield made
    catalog.close()


def append(table: Table, day: int, number: int, *, batch_of: str = "", empty: bool = False) -> None:
    """Append a row of a day of January; as a published batch of a stream, or as another writer."""
    summary = BatchSummary(
        key=PublicationKey(stream=batch_of, generation=1, batch=number),
        output="main",
        run_id="r",
        token=1,
        start_offsets=canonical_offsets({}),
        end_offsets=canonical_offsets({}),
        rows=1,
        mode=StagedMode(mode="append", table="n.t"),
    )
    rows = [] if empty else [{"id": number, "at": datetime(2013, 1, day, 12, tzinfo=UTC)}]
    table.append(
        pa.Table.from_pylist(rows, schema=SCHEMA), snapshot_properties=summary.properties() if batch_of else {}
    )


def planned(table: Table) -> tuple[int | None, TouchedFiles]:
    """The head and the files on which a backfill is planned."""
    return table.metadata.current_snapshot_id, touched_files(table, INTERVAL)


def change(table: Table, plan: tuple[int | None, TouchedFiles], *, own: StagedOutput | None = OWN) -> str | None:
    """What has changed the interval since."""
    head, touched = plan
    return change_since(table.refresh(), head=head, touched=touched, interval=INTERVAL, own=own)


def test_a_file_that_was_removed_is_noticed(table: Table) -> None:
    plan = planned(table)

    table.delete(EqualTo(term="id", value=2))

    assert change(table, plan) == "1 of its files were removed or rewritten"


def test_a_file_of_another_interval_may_be_removed(table: Table) -> None:
    plan = planned(table)

    table.delete(EqualTo(term="id", value=1))

    assert change(table, plan) is None


def test_only_what_the_stream_itself_has_appended_may_stay(table: Table) -> None:
    plan = planned(table)
    append(table, 5, 3, batch_of="flights")
    assert change(table, plan) is None
    assert change(table, plan, own=None) == f"snapshot {table.metadata.current_snapshot_id} added rows to it", "a merge"

    append(table, 5, 4)

    assert change(table, plan) == f"snapshot {table.metadata.current_snapshot_id} added rows to it"


def test_a_batch_of_another_stream_may_not_stay(table: Table) -> None:
    plan = planned(table)

    append(table, 5, 3, batch_of="corrections")

    assert change(table, plan) == f"snapshot {table.metadata.current_snapshot_id} added rows to it"


def test_rows_of_other_intervals_and_commits_without_rows_may_stay(table: Table) -> None:
    plan = planned(table)
    append(table, 5, 3, batch_of="flights")

    append(table, 4, 4)
    append(table, 5, 5, empty=True)

    assert change(table, plan) is None


def test_rows_count_also_when_their_summary_does_not(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """`added-records` is optional in Iceberg's format; a writer may leave it out."""
    plan = planned(table)
    append(table, 5, 3, empty=True)
    assert foreign_change_since(table.refresh(), head=plan[0], own=OWN) is None, "nothing was added"
    build = SnapshotSummaryCollector.build
    monkeypatch.setattr(
        SnapshotSummaryCollector,
        "build",
        lambda self: {name: value for name, value in build(self).items() if name != "added-records"},
    )

    append(table, 5, 4)

    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert "added-records" not in snapshot.summary.additional_properties
    assert change(table, plan) == f"snapshot {snapshot.snapshot_id} added rows to it"
    assert foreign_change_since(table, head=plan[0], own=OWN) == f"snapshot {snapshot.snapshot_id} is another writer's"


def test_a_history_that_does_not_lead_back_to_the_plan_is_a_change(table: Table) -> None:
    plan = planned(table)
    assert plan[0] is not None
    append(table, 5, 3, batch_of="flights")

    table.maintenance.expire_snapshots().by_ids([plan[0]]).commit()

    assert change(table, plan) == BROKEN
    assert foreign_change_since(table, head=plan[0], own=OWN) == "its history does not lead back to that snapshot"


def test_delete_files_in_an_interval_refuse_it(table: Table) -> None:
    add_delete_file(table)

    with pytest.raises(UnpublishableError, match=r"n\.t has delete files in this interval") as refused:
        touched_files(table.refresh(), INTERVAL)

    assert refused.value.next_step == "Compact the table first: `sluice table maintain n.t`."


def test_after_the_ledger_was_restored_an_attempt_of_the_same_number_replaces_the_interval(table: Table) -> None:
    staging = staged_row(table, 8)
    first = replaced(table, staging)
    table.refresh().delete(EqualTo(term="id", value=8))
    append(table, 5, 9)

    again = replaced(table, staging)

    assert again != first
    assert ids_of(table) == [1, 8]


def test_after_the_ledger_was_restored_rows_of_the_same_number_are_added(table: Table) -> None:
    def added(number: int) -> int:
        staging = staged_row(table, number)
        head = table.refresh().metadata.current_snapshot_id
        files = live_files(staging)
        return append_staged(
            table.catalog, OWN, key="flights/backfill/5/1", head=head, staging=staging, staged=files, summary={}
        )

    assert added(8) != added(9)
    assert ids_of(table) == [1, 2, 8, 9]


@pytest.mark.parametrize("is_replaced", [True, False], ids=["replaced", "appended"])
def test_a_table_never_gets_a_staged_file_that_is_gone(table: Table, is_replaced: bool) -> None:
    staging = staged_row(table, 8)
    files, head = live_files(staging), table.refresh().metadata.current_snapshot_id
    gone = files[0].file_path
    staging.io.delete(gone)

    def publish() -> int:
        if is_replaced:
            return replaced(table, staging)
        return append_staged(table.catalog, OWN, key="k", head=head, staging=staging, staged=files, summary={})

    with pytest.raises(StagedFilesMissingError, match=rf"n\.t stays as it is: 1 of the 1 files .*{gone}"):
        publish()

    assert ids_of(table) == [1, 2]


def test_an_interval_is_not_replaced_when_an_input_was_corrected_meanwhile(table: Table) -> None:
    with pytest.raises(IntervalChangedError, match=r"an input changed .*: snapshot 3 corrected bronze\.flights\."):
        replaced(table, staged_row(table, 8), corrected="snapshot 3 corrected bronze.flights")

    assert ids_of(table) == [1, 2]


def test_an_interval_is_not_replaced_when_it_has_changed_meanwhile(table: Table) -> None:
    plan = planned(table)
    append(table, 5, 3)
    foreign = table.metadata.current_snapshot_id

    with pytest.raises(IntervalChangedError, match=f"the interval changed .*: snapshot {foreign} added rows to it"):
        replaced(table, staged_row(table, 8), plan=plan)

    assert ids_of(table) == [1, 2, 3]


def test_what_the_stream_appends_meanwhile_stays_beside_the_new_rows(table: Table) -> None:
    plan = planned(table)
    append(table, 5, 3, batch_of="flights")

    with pytest.raises(IntervalChangedError, match="added rows to it"):
        replaced(table, staged_row(table, 8), plan=plan, replaces_rows=True)
    replaced(table, staged_row(table, 9), plan=plan)

    assert ids_of(table) == [1, 3, 9]


def test_an_interval_of_a_table_of_another_version_is_not_replaced(table: Table) -> None:
    old = table.catalog.create_table("n.old", SCHEMA, properties={"format-version": "1"})

    with pytest.raises(UnpublishableError, match=r"n\.old has format version 1"):
        replacement(table, staged_row(table, 8)).plan(old)


def test_rows_are_not_published_into_a_table_without_one_of_their_columns(table: Table) -> None:
    """Somebody drops it between staging and commit."""
    staging = staged_row(table, 8)
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("id")

    with pytest.raises(UnpublishableError, match=r"flights/backfill/5/1 was staged under another schema .*id is gone"):
        replaced(table, staging)
    with pytest.raises(UnpublishableError, match=r"flights/backfill/5/1 was staged under another schema .*id is gone"):
        append_staged(
            table.catalog,
            OWN,
            key="flights/backfill/5/1",
            head=table.refresh().metadata.current_snapshot_id,
            staging=staging,
            staged=live_files(staging),
            summary={},
        )

    assert table.refresh().scan().count() == 2


def staged_row(table: Table, number: int) -> Table:
    """A staging table with a row of the interval."""
    staging = table.catalog.create_table(f"n.staged_{number}", SCHEMA)
    append(staging, 5, number)
    return staging


def replacement(
    table: Table,
    staging: Table,
    *,
    corrected: str | None = None,
    plan: tuple[int | None, TouchedFiles] | None = None,
    replaces_rows: bool = False,
) -> IntervalReplacement:
    """The exchange of the interval for what is staged, as the first attempt that the ledger knows.

    corrected: an input. plan: the table as it is now when it is unset. replaces_rows: whether batches of the stream do.
    """
    head, touched = plan or planned(table.refresh())
    return IntervalReplacement(
        output=OWN,
        key="flights/backfill/5/1",
        interval=INTERVAL,
        head=head,
        touched=touched,
        staging=staging,
        staged=live_files(staging),
        summary={},
        changed_inputs=lambda: corrected,
        replaces_rows=replaces_rows,
    )


def replaced(
    table: Table,
    staging: Table,
    *,
    corrected: str | None = None,
    plan: tuple[int | None, TouchedFiles] | None = None,
    replaces_rows: bool = False,
) -> int:
    """Replace the interval by what is staged; see `replacement`."""
    made = replacement(table, staging, corrected=corrected, plan=plan, replaces_rows=replaces_rows)
    what = "an interval of n.t"
    return snapshot_of(commit_checked(PyIcebergCommitter(table.catalog), "n.t", made.plan, what=what), what=what)


def ids_of(table: Table) -> list[int]:
    """The ids of all rows."""
    return sorted(int(one["id"]) for one in table.refresh().scan().to_arrow().to_pylist())
