"""What went is in no byte of a file that was written again: no dictionary, footer or index names it."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import ListType, LongType, MapType, NestedField, StringType, StructType
from tests.unit.erasure.test_parquet_rows import without

ANN = "ann@x.org"
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "mail", StringType()),
    NestedField(3, "mails", ListType(4, StringType(), element_required=False)),
    NestedField(5, "by", MapType(6, StringType(), 7, StringType(), value_required=False)),
    NestedField(8, "inside", StructType(NestedField(9, "deep", StringType()))),
)


def a_field(name: str, kind: Any, number: int, **metadata: str) -> Any:
    """A field with its id."""
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number), **metadata})


def held(is_dictionary: bool, *, says: str = "") -> pa.Table:
    """Rows of Ann and of others, in dictionaries that Arrow programs keep, or as they are."""

    def texts(*values: str) -> Any:
        found = pa.array(values)
        return found.dictionary_encode() if is_dictionary else found

    kind: Any = texts("a").type
    one = pa.array([0, 1, 2, 3], pa.int32())
    more = {"note": says} if says else {}
    lists = pa.ListArray.from_arrays(one, texts(ANN, "bob", "eve"), type=pa.list_(a_field("element", kind, 4, **more)))
    arrow: Any = pa  # its types know no field as the key of a map
    key = arrow.field("key", pa.string(), False, {"PARQUET:field_id": "6"})
    of_maps = arrow.map_(key, a_field("value", kind, 7, **more))
    maps = arrow.MapArray.from_arrays(one, pa.array(["k", "l", "m"]), texts(ANN, "bob", "eve")).cast(of_maps)
    structs = pa.StructArray.from_arrays([texts(ANN, "bob", "eve")], fields=[a_field("deep", kind, 9, **more)])
    fields = [
        a_field("id", pa.int64(), 1),
        a_field("mail", kind, 2, **more),
        a_field("mails", lists.type, 3),
        a_field("by", maps.type, 5),
        a_field("inside", structs.type, 8),
    ]
    footer: Any = {"pandas": f'{{"attributes": {{"note": "{says}"}}}}', "note": says} if says else None
    columns = [pa.array([1, 2, 3]), texts(ANN, "bob", "eve"), lists, maps, structs]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata=footer))


@pytest.mark.parametrize("is_dictionary", [True, False])
@pytest.mark.parametrize("says", ["", ANN])
def test_no_byte_of_the_new_file_names_who_went(tmp_path: Path, is_dictionary: bool, says: str) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(
        held(is_dictionary, says=says),
        path,
        compression="none",
        write_page_index=True,
        bloom_filter_options={"mail": True},
    )
    assert ANN.encode() in path.read_bytes()
    written, new = without(path, SCHEMA, f"mail = '{ANN}'")
    assert written is not None
    content = new.read_bytes()
    assert ANN.encode() not in content
    assert b"bob" in content
    assert not pq.read_metadata(new).row_group(0).column(1).has_column_index
    assert list(pq.read_metadata(new).metadata or {}) in ([], [b"ARROW:schema"])
    footer: Any = pq.read_metadata(new).metadata
    assert ANN.encode() not in b64decode(footer[b"ARROW:schema"])
    kept = f"select * from '{path}' where id > 1 order by id"  # noqa: S608
    assert duckdb.sql(kept).fetchall() == duckdb.sql(f"select * from '{new}' order by id").fetchall()  # noqa: S608
    assert str(pq.ParquetFile(new).schema).partition("\n")[2] == str(pq.ParquetFile(path).schema).partition("\n")[2]
    assert ANN.encode() not in b"".join(
        [*(written.lower_bounds or {}).values(), *(written.upper_bounds or {}).values()]
    )


def test_a_row_that_is_found_in_a_dictionary_is_meant(tmp_path: Path) -> None:
    path = tmp_path / "old.parquet"
    pq.write_table(held(True), path)
    written, new = without(path, SCHEMA, "mail like 'ann@%' or mail = 'eve'")
    assert written is not None
    assert pq.read_table(new).column("id").to_pylist() == [2]


def test_values_under_a_null_go_along(tmp_path: Path) -> None:
    hidden = pa.StructArray.from_arrays(
        [pa.array(["bob", ANN])], fields=[a_field("deep", pa.string(), 9)], mask=pa.array([False, True])
    )
    fields = [a_field("id", pa.int64(), 1), a_field("inside", hidden.type, 8)]
    path = tmp_path / "old.parquet"
    rows = pa.Table.from_arrays([pa.array([1, 2]), hidden], schema=pa.schema(fields))
    pq.write_table(pa.concat_tables([rows] * 3), path, compression="none", row_group_size=2)
    assert ANN.encode() not in path.read_bytes()
    written, new = without(path, SCHEMA, "id = 1")
    assert written is not None
    assert ANN.encode() not in new.read_bytes()
