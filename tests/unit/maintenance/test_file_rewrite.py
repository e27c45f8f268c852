"""Small files put together without Spark: the same rows in fewer files, whatever writers do and wherever it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.table import Table
from pyiceberg.table.sorting import NullOrder
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import LongType
from requests import RequestException

from sluice.demo.lakehouse_copy import load_extensions, open_database
from sluice.errors import UncertainError
from sluice.maintenance.file_rewrite import CommitConflictError, RewriteDiffersError, rewrite_small_files
from sluice.publication.checked_commit import PreparedCommit, TableChange
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.file_preparation import read_files
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.tables.inspection import observe_table

NAME = "silver.rows"
NOW = datetime(2026, 11, 26, tzinfo=UTC)
SMALL = 96 * 1024**2
_TYPES: dict[str, pa.DataType] = {
    "id": pa.int64(),
    "at": pa.timestamp("us", tz="UTC"),
    "word": pa.string(),
    "price": pa.decimal128(12, 2),
    "ratio": pa.float64(),
    "tags": pa.list_(pa.float64()),
    "notes": pa.map_(pa.string(), pa.int64()),
}
SCHEMA = pa.schema(list(_TYPES.items()))
DAYS = ("at_day=2026-11-20", "at_day=2026-11-21")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table of many small files in two partitions."""

    catalog: SqlCatalog

    def table(self) -> Table:
        """The table, freshly loaded."""
        return self.catalog.load_table(NAME)

    def append(self, *ids: int) -> None:
        """A file in each partition: even ids in the first, odd ones in the second."""
        self.table().append(pa.Table.from_pylist([row(number) for number in ids], SCHEMA))

    def rewrite(
        self, committer: Any = None, *, reached: Reached = unnoticed, compared: int = 10**9
    ) -> Mapping[str, Any]:
        """Put all small files together."""
        return rewrite_small_files(
            committer or PyIcebergCommitter(self.catalog),
            NAME,
            partitions=DAYS,
            small_file_bytes=SMALL,
            compared_bytes=compared,
            now=datetime.now(UTC),
            identity="a1",
            reached=reached,
        )

    def rows(self) -> list[tuple[Any, ...]]:
        """All rows, read by DuckDB."""
        with open_database() as database:
            load_extensions(database)
            scanned = f"iceberg_scan('{self.table().metadata_location.removeprefix('file://')}')"
            return database.execute(f"select columns(*)::varchar from {scanned} order by all").fetchall()  # noqa: S608

    def stored(self) -> set[str]:
        """The names of all data files in the folder of the table."""
        folder = Path(self.table().location().removeprefix("file://")) / "data"
        return {file.name for file in folder.rglob("*.parquet")}

    def live(self) -> set[str]:
        """The names of the data files that the table refers to."""
        return {Path(task.file.file_path).name for task in self.table().scan().plan_files()}


def row(number: int) -> dict[str, Any]:
    """A row with a value of its own, nulls and NaN among them."""
    return {
        "id": number,
        "at": datetime(2026, 11, 20 + number % 2, 8, tzinfo=UTC) + timedelta(seconds=number),
        "word": None if number % 5 == 0 else f"word {number}",
        "price": Decimal(number) / 100,
        "ratio": float("nan") if number % 3 == 0 else float(-number),
        "tags": [float("nan"), None, 1.0] if number % 2 else [],
        "notes": [("b", number), ("a", None)],
    }


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Six files in each of two partitions."""
    catalog = SqlCatalog("rewrites", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("silver")
    table = catalog.create_table(NAME, schema=SCHEMA)
    with table.update_spec() as spec:
        spec.add_field("at", DayTransform())
    with table.update_sort_order() as order:
        order.asc("word", IdentityTransform(), NullOrder.NULLS_LAST)
        order.desc("id", IdentityTransform(), NullOrder.NULLS_FIRST)
    place = Place(catalog=catalog)
    for number in range(0, 24, 4):
        place.append(*range(number, number + 4))
    yield place
    catalog.close()


def test_the_rows_stay_and_the_files_become_few(place: Place) -> None:
    before, old = place.rows(), place.table().current_snapshot()

    done = place.rewrite()

    assert done == {
        "rewritten_data_files_count": 12,
        "added_data_files_count": 2,
        "rewritten_bytes_count": done["rewritten_bytes_count"],
        "failed_data_files_count": 0,
        "rewrites_verified": 2,
        "rows_hashed": True,
    }
    assert place.rows() == before
    newest = place.table().current_snapshot()
    assert newest is not None
    assert old is not None
    assert newest.summary is not None
    assert (newest.parent_snapshot_id, newest.summary.operation.value) == (old.snapshot_id, "replace")
    totals = newest.summary.additional_properties
    assert (totals["total-records"], totals["total-data-files"]) == ("24", "2")
    assert observe_table(place.table(), name=NAME, small_file_bytes=SMALL, now=NOW).manifests == 2


def test_the_new_files_have_the_layout_of_the_table(place: Place) -> None:
    with place.table().update_schema() as change:
        change.rename_column("word", "text")
        change.add_column("late", LongType())
    place.rewrite()

    table = place.table()
    (first, second) = sorted((task.file for task in table.scan().plan_files()), key=lambda file: file.partition[0])
    assert first.sort_order_id == table.metadata.default_sort_order_id == 1
    assert first.spec_id == table.metadata.default_spec_id
    bounds = [(file.lower_bounds[1], file.upper_bounds[1]) for file in (first, second)]
    assert bounds == [tuple(to_bytes(LongType(), end) for end in ends) for ends in ((0, 22), (1, 23))]
    assert (first.null_value_counts[3], first.record_count) == (3, 12)
    stored = pa.parquet.read_table(first.file_path.removeprefix("file://"))
    assert [(field.metadata or {})[b"PARQUET:field_id"] for field in stored.schema][:3] == [b"1", b"2", b"3"]
    words = [(value["text"], value["id"]) for value in stored.to_pylist()]
    assert words == sorted(words, key=lambda pair: (pair[0] is None, pair[0] or "", -pair[1]))


def test_a_second_run_finds_nothing(place: Place) -> None:
    place.rewrite()
    before = place.table().metadata_location
    assert place.rewrite()["rewritten_data_files_count"] == 0
    assert place.table().metadata_location == before


def at(point: CrashPoint, act: Callable[[], object]) -> Reached:
    """Do something once, when a point is reached."""
    left = [act]

    def reached(seen: CrashPoint) -> None:
        if seen is point and left:
            left.pop()()

    return reached


@pytest.mark.parametrize("point", [CrashPoint.COMPUTED, CrashPoint.CHECKED])
def test_what_a_writer_appends_meanwhile_stays(place: Place, point: CrashPoint) -> None:
    done = place.rewrite(reached=at(point, lambda: place.append(100, 101)))

    assert done["failed_data_files_count"] == 0
    assert len(place.rows()) == 26
    assert len(place.live()) == 4


@pytest.mark.parametrize("point", [CrashPoint.COMPUTED, CrashPoint.CHECKED])
def test_a_row_that_a_writer_deletes_meanwhile_does_not_come_back(place: Place, point: CrashPoint) -> None:
    """Only the partition in which the writer was first stays as it is."""
    done = place.rewrite(reached=at(point, lambda: place.table().delete("id = 7")))

    assert done["failed_data_files_count"] == 6
    assert done["rewritten_data_files_count"] == 6
    ids = [int(value[0]) for value in place.rows()]
    assert sorted(ids) == [number for number in range(24) if number != 7]


def test_when_writers_were_first_everywhere_nothing_is_left_behind(place: Place) -> None:
    stored = place.stored()
    with pytest.raises(CommitConflictError, match="writers changed what was rewritten: 2 groups"):
        place.rewrite(reached=at(CrashPoint.COMPUTED, lambda: place.table().overwrite(place.table().scan().to_arrow())))
    assert len(place.rows()) == 24
    assert place.stored() - stored == place.live()


class _StoppedError(Exception):
    """The process ends here."""


def stop() -> None:
    """End the process."""
    raise _StoppedError


@pytest.mark.parametrize("point", [CrashPoint.COMPUTED, CrashPoint.CHECKED])
def test_a_run_that_ends_before_the_commit_changes_nothing_and_the_next_one_does_it(
    place: Place, point: CrashPoint
) -> None:
    before, stored = place.rows(), place.stored()
    with pytest.raises(_StoppedError):
        place.rewrite(reached=at(point, stop))
    assert place.rows() == before
    assert len(place.stored() - stored - place.live()) == 2, "the files for the removal of orphans"
    place.rewrite()
    assert (place.rows(), len(place.live())) == (before, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unanswered:
    """A committer whose answers are lost. lands: whether the commit arrives."""

    committer: PyIcebergCommitter
    lands: bool

    def load(self, identifier: str) -> Table:
        """As the committer does."""
        return self.committer.load(identifier)

    def prepare(self, table: Table, change: TableChange) -> PreparedCommit:
        """As the committer does."""
        made = self.committer.prepare(table, change)
        if self.lands:
            made.send()
        return replace(made, catalog=_Silent())  # type: ignore[arg-type]  # no more of a catalog is used


class _Silent:
    """A catalog that gives no answer."""

    def commit_table(self, *_: object) -> None:
        """Wait for nothing."""
        raise RequestException("no answer")


def test_a_commit_whose_answer_is_lost_is_recognised(place: Place) -> None:
    before = place.rows()
    done = place.rewrite(Unanswered(committer=PyIcebergCommitter(place.catalog), lands=True))
    assert done["rewritten_data_files_count"] == 12
    assert (place.rows(), len(place.live())) == (before, 2)


def test_the_files_of_a_commit_that_may_still_land_are_kept(place: Place) -> None:
    before, stored = place.rows(), place.stored()
    with pytest.raises(UncertainError):
        place.rewrite(Unanswered(committer=PyIcebergCommitter(place.catalog), lands=False))
    assert place.rows() == before
    assert len(place.stored() - stored) == 2


def test_the_files_of_a_commit_that_was_sent_are_kept_when_a_writer_was_first_afterwards(place: Place) -> None:
    """Whether it has landed cannot always be seen: the history that would show it may have expired."""
    stored = place.stored()
    committer = Unanswered(committer=PyIcebergCommitter(place.catalog), lands=False)
    with pytest.raises(CommitConflictError):
        place.rewrite(committer, reached=at(CrashPoint.CHECKED, lambda: place.table().delete("id in (6, 7)")))
    assert len(place.stored() - stored - place.live()) == 2


def spoil(rows: pa.Table) -> pa.Table:
    """The rows with one value changed."""
    return rows.set_column(0, "id", pa.array([*rows["id"].to_pylist()[:-1], 99], rows.schema.field("id").type))


def test_a_file_with_other_rows_is_never_committed(place: Place) -> None:
    head, read = place.table().metadata_location, read_files
    with (
        patch("sluice.maintenance.file_rewrite.read_files", lambda *given: spoil(read(*given))),
        pytest.raises(RewriteDiffersError, match="their rows are others"),
    ):
        place.rewrite()
    assert place.table().metadata_location == head


def test_of_a_table_beyond_the_budget_the_rows_are_counted(place: Place) -> None:
    assert place.rewrite(compared=0)["rows_hashed"] is False


def test_partitions_of_one_path_are_told_apart(place: Place) -> None:
    """A null and the text `null` have the same path."""
    table = place.catalog.create_table("silver.words", schema=SCHEMA)
    with table.update_spec() as spec:
        spec.add_identity("word")
    for number in range(3):
        words: list[dict[str, Any]] = [{"id": number, "word": None}, {"id": number + 3, "word": "null"}]
        place.catalog.load_table("silver.words").append(pa.Table.from_pylist(words, SCHEMA))
    done = rewrite_small_files(
        PyIcebergCommitter(place.catalog),
        "silver.words",
        partitions=("word=null",),
        small_file_bytes=SMALL,
        compared_bytes=10**9,
        now=datetime.now(UTC),
        identity="a1",
    )
    assert (done["rewritten_data_files_count"], done["added_data_files_count"]) == (6, 2)
    rows = place.catalog.load_table("silver.words").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["word"]) for row in rows) == [(n, None if n < 3 else "null") for n in range(6)]


def test_files_of_most_of_the_target_size_become_fewer(place: Place) -> None:
    """Two of them are larger than one file of the target size."""
    sizes = [task.file.file_size_in_bytes for task in place.table().scan().plan_files()]
    done = rewrite_small_files(
        PyIcebergCommitter(place.catalog),
        NAME,
        partitions=DAYS,
        small_file_bytes=max(sizes) + 1,
        compared_bytes=10**9,
        now=datetime.now(UTC),
        identity="a1",
    )
    assert (done["rewritten_data_files_count"], done["added_data_files_count"]) == (12, 6)


def test_a_table_partitioned_by_a_float_is_left_to_spark(place: Place) -> None:
    """NaN equals no partition: pyiceberg finds neither its rows nor its delete files."""
    with place.table().update_spec() as spec:
        spec.add_identity("ratio")
    seen = observe_table(place.table(), name=NAME, small_file_bytes=SMALL, now=NOW)
    assert "partitions by a float" in seen.rewrite_limits


def test_what_only_spark_can_write_again_is_seen(place: Place) -> None:
    def limits() -> tuple[str, ...]:
        return observe_table(place.table(), name=NAME, small_file_bytes=SMALL, now=NOW).rewrite_limits

    assert limits() == ()
    with place.table().transaction() as change:
        change.set_properties({"write.parquet.bloom-filter-enabled.column.id": "true", "write.format.default": "orc"})
    with place.table().update_sort_order() as order:
        order.asc("ratio", IdentityTransform(), NullOrder.NULLS_LAST)
    with place.table().update_spec() as spec:
        spec.add_identity("word")
    assert limits() == (
        "a sort order by what PyArrow does not sort alike",
        "files of the format orc",
        "bloom filters",
        "small files of an earlier partition spec",
    )
