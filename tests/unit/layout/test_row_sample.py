"""Rows that are read for an estimate: grouped as a rewrite groups files, bounded, and said to be what they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from tests.unit.layout.test_layout_advice import MIB, Place, place_of, rows_of

from sluice.errors import LakehouseError
from sluice.layout.pruning import read_data_files
from sluice.layout.row_orders import OrderEstimator, RowOrder
from sluice.layout.row_sample import FileGroup, choose_groups, groups_of, read_sample


def file_of(size: int, *, day: int = 1, spec_id: int = 0) -> DataFile:
    """A data file of so many bytes in a partition."""
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="f.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(day),
        record_count=10,
        file_size_in_bytes=size,
    )
    file.spec_id = spec_id
    return file


def test_files_are_grouped_by_partition_and_up_to_the_size_of_a_rewrite_job() -> None:
    files = [*(file_of(30) for _ in range(7)), file_of(30, day=2), file_of(500, day=2), file_of(30, spec_id=7)]

    groups = groups_of(files, spec_id=0, target_file_bytes=50, group_files=2)

    assert [(len(one.files), one.new_files) for one in groups] == [(3, 2), (3, 2), (1, 1), (1, 1), (1, 10)]


@pytest.mark.parametrize(("size", "new_files"), [(1, 1), (99, 1), (170, 1), (180, 2), (250, 2), (280, 3)])
def test_a_small_rest_makes_no_file_of_its_own(size: int, new_files: int) -> None:
    groups = groups_of([file_of(size)], spec_id=0, target_file_bytes=100, group_files=8)

    assert groups[0].new_files == new_files


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A table without partitions of ten files."""
    found = place_of(tmp_path)
    for seed in range(10):
        found.append(rows_of(900, seed=seed))
    yield found
    found.catalog.close()


def grouped(place: Place) -> tuple[FileGroup, ...]:
    """The groups of the table's files."""
    files = read_data_files(place.table)
    return groups_of(files, spec_id=0, target_file_bytes=MIB, group_files=8)


def test_all_rows_are_kept_where_they_are_within_the_bound(place: Place) -> None:
    sample = read_sample(place.table, grouped(place), ["a"], most_bytes=MIB, seed=1)

    assert sample.rows == 9000
    assert sample.files == 10
    assert all(one.is_whole for one in sample.groups)
    assert sample.bytes < MIB, "of one column alone"


def test_some_files_are_read_where_all_would_be_too_much_and_the_same_seed_reads_the_same(place: Place) -> None:
    every = read_sample(place.table, grouped(place), ["noise"], most_bytes=100 * MIB, seed=1)
    some, again = (read_sample(place.table, grouped(place), ["noise"], most_bytes=2 * MIB, seed=1) for _ in range(2))

    assert 0 < some.files < every.files
    assert some.bytes <= 2 * MIB
    assert not any(one.is_whole for one in some.groups)
    assert some.rows == again.rows
    assert [one.rows for one in some.groups] == [one.rows for one in again.groups]


def test_one_file_of_a_group_is_read_however_large_it_is(place: Place) -> None:
    sample = read_sample(place.table, grouped(place), ["noise"], most_bytes=1, seed=1)

    assert sample.files == len(grouped(place))


def test_a_group_of_which_few_rows_are_known_is_not_enough(place: Place) -> None:
    (group,) = grouped(place)
    few = read_sample(place.table, [group], ["a"], most_bytes=MIB, seed=1).groups[0]

    assert few.is_enough
    assert not type(few)(group=group, rows=few.rows.slice(0, 199), is_whole=False).is_enough
    assert type(few)(group=group, rows=few.rows.slice(0, 200), is_whole=False).is_enough
    assert type(few)(group=group, rows=few.rows.slice(0, 1), is_whole=True).is_enough


def test_groups_are_those_that_a_condition_selects_by_their_partition(tmp_path: Path) -> None:
    place = place_of(tmp_path, partitioning=[{"column": "word", "transform": "truncate", "width": 1}])
    place.append(rows_of(300, seed=1))
    groups = groups_of(
        read_data_files(place.table), spec_id=place.table.spec().spec_id, target_file_bytes=MIB, group_files=8
    )

    chosen = choose_groups(place.table, groups, place.filters("word = 'x5' and a = 3"), seed=1)

    assert [one.files[0].partition[0] for one in chosen] == ["x"]


def test_a_file_that_cannot_be_read_is_an_error_that_names_it(place: Place) -> None:
    groups = grouped(place)
    path = groups[0].files[0].file_path
    Path(path.removeprefix("file://")).write_bytes(b"no parquet")

    with pytest.raises(LakehouseError, match=path):
        read_sample(place.table, groups, ["a"], most_bytes=MIB, seed=1)


def test_between_two_known_rows_of_a_part_every_value_may_lie_in_a_file(place: Place) -> None:
    """With 0, 10, 20, 30 known of a group that makes two files, 15 is in one of them, and not in none."""
    (group,) = grouped(place)
    two = FileGroup(files=group.files, new_files=2)
    sample = read_sample(place.table, [two], ["a"], most_bytes=MIB, seed=1)
    known = pa.table({"a": pa.array([0, 10, 20, 30], pa.int64())})

    def read(*, is_whole: bool) -> float:
        only = type(sample.groups[0])(group=two, rows=known, is_whole=is_whole)
        seen = type(sample)(groups=(only,), files=1, bytes=1)
        estimator = OrderEstimator(table=place.table, groups=[two], sample=seen, filters=place.filters("a = 15"))
        return next(estimator.estimates([RowOrder(columns=("a",))])).read[0].files

    assert read(is_whole=False) == 1
    assert read(is_whole=True) == 0
