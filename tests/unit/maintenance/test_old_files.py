"""Files with old rows alone leave a table: in one commit, by their bounds, whatever writers do and wherever it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    YearTransform,
)
from requests import RequestException
from tests.unit.maintenance.test_file_rewrite import Place as Rewritten

from sluice.errors import UnpublishableError
from sluice.maintenance.file_rewrite import rewrite_small_files
from sluice.maintenance.old_files import find_old_files, remove_old_files
from sluice.pages.table_looks import look_at
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.sources.iceberg_positions import history_of
from sluice.tables.table_observation import removed_rows

NAME = "silver.rows"
BORDER = datetime(2026, 8, 22, 12, tzinfo=UTC)
DAY = timedelta(days=1)
ZONED = pa.timestamp("us", tz="UTC")
DAILY: Transform[Any, Any] = DayTransform()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table with a file for each of some times."""

    catalog: SqlCatalog
    kind: pa.DataType = ZONED

    def create(
        self, transform: Transform[Any, Any] | None = DAILY, properties: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Create the table, partitioned by its time."""
        schema = pa.schema([("id", pa.int64()), ("at", self.kind)])
        table = self.catalog.create_table(NAME, schema=schema, properties=dict(properties))
        if transform is not None:
            with table.update_spec() as spec:
                spec.add_field("at", transform)

    def table(self) -> Table:
        """The table, freshly loaded."""
        return self.catalog.load_table(NAME)

    def append(self, *times: Any) -> None:
        """Append a row for each time; the ids count on."""
        first = len(self.ids())
        rows = [{"id": first + number, "at": at} for number, at in enumerate(times)]
        self.table().append(pa.Table.from_pylist(rows, pa.schema([("id", pa.int64()), ("at", self.kind)])))

    def ids(self) -> list[int]:
        """The ids of all rows ever appended that are there, read by DuckDB."""
        if self.table().current_snapshot() is None:
            return []
        rows = Rewritten(catalog=self.catalog).rows()
        return sorted(int(row[0]) for row in rows)

    def remove(self, committer: Any = None, *, reached: Reached = unnoticed, **more: Any) -> Mapping[str, Any]:
        """Remove the old rows."""
        given = {"column": "at", "before": BORDER, "read_up_to": None, **more}
        return remove_old_files(committer or PyIcebergCommitter(self.catalog), NAME, reached=reached, **given)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[SqlCatalog]:
    """An empty catalog."""
    catalog = SqlCatalog("old", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("silver")
    yield catalog
    catalog.close()


@pytest.fixture
def place(catalog: SqlCatalog) -> Place:
    """Rows 0 and 1 are old, 2 is not, and 3 is as old as the border."""
    place = Place(catalog=catalog)
    place.create()
    place.append(BORDER - 2 * DAY, BORDER - DAY, BORDER + DAY)
    place.append(BORDER)
    return place


def test_files_whose_newest_row_is_old_go(place: Place) -> None:
    before = place.table().current_snapshot()
    files = {task.file.file_path: task.file.file_size_in_bytes for task in place.table().scan().plan_files()}

    done = place.remove()

    assert (done["removed_data_files_count"], done["removed_rows_count"]) == (2, 2)
    assert 0 < done["removed_bytes_count"] < sum(files.values())
    assert place.ids() == [2, 3]
    newest = place.table().current_snapshot()
    assert newest is not None
    assert before is not None
    assert newest.summary is not None
    assert (newest.parent_snapshot_id, newest.summary.operation.value) == (before.snapshot_id, "delete")
    totals = newest.summary.additional_properties
    assert (totals["deleted-records"], totals["total-records"], totals["total-data-files"]) == ("2", "2", "2")
    said = removed_rows(totals)
    assert said is not None
    assert (said.column, said.before) == ("at", BORDER)
    assert removed_rows(place.table().properties) == said


def test_the_table_is_no_fresher(place: Place) -> None:
    before = look_at(place.table())
    place.remove()
    after = look_at(place.table())
    assert (before.rows, after.rows) == (4, 2)
    assert before.fresh_at == after.fresh_at != after.committed_at


def test_a_second_removal_commits_nothing(place: Place) -> None:
    place.remove()
    newest = place.table().current_snapshot()

    assert place.remove()["removed_data_files_count"] == 0
    assert place.table().current_snapshot() == newest


def test_a_reader_does_not_count_the_rows_as_skipped(place: Place) -> None:
    place.remove()
    place.table().delete("id = 2")
    assert [(step.operation, step.changed_rows) for step in history_of(place.table())][:2] == [
        ("delete", 1),
        ("delete", 0),
    ]


def test_properties_such_as_marks_stay(place: Place) -> None:
    with place.table().transaction() as change:
        change.set_properties({"sluice.mark.orders.main": "a mark"})
    place.remove()
    assert place.table().properties["sluice.mark.orders.main"] == "a mark"


def test_the_property_keeps_the_newest_time(place: Place) -> None:
    place.remove()
    place.append(BORDER - 30 * DAY)
    place.remove(before=BORDER - 10 * DAY)
    said = removed_rows(place.table().properties)
    assert said is not None
    assert said.before == BORDER, "rows before that are gone, whatever is declared now"
    newest = place.table().current_snapshot()
    assert newest is not None
    assert newest.summary is not None
    assert removed_rows(newest.summary.additional_properties) == said, "also where earlier snapshots are expired"


def test_what_a_reader_has_not_read_stays(place: Place) -> None:
    place.append(BORDER - 3 * DAY)
    first = next(iter(reversed(place.table().snapshots()))).sequence_number
    assert first == 3
    found = find_old_files(place.table(), column="at", before=BORDER, read_up_to=2).seen
    assert (found.files, found.rows, found.unread) == (2, 2, 1)

    assert place.remove(read_up_to=2)["removed_rows_count"] == 2
    assert place.ids() == [2, 3, 4]


def test_a_rewritten_file_counts_as_added_by_the_rewrite(place: Place) -> None:
    """Some of its rows may come from a snapshot that the reader has not read."""
    place.append(BORDER - DAY)
    rewrite_small_files(
        PyIcebergCommitter(place.catalog),
        NAME,
        partitions=("at_day=2026-08-21",),
        small_file_bytes=10**6,
        compared_bytes=10**6,
        now=datetime.now(UTC),
        identity="a1",
    )
    newest = place.table().current_snapshot()
    assert newest is not None
    assert newest.sequence_number == 4
    seen = find_old_files(place.table(), column="at", before=BORDER, read_up_to=3).seen
    assert (seen.files, seen.unread) == (1, 1)
    assert find_old_files(place.table(), column="at", before=BORDER, read_up_to=4).seen.files == 2


@pytest.mark.parametrize("times", [(BORDER - DAY, None), (None,)], ids=["a null beside", "nulls alone"])
def test_rows_without_a_time_stay(catalog: SqlCatalog, times: Any) -> None:
    place = Place(catalog=catalog)
    place.create(None)
    place.append(*times)
    assert place.remove()["removed_rows_count"] == 0
    assert place.ids() == list(range(len(times)))


def test_old_rows_beside_others_stay(catalog: SqlCatalog) -> None:
    place = Place(catalog=catalog)
    place.create(None)
    place.append(BORDER - DAY, BORDER + DAY)
    seen = find_old_files(place.table(), column="at", before=BORDER, read_up_to=None).seen
    assert (seen.files, seen.mixed) == (0, 1)
    assert place.remove()["removed_rows_count"] == 0


@pytest.mark.parametrize("transform", [YearTransform(), MonthTransform(), DayTransform(), HourTransform()], ids=str)
@pytest.mark.parametrize("kind", [pa.timestamp("us", tz="UTC"), pa.timestamp("us")], ids=["zoned", "without a zone"])
def test_every_partitioning_by_time(catalog: SqlCatalog, transform: Any, kind: pa.DataType) -> None:
    place = Place(catalog=catalog, kind=kind)
    place.create(transform)
    micro = timedelta(microseconds=1)
    times = [
        datetime(1969, 12, 31, 23, 59, 59, 500000, tzinfo=UTC),
        datetime(1, 1, 2, tzinfo=UTC),
        BORDER - micro,
        BORDER,
        BORDER + 400 * DAY,
    ]
    for at in times:
        place.append(at if kind == ZONED else at.replace(tzinfo=None))
    place.remove()
    assert place.ids() == [3, 4]


@pytest.mark.parametrize("transform", [IdentityTransform(), MonthTransform()], ids=str)
def test_a_date_is_old_when_its_whole_day_is(catalog: SqlCatalog, transform: Any) -> None:
    place = Place(catalog=catalog, kind=pa.date32())
    place.create(transform)
    for day in (date(1969, 12, 31), BORDER.date() - DAY, BORDER.date(), BORDER.date() + DAY):
        place.append(day)
    place.remove()
    assert place.ids() == [2, 3]


def test_files_of_an_earlier_spec_go_too(catalog: SqlCatalog) -> None:
    place = Place(catalog=catalog)
    place.create(None)
    place.append(BORDER - DAY)
    with place.table().update_spec() as spec:
        spec.add_field("at", DayTransform())
        spec.add_field("id", BucketTransform(2))
    place.append(BORDER - DAY, BORDER + DAY)
    assert place.remove()["removed_rows_count"] == 2
    assert place.ids() == [2]


def test_a_file_without_bounds_stays(catalog: SqlCatalog) -> None:
    place = Place(catalog=catalog)
    place.create(properties={"write.metadata.metrics.default": "counts"})
    place.append(BORDER - DAY)
    assert place.remove()["removed_rows_count"] == 0


def test_a_table_without_the_column_or_a_snapshot_has_no_old_rows(catalog: SqlCatalog) -> None:
    place = Place(catalog=catalog)
    place.create()
    assert find_old_files(place.table(), column="at", before=BORDER, read_up_to=None).files == ()
    place.append(BORDER - DAY)
    for column, has_column in (("id", False), ("other", False), ("at", True)):
        found = find_old_files(place.table(), column=column, before=BORDER, read_up_to=None)
        assert (found.files == (), found.seen.has_column) == (not has_column, has_column)


def test_a_tag_keeps_what_it_shows(place: Place) -> None:
    head = place.table().current_snapshot()
    assert head is not None
    place.table().manage_snapshots().create_tag(head.snapshot_id, "audit").commit()
    place.remove()
    assert place.table().refs()["audit"].snapshot_ref_type is SnapshotRefType.TAG
    assert place.table().scan(snapshot_id=head.snapshot_id).to_arrow().num_rows == 4


class _Killed:
    """A committer whose process is killed when its commit has landed."""

    def __init__(self, committer: PyIcebergCommitter) -> None:
        self.committer = committer

    def load(self, identifier: str) -> Table:
        """Load a table."""
        return self.committer.load(identifier)

    def prepare(self, table: Table, change: Any) -> Any:
        """Commit at once, and die."""
        self.committer.prepare(table, change).send()
        os.kill(os.getpid(), signal.SIGKILL)


def _remove_and_die(uri: str, *, has_landed: bool) -> None:
    """In a process of its own: it is killed before its commit is sent, or after."""
    place = Place(catalog=SqlCatalog("old", uri=uri))
    if has_landed:
        place.remove(_Killed(PyIcebergCommitter(place.catalog)))
    place.remove(reached=lambda _: os.kill(os.getpid(), signal.SIGKILL))


@pytest.mark.parametrize("has_landed", [False, True], ids=["before its commit", "after it"])
def test_a_killed_run_is_completed_by_the_next_one(place: Place, has_landed: bool) -> None:
    before = place.table().current_snapshot()
    uri = str(place.catalog.engine.url)
    process = get_context("spawn").Process(target=_remove_and_die, args=(uri,), kwargs={"has_landed": has_landed})
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert (place.table().current_snapshot() == before) is not has_landed

    assert place.remove()["removed_rows_count"] == (0 if has_landed else 2)
    assert place.ids() == [2, 3]
    assert [step.operation for step in history_of(place.table())].count("delete") == 1


def test_a_writer_that_commits_first_keeps_what_it_wrote(place: Place) -> None:
    """It rewrites one of the files, and appends to another partition and an old one."""
    done: list[CrashPoint] = []

    def write(point: CrashPoint) -> None:
        if not done:
            done.append(point)
            place.table().overwrite(
                pa.Table.from_pylist(
                    [{"id": 0, "at": BORDER + 5 * DAY}], pa.schema([("id", pa.int64()), ("at", place.kind)])
                ),
                "id = 0",
            )
            place.append(BORDER - 9 * DAY)

    removed = place.remove(reached=write)

    assert removed["removed_rows_count"] == 2
    assert place.ids() == [0, 2, 3]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Forgetful:
    """A committer whose first answer is lost, after the commit has landed."""

    committer: PyIcebergCommitter
    lost: list[int]

    def load(self, identifier: str) -> Table:
        return self.committer.load(identifier)

    def prepare(self, table: Table, change: Any) -> Any:
        commit = self.committer.prepare(table, change)
        if self.lost:
            return commit
        self.lost.append(commit.snapshot_id)
        catalog = _Silent(catalog=commit.catalog)
        return type(commit)(
            catalog=catalog,  # type: ignore[arg-type]  # it commits, and says nothing
            table=commit.table,
            updates=commit.updates,
            requirements=commit.requirements,
            snapshot_id=commit.snapshot_id,
            sequence_number=commit.sequence_number,
            producer=commit.producer,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Silent:
    catalog: Any

    def commit_table(self, *given: Any) -> NoReturn:
        self.catalog.commit_table(*given)
        raise RequestException("the answer was lost")


def test_a_lost_answer_is_no_second_removal(place: Place) -> None:
    done = place.remove(_Forgetful(committer=PyIcebergCommitter(place.catalog), lost=[]))
    assert done["removed_rows_count"] == 2
    assert [step.operation for step in history_of(place.table())].count("delete") == 1


def test_another_format_version_is_refused(catalog: SqlCatalog) -> None:
    place = Place(catalog=catalog)
    place.create(properties={"format-version": "1"})
    place.append(BORDER - DAY)
    with pytest.raises(UnpublishableError, match="format version 1"):
        place.remove()
