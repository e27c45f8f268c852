"""Files as other programs write them: read as the table is read, written without a trace, or refused. No Spark."""

from __future__ import annotations

from typing import IO, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from tests.fixtures.erasing import ANN, Household, home
from tests.integration.erasure.test_erasure_refusals import refused

from sluice.errors import UnpublishableError
from sluice.operations import RefusalReason

__all__ = ["home"]


def foreign(home: Household, name: str, rows: pa.Table, *, listed: bool = True) -> None:
    """Write a file without ids below the data folder, and add it to the table."""
    table = home.table()
    path = f"{table.location()}/data/{name}"
    with table.io.new_output(path).create() as sink:
        pq.write_table(rows, cast("IO[bytes]", sink))
    if listed:
        home.table().add_files([path])


def rename(catalog: Catalog, table: str, old: str, new: str) -> None:
    """Rename a column."""
    with catalog.load_table(table).update_schema() as update:
        update.rename_column(old, new)


@pytest.mark.full  # every run: `test_rewritten_bytes.py`
def test_values_in_a_dictionary_of_arrow_leave_no_byte(home: Household) -> None:
    home.declare()
    table = home.table()
    kinds = pa.array([ANN, "Bob", ANN, "Eve"]).dictionary_encode()
    rows = pa.table({"kind": kinds, "id": pa.array([1, 2, 3, 4], pa.int64())})
    with table.transaction() as transaction:
        transaction.set_properties({"write.parquet.compression-codec": "uncompressed"})
    home.table().append(rows)
    assert any(ANN.encode() in content for _, content in home.files(home.name))
    home.erasure().erase()
    assert home.rows() == [("Bob", 2), ("Eve", 4)]
    assert not any(ANN.encode() in content for _, content in home.files(home.name))


@pytest.mark.full  # every run: `test_file_columns.py`
def test_a_file_without_ids_is_found_by_an_earlier_name_and_named_before_anything_is_written(home: Household) -> None:
    home.declare()
    home.append(("Bob", 2))
    foreign(home, "f.parquet", pa.table({"kind": [ANN, "Eve"], "id": pa.array([1, 3], pa.int64())}))
    rename(home.bench.catalog, home.name, "kind", "called")
    plan = home.erasure("called = 'Ann O''Brien 🌊'").plan()
    assert plan.seen.live_rows == 1
    assert [one.reason for one in plan.refusals] == [RefusalReason.NOT_YET]
    assert "f.parquet: columns without ids" in plan.refusals[0].sentence
    assert "rewrite_data_files" in plan.refusals[0].next_step
    assert home.erasure("called is null").plan().seen.meant == ()
    before = home.table().metadata.current_snapshot_id
    with pytest.raises(UnpublishableError):
        home.erasure("called = 'Ann O''Brien 🌊'").erase()
    assert home.table().metadata.current_snapshot_id == before


@pytest.mark.full  # every run: `test_erasure_plan.py`
def test_a_file_that_cannot_be_written_is_no_hindrance_without_such_rows(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    foreign(home, "f.parquet", pa.table({"kind": ["Eve"], "id": pa.array([3], pa.int64())}))
    assert refused(home) == []
    home.erasure().erase()
    assert home.rows() == [("Bob", 2), ("Eve", 3)]


def test_a_file_whose_columns_are_not_sure_blocks_it(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    foreign(home, "left.parquet", pa.table({"called": [ANN], "id": pa.array([3], pa.int64())}), listed=False)
    assert refused(home) == [RefusalReason.NOT_PROVABLE]
    assert len(home.rows()) == 2
