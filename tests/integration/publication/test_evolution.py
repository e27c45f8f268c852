"""A target that evolves between staging and publishing, and a staging table that follows it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from tests.fixtures.publication import COLUMNS, Workbench

from sluice.errors import UnpublishableError
from sluice.publication.data_files import Writer, folder_of
from sluice.publication.staging_layout import ensure_staging_table
from sluice.publication.staging_table import load_staging_table
from sluice.stored_keys import OPERATION_COLUMN

SORTED = {"sort_order": [{"column": "id"}]}


@pytest.fixture
def bench(new_bench: Callable[..., Workbench]) -> Workbench:
    """A target with all that a staging table takes over."""
    made = new_bench(
        columns=[*COLUMNS, {"name": "legs", "type": "list<struct<miles: int>>"}],
        properties={"write.parquet.compression-codec": "zstd"},
        **SORTED,
    )
    made.declare()
    made.begin()
    return made


def test_a_staging_table_is_equal_to_its_target(bench: Workbench) -> None:
    staging, target = staging_of(bench), bench.target()
    assert_equal_layout(staging, target)
    assert staging.properties["write.data.path"] == folder_of(target.metadata, Writer.of_run(1))
    assert staging.properties["gc.enabled"] == "false"
    assert staging.properties["write.parquet.compression-codec"] == "zstd"
    assert "comment" not in staging.properties
    before = staging.metadata_location
    bench.begin()
    assert staging_of(bench).metadata_location == before


def test_staged_files_lie_in_the_targets_folder_and_stay_there(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [1]))
    (path,) = [row["file_path"] for row in bench.target().inspect.files().to_pylist()]
    assert path.startswith(f"{bench.target().location()}/data/")
    assert path in [row["file_path"] for row in staging_of(bench).inspect.files().to_pylist()]


def test_a_staging_table_evolves_with_its_target(bench: Workbench) -> None:
    bench.declare(
        columns=[
            *COLUMNS,
            {"name": "legs", "type": "list<struct<miles: long, to: string>>"},
            {"name": "x", "type": "int"},
        ],
        partitioning=[{"column": "id", "transform": "bucket", "width": 4}],
        sort_order=[{"column": "x"}],
        properties={},
    )
    bench.begin()
    staging = staging_of(bench)
    assert_equal_layout(staging, bench.target())
    assert "write.parquet.compression-codec" not in staging.properties


def test_a_batch_that_was_staged_before_columns_were_added_and_widened(new_bench: Callable[..., Workbench]) -> None:
    bench = new_bench(columns=[{"name": "kind", "type": "string"}, {"name": "id", "type": "int"}])
    bench.declare()
    bench.begin()
    early = bench.stage(0, [1])
    bench.declare(columns=[*COLUMNS, {"name": "more", "type": "string"}])
    bench.publish(early)
    bench.begin()
    late = bench.stage(1, [2**40])
    bench.publish(late)
    assert bench.ids() == [1, 2**40]
    assert bench.target().scan().to_arrow().column("more").to_pylist() == [None, None]


def test_a_batch_that_was_staged_before_the_partitioning_changed(bench: Workbench) -> None:
    early = bench.stage(0, [1, 2], kind="a")
    bench.declare(partitioning=[{"column": "id", "transform": "bucket", "width": 4}])
    bench.begin()
    late = bench.stage(1, [3, 4], kind="b")
    published = bench.publish(early, late)
    assert published.published == (early, late)
    assert bench.ids() == bench.ids_by_duckdb() == [1, 2, 3, 4]
    target = bench.target()
    assert ids_of(target, "kind = 'a'") == [1, 2]
    assert ids_of(target, "id = 3") == [3]
    assert {row["spec_id"] for row in target.inspect.files().to_pylist()} == {0, 1}
    snapshot = target.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary["added-records"] == "4"


def test_a_batch_that_was_staged_under_a_spec_the_target_never_had(bench: Workbench) -> None:
    with staging_of(bench).update_spec() as update:
        update.add_identity("id")
    foreign = bench.stage(0, [1])
    with pytest.raises(UnpublishableError, match="never had"):
        bench.publish(foreign)
    assert bench.ids() == []


def test_a_batch_whose_column_somebody_dropped(bench: Workbench) -> None:
    batch = bench.stage(0, [1])
    with bench.target().update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("legs")
    with pytest.raises(UnpublishableError, match="the column legs is gone"):
        bench.publish(batch)
    assert bench.ids() == []


def test_a_sort_order_that_changes_is_followed(bench: Workbench) -> None:
    early = bench.stage(0, [1])
    bench.declare(sort_order=[{"column": "kind"}])
    bench.publish(early)
    bench.begin()
    bench.publish(bench.stage(1, [2]))
    assert bench.ids() == [1, 2]


@pytest.mark.parametrize(
    ("layout", "distribution"),
    [
        ({"sort_order": [], "properties": {}}, None),
        ({"sort_order": [{"column": "kind"}], "properties": {}}, "hash"),
        ({"sort_order": [{"column": "kind"}], "properties": {"write.distribution-mode": "none"}}, "none"),
        ({"sort_order": [], "properties": {"write.distribution-mode": "range"}}, "hash"),
    ],
    ids=["unsorted", "sorted", "sorted, as declared", "by range"],
)
def test_a_batch_is_never_sampled_to_be_sorted_over_all_its_files(
    bench: Workbench, layout: dict[str, Any], distribution: str | None
) -> None:
    bench.declare(**layout)
    bench.begin()
    assert staging_of(bench).properties.get("write.distribution-mode") == distribution


def staging_of(bench: Workbench) -> Table:
    return load_staging_table(bench.open_catalog(), bench.output)


def ids_of(table: Table, condition: str) -> list[int]:
    rows: pa.Table = table.scan(condition).to_arrow()
    return sorted(int(row["id"]) for row in rows.to_pylist())


def assert_equal_layout(staging: Table, target: Table) -> None:
    assert staging.schema() == target.schema()
    assert staging.spec().fields == target.spec().fields
    assert staging.sort_order().fields == target.sort_order().fields


def test_the_staging_table_of_a_merge_has_the_operation_and_its_empty_batches_go_in(bench: Workbench) -> None:
    names = bench.output

    def ensure(*, is_merged: bool) -> None:
        ensure_staging_table(
            bench.catalog,
            stream=names.stream,
            output=names.output,
            target=names.target,
            token=bench.run,
            is_merged=is_merged,
        )

    ensure(is_merged=True)
    before = load_staging_table(bench.catalog, names)
    assert before.schema().column_names == [*bench.target().schema().column_names, OPERATION_COLUMN]
    assert before.schema().fields[:-1] == bench.target().schema().fields
    ensure(is_merged=True)
    assert load_staging_table(bench.catalog, names).metadata_location == before.metadata_location

    bench.declare(columns=[*bench.layout["columns"], {"name": "later", "type": "string"}])
    ensure(is_merged=True)
    staging = load_staging_table(bench.catalog, names).schema()
    assert staging.find_field("later").field_id == bench.target().schema().find_field("later").field_id
    bench.publish(bench.stage(0, []))
    with pytest.raises(UnpublishableError, match=f"the column {OPERATION_COLUMN} is gone"):
        bench.publish(bench.stage(1, [1]))

    ensure(is_merged=False)
    assert load_staging_table(bench.catalog, names).schema().column_names == bench.target().schema().column_names
