"""What conditions leave of a table's files, and which order of its rows would leave less."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform

from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import UsageError
from sluice.layout import row_sample
from sluice.layout.layout_advice import LayoutAdvice, advice_document, advice_sentences, advise_layout, choose_order
from sluice.layout.pruning import FilesRead, TableFilter, files_read, measure_filters, read_data_files, table_filter
from sluice.layout.row_orders import OrderEstimate, RowOrder
from sluice.tables.declared_tables import create_or_evolve_table

NAME = "silver.rows"
COLUMNS = {"a": "long", "b": "long", "word": "string", "noise": "string"}
MIB = 1024**2


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table of many files with values in no order."""

    catalog: SqlCatalog
    declaration: TableDeclaration

    @property
    def table(self) -> Table:
        """The table, freshly loaded."""
        return self.catalog.load_table(NAME)

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append a file of rows to each partition."""
        self.table.append(pa.Table.from_pylist(list(rows), schema=self.table.schema().as_arrow()))

    def filters(self, *texts: str) -> list[TableFilter]:
        """Conditions on the table."""
        return [table_filter(self.table.schema(), text, origin="a test") for text in texts]

    def advice(self, *texts: str) -> LayoutAdvice:
        """The advice for some conditions."""
        table = self.table
        return advise_layout(
            table,
            self.declaration,
            self.filters(*texts),
            files=read_data_files(table),
            group_files=8,
            small_bytes=MIB,
        )


def place_of(folder: Path, **declared: Any) -> Place:
    """A place with an empty table."""
    columns = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
    of_mebibytes = {"maintenance": {"compaction": {"target_file_bytes": "1MiB"}}}
    declaration = TableDeclaration.model_validate(
        {"table": NAME, "description": "d", "owner": "o", "columns": columns} | of_mebibytes | declared
    )
    catalog = SqlCatalog("files", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")
    create_or_evolve_table(catalog, declaration)
    return Place(catalog=catalog, declaration=declaration)


def rows_of(count: int, *, seed: int) -> list[dict[str, Any]]:
    """Rows of a kibibyte each, with values in no order."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    return [
        {
            "a": chance.randrange(1000),
            "b": chance.randrange(1000),
            "word": f"{chance.choice('xyz')}{number}",
            "noise": chance.randbytes(500).hex(),
        }
        for number in range(count)
    ]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A table without partitions of about four full files in ten small ones."""
    found = place_of(tmp_path)
    for seed in range(10):
        found.append(rows_of(900, seed=seed))
    yield found
    found.catalog.close()


@pytest.mark.parametrize(
    "text",
    ["a = 5", "a > 2000", "a is null", "word like 'x%'", "a in (1, 2) and b < 3", "not (a < 0)", "a = 5 or b > 990"],
)
def test_a_condition_leaves_the_files_that_a_scan_by_it_reads(place: Place, text: str) -> None:
    place.append([{"a": 5000, "b": 5000, "word": "w", "noise": "n"}])
    table = place.table

    left = files_read(table, read_data_files(table), place.filters(text)[0])

    scanned = [task.file for task in table.scan(row_filter=text).plan_files()]
    assert left == FilesRead(files=len(scanned), bytes=sum(file.file_size_in_bytes for file in scanned))
    assert measure_filters(table, place.filters(text, "a is not null"))[0] == left


def test_files_of_partitions_that_a_condition_rules_out_are_not_left(tmp_path: Path) -> None:
    """By the bounds of the texts alone, any of the files could have it."""
    place = place_of(tmp_path, partitioning=[{"column": "word", "transform": "bucket", "width": 3}])
    place.append(rows_of(300, seed=1))
    table = place.table

    left = files_read(table, read_data_files(table), place.filters("word = 'y7'")[0])

    assert len(read_data_files(table)) == 3
    assert left.files == len(list(table.scan(row_filter="word = 'y7'").plan_files())) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a =", "cannot be read"),
        ("c = 5", "cannot be read"),
        ("a = 'x'", "cannot be read"),
        ("true", "names no column"),
    ],
)
def test_what_is_no_condition_on_the_table_is_refused_with_its_columns(place: Place, text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as refused:
        place.filters(text)
    assert "`id = 5" in str(refused.value) or "columns" in str(refused.value)


def test_rows_are_sorted_by_the_column_of_the_condition(place: Place) -> None:
    advice = place.advice("a = 500")

    assert advice.now[0].files == 10
    assert advice.suggested is not None
    assert advice.suggested.order == RowOrder(columns=("a",))
    assert advice.suggested.read[0].files == 1
    assert advice.declared is not None
    assert advice.declared.read[0].files == 4, "compaction alone would leave all of its files"
    assert advice.suggested.order.declaration == {
        "sort_order": [{"column": "a"}],
        "maintenance": {"compaction": {"strategy": "sort"}},
    }


def test_conditions_on_different_columns_are_met_by_a_curve_through_both(place: Place) -> None:
    advice = place.advice("a < 60", "b < 60")

    assert advice.suggested is not None
    assert advice.suggested.order == RowOrder(columns=("a", "b"), is_z_order=True)
    by_order = {str(one.order): one.bytes for one in advice.estimates}
    assert by_order["z-order of a and b"] < by_order["sorted by a"]


def test_nothing_is_suggested_where_a_condition_selects_nearly_all_rows(place: Place) -> None:
    advice = place.advice("a < 990")

    assert advice.suggested is None
    assert "no order would clearly help" in "\n".join(advice_sentences(advice))


def test_nothing_is_suggested_for_partitions_of_one_file(tmp_path: Path) -> None:
    place = place_of(tmp_path, partitioning=[{"column": "word", "transform": "bucket", "width": 16}])
    place.append(rows_of(500, seed=1))
    place.append(rows_of(500, seed=2))

    advice = place.advice("a = 500")

    assert advice.suggested is None
    assert advice.declared is not None
    assert advice.declared.read[0].files == 16


def test_the_declared_order_is_not_suggested_again(tmp_path: Path) -> None:
    place = place_of(
        tmp_path,
        sort_order=[{"column": "a"}],
        maintenance={"compaction": {"target_file_bytes": "1MiB", "strategy": "sort"}},
    )
    for seed in range(10):
        place.append(rows_of(900, seed=seed))

    advice = place.advice("a = 500")

    assert advice.declared is not None
    assert advice.declared.order == RowOrder(columns=("a",))
    assert advice.suggested is None


def test_a_column_with_one_value_in_each_partition_is_no_candidate(tmp_path: Path) -> None:
    place = place_of(tmp_path, partitioning=[{"column": "a"}])
    for seed in range(2):
        place.append([{**row, "a": 1} for row in rows_of(900, seed=seed)])

    advice = place.advice("a = 1 and b = 5")

    assert all("a" not in one.order.columns for one in advice.estimates)
    assert {"b"} in [set(one.order.columns) for one in advice.estimates]


@pytest.mark.parametrize(("kept", "condition"), [("none", "a = 500"), ("counts", "a = 500"), ("none", "a is null")])
def test_a_column_without_bounds_is_not_suggested(tmp_path: Path, kept: str, condition: str) -> None:
    place = place_of(tmp_path, properties={"write.metadata.metrics.column.a": kept})
    for seed in range(10):
        place.append(rows_of(900, seed=seed))

    advice = place.advice(condition)

    assert advice.suggested is None
    assert advice.now[0].files == 10
    assert [one.read[0].files for one in advice.estimates] == [4, 4]


def test_bounds_are_cut_as_a_writer_cuts_them(tmp_path: Path) -> None:
    """Sixteen signs of a text are kept, and all these texts begin with the same twenty."""
    place = place_of(tmp_path)
    for seed in range(10):
        place.append([{**row, "word": f"{'w' * 20}{row['a']:03}"} for row in rows_of(900, seed=seed)])

    advice = place.advice(f"word = '{'w' * 20}500'")

    assert advice.now[0].files == 10
    assert advice.suggested is None
    assert [one.read[0].files for one in advice.estimates] == [4, 4]


def test_files_of_an_earlier_partitioning_are_taken_as_they_are(tmp_path: Path) -> None:
    place = place_of(tmp_path)
    for seed in range(2):
        place.append(rows_of(900, seed=seed))
    with place.table.update_spec() as change:
        change.add_field("b", BucketTransform(2), "b_bucket")
    for seed in range(2, 4):
        place.append(rows_of(900, seed=seed))

    advice = place.advice("a = 500")

    assert advice.now[0].files == 2 + 4
    assert [one.read[0].files for one in advice.estimates] == [2 + 2, 2 + 2], "one new file in each partition"


def test_orders_are_not_estimated_from_too_few_rows(place: Place) -> None:
    with patch.object(row_sample, "MOST_ROWS", 100):
        advice = place.advice("a = 500")

    assert advice.estimates == ()
    assert advice.suggested is None


def test_a_table_without_rows_has_no_estimate(tmp_path: Path) -> None:
    advice = place_of(tmp_path).advice("a = 5")

    assert advice.estimates == ()
    assert advice.suggested is None
    assert "too few rows" in "\n".join(advice_sentences(advice))


def estimate(order: RowOrder, size: float) -> OrderEstimate:
    """An estimate of one condition."""
    return OrderEstimate(order=order, read=(FilesRead(files=1, bytes=size),))


AS_THEY_LIE, BY_A, Z = RowOrder(), RowOrder(columns=("a",)), RowOrder(columns=("a", "b"), is_z_order=True)


@pytest.mark.parametrize(
    ("declared", "sorted_size", "z_size", "chosen"),
    [
        (100, 70, 70, BY_A),
        (100, 71, 71, None),
        (100, 54, 50, BY_A),
        (100, 56, 50, Z),
        (0, 0, 0, None),
    ],
    ids=["a clear margin", "no clear margin", "the plainer one for a tenth more", "the better one", "nothing is read"],
)
def test_the_plainest_order_that_helps_clearly_is_chosen(
    declared: float, sorted_size: float, z_size: float, chosen: RowOrder | None
) -> None:
    found = choose_order([estimate(AS_THEY_LIE, declared), estimate(BY_A, sorted_size), estimate(Z, z_size)])

    assert (found.order if found else None) == chosen


def test_the_advice_for_a_program_has_every_order_that_was_tried(place: Place) -> None:
    document = advice_document(place.advice("a = 500"))

    assert document["filters"][0]["now"]["files"] == 10
    assert [one["order"] for one in document["estimates"]] == ["as the rows lie", "sorted by a"]
    assert document["suggested"]["sort_order"] == [{"column": "a"}]
    assert document["sample"]["rows"] == 9000
