"""Raw Parquet files: which rows are meant in them, and the same files without those, value by value."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FixedType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from sluice.erasure import parquet_rows
from sluice.erasure.file_columns import TableColumns, UnreadableFileError, columns_of
from sluice.erasure.parquet_rows import search, write_without
from sluice.erasure.row_test import condition_of
from sluice.errors import LakehouseError

NOW = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()), NestedField(3, "x", DoubleType()))
EVERY_TYPE = Schema(
    *NOW.fields,
    NestedField(4, "who", UUIDType()),
    NestedField(5, "price", DecimalType(12, 3)),
    NestedField(6, "seen_at", TimestamptzType()),
    NestedField(7, "clock", TimeType()),
    NestedField(8, "code", FixedType(3)),
    NestedField(9, "tags", ListType(10, StringType(), element_required=False)),
    NestedField(11, "counts", MapType(12, StringType(), 13, LongType(), value_required=False)),
    NestedField(14, "inside", StructType(NestedField(15, "deep", StringType()))),
)


def rows_of(count: int) -> list[dict[str, Any]]:
    """Rows with every type; each third is null, as far as it may be."""
    full = [
        {
            "id": one,
            "name": ["Ann", "Bob", "O'Brien", ""][one % 4],
            "x": float("nan") if one % 5 == 0 else -0.0,
            "who": UUID(int=one).bytes,
            "price": f"{one}.125",
            "seen_at": one * 1_000_000,
            "clock": one,
            "code": b"abc",
            "tags": ["a", None],
            "counts": [("k", one), ("l", None)],
            "inside": {"deep": None if one % 2 else "d"},
        }
        for one in range(count)
    ]
    return [row if number % 3 else {"id": row["id"], "name": row["name"]} for number, row in enumerate(full)]


def table_of(schema: Schema, rows: Sequence[dict[str, Any]]) -> pa.Table:
    """Rows as PyArrow writes them for a table."""
    arrow = schema_to_pyarrow(schema)
    columns = []
    for field in arrow:
        values = [row.get(field.name) for row in rows]
        is_uuid = isinstance(field.type, pa.BaseExtensionType)
        column: Any = pa.array(
            values, pa.binary(16) if is_uuid else pa.string() if "decimal" in str(field.type) else field.type
        )
        columns.append(pa.ExtensionArray.from_storage(field.type, column) if is_uuid else column.cast(field.type))
    return pa.table(columns, schema=arrow)


def metadata_of(schema: Schema, folder: Path, *earlier: Schema, spec: PartitionSpec | None = None) -> TableMetadata:
    """The metadata of a table with this schema, and files of the spec 3; ids are kept."""
    made = new_table_metadata(schema, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, folder.as_uri())
    specs = [PartitionSpec(*(spec.fields if spec else ()), spec_id=3)]
    schemas = [schema, *(one.model_copy(update={"schema_id": 9 + n}) for n, one in enumerate(earlier))]
    found = {"schemas": schemas, "current_schema_id": schema.schema_id, "partition_specs": specs}
    return made.model_copy(update=found | {"default_spec_id": 3})


def file_of(path: Path) -> DataFile:
    """An entry for a file."""
    old = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path.as_uri(),
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=pq.read_metadata(path).num_rows,
        file_size_in_bytes=path.stat().st_size,
        sort_order_id=7,
    )
    old.spec_id = 3
    return old


def without(path: Path, schema: Schema, text: str, *earlier: Schema) -> tuple[DataFile | None, Path]:
    """A file written again, and where."""
    new = path.with_name("new.parquet")
    test = condition_of(text, schema, table="a.b")
    written = write_without(
        PyArrowFileIO(), metadata_of(schema, path.parent, *earlier), file_of(path), test, location=new.as_uri()
    )
    return written, new


def test_every_other_row_keeps_every_value_and_its_place(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(table_of(EVERY_TYPE, rows_of(100)), path, row_group_size=7, store_decimal_as_integer=True)
    written, new = without(path, EVERY_TYPE, "name = 'Ann' or id in (1, 2)")
    assert written is not None
    assert (written.record_count, written.spec_id, written.sort_order_id) == (73, 3, 7)
    kept = f"select * from '{path}' where not (name = 'Ann' or id in (1, 2))"  # noqa: S608
    assert duckdb.sql(kept).fetchall().__repr__() == duckdb.sql(f"select * from '{new}'").fetchall().__repr__()  # noqa: S608
    assert pq.read_schema(new) == pq.read_schema(path)
    assert str(pq.ParquetFile(new).schema).partition("\n")[2] == str(pq.ParquetFile(path).schema).partition("\n")[2]
    assert (written.lower_bounds or {})[1] == (3).to_bytes(8, "little")


def test_a_file_of_which_every_row_is_meant_leaves_none(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(table_of(NOW, [{"id": 1, "name": "Ann"}] * 3), path)
    written, new = without(path, NOW, "name = 'Ann'")
    assert written is None
    assert not new.exists()


def columns(schema: Schema, *earlier: Schema) -> TableColumns:
    """The columns of a table with this schema and earlier ones."""
    return columns_of(metadata_of(schema, Path("/t")), [metadata_of(one, Path("/t")) for one in earlier], values={})


def test_columns_are_found_by_their_ids(tmp_path: Path) -> None:
    then = Schema(NestedField(2, "id", StringType()), NestedField(1, "number", IntegerType()))
    path = tmp_path / "old.parquet"
    pq.write_table(table_of(then, [{"id": "Ann", "number": 1}, {"id": "Bob", "number": 2}]), path)

    def found(text: str) -> int:
        return search(str(path), condition_of(text, NOW, table="a.b"), columns(NOW, then), path="x").meant

    assert (found("name = 'Ann'"), found("id = 2"), found("id > 0"), found("x is null"), found("x > 0")) == (
        1,
        1,
        2,
        2,
        0,
    )
    written, new = without(path, NOW, "name = 'Ann'", then)
    assert written is not None
    assert pq.read_table(new).to_pylist() == [{"id": "Bob", "number": 2}]


def test_a_file_with_times_of_96_bits_is_not_written(tmp_path: Path) -> None:
    schema = Schema(*NOW.fields, NestedField(4, "seen_at", TimestamptzType()))
    path = tmp_path / "old.parquet"
    pq.write_table(table_of(schema, [{"name": "Ann", "seen_at": 5}]), path, use_deprecated_int96_timestamps=True)
    with pytest.raises(UnreadableFileError, match="96 bits"):
        without(path, schema, "name = 'Ann'")


@pytest.mark.parametrize("content", [b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"Obj\x01 an Avro file"])
def test_what_is_no_parquet_is_said(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "old.parquet"
    path.write_bytes(content)
    with pytest.raises(UnreadableFileError, match="no whole Parquet file"):
        search(str(path), condition_of("name = 'Ann'", NOW, table="a.b"), columns(NOW), path="x")


def test_a_column_of_another_kind_is_not_taken_for_one_without_the_value(tmp_path: Path) -> None:
    other = Schema(NestedField(1, "id", StringType()))
    path = tmp_path / "old.parquet"
    pq.write_table(table_of(other, [{"id": "Ann"}]), path)
    with pytest.raises(UnreadableFileError, match="It has large_string where the table has long"):
        search(str(path), condition_of("id = 2", NOW, table="a.b"), columns(NOW), path="x")


@pytest.mark.parametrize("wrong", ["value", "order", "fewer", "more"])
def test_a_new_file_that_differs_is_deleted_and_nothing_comes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(table_of(NOW, [{"id": one, "name": "Bob", "x": 1.0} for one in range(5)]), path)
    right = parquet_rows._kept
    calls = iter([True, False])

    def kept(*of: Any, **more: Any) -> Iterator[pa.RecordBatch]:
        for batch in right(*of, **more):
            if not next(calls):
                yield batch
            elif wrong == "value":
                yield batch.set_column(0, batch.schema.field(0), pa.array([0, 1, 2, 5]))
            elif wrong == "order":
                yield batch.take(pa.array([1, 0, 2, 3]))
            else:
                yield batch.slice(1) if wrong == "fewer" else batch.take(pa.array([0, 1, 2, 3, 3]))

    monkeypatch.setattr(parquet_rows, "_kept", kept)
    with pytest.raises(LakehouseError, match="does not hold the others"):
        without(path, NOW, "id = 3")
    assert not (tmp_path / "new.parquet").exists()
