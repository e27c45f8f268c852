"""Which column of a file is which of a table: by ids, the name mapping and the partition, or not at all."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from tests.unit.erasure.test_parquet_rows import columns, metadata_of, table_of

from sluice.erasure.file_columns import (
    HeldColumn,
    TableColumns,
    UnreadableFileError,
    can_become,
    column_of,
    columns_of,
    key_of,
    partition_values,
)
from sluice.erasure.parquet_rows import SearchedFile, search
from sluice.erasure.row_test import condition_of

PERSON = Schema(NestedField(1, "name", StringType()), NestedField(2, "email", StringType()))
EARLIER = Schema(NestedField(1, "name", StringType()), NestedField(2, "mail", StringType()))
ANN = "email = 'ann@x.org'"


def mapped(schema: Schema, names: Mapping[int, list[str]], **more: Any) -> TableColumns:
    """The columns of a table with a name mapping."""
    mapping = json.dumps([{"field-id": number, "names": found} for number, found in names.items()])
    metadata = metadata_of(schema, Path("/t"), **more)
    return columns_of(metadata.model_copy(update={"properties": {"schema.name-mapping.default": mapping}}), values={})


def found(path: Path, text: str, of: TableColumns) -> SearchedFile:
    """What a search finds in a file."""
    return search(str(path), condition_of(text, of.schema, table="a.b"), of, path=path.as_uri())


def with_ids(path: Path, columns: Mapping[str, tuple[int | None, list[Any]]]) -> Path:
    """Write a file of some columns, each with its id and values."""
    fields, arrays = [], []
    for name, (number, values) in columns.items():
        arrays.append(pa.array(values))
        metadata = {} if number is None else {"PARQUET:field_id": str(number)}
        fields.append(pa.field(name, arrays[-1].type, metadata=metadata))
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path)
    return path


def test_a_file_without_ids_is_read_by_the_name_mapping(tmp_path: Path) -> None:
    path = with_ids(tmp_path / "a.parquet", {"mail": (None, ["ann@x.org", "bob"]), "name": (None, ["a", "b"])})
    both = mapped(PERSON, {1: ["name"], 2: ["mail", "email"]})
    assert (found(path, ANN, both).meant, found(path, "email is null", both).meant) == (1, 0)
    assert "columns without ids" in found(path, ANN, both).unwritable


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (None, "no `schema.name-mapping.default`"),
        ({1: ["name"], 2: ["email"]}, "lacks the column email"),
        ({1: ["name", "mail"], 2: ["mail", "email"]}, "lacks the column email"),
        ({2: ["mail", "name"]}, "one column of the table twice"),
    ],
)
def test_a_column_of_a_file_without_ids_that_is_not_sure_is_refused(
    tmp_path: Path, names: Mapping[int, list[str]] | None, said: str
) -> None:
    path = with_ids(tmp_path / "a.parquet", {"mail": (None, ["ann@x.org"]), "name": (None, ["a"])})
    of = columns(PERSON) if names is None else mapped(PERSON, names)
    for text in (ANN, "email is null", "email != 'x'"):
        with pytest.raises(UnreadableFileError, match=said):
            found(path, text, of)


def test_a_column_that_may_be_one_without_an_id_is_refused(tmp_path: Path) -> None:
    path = with_ids(tmp_path / "a.parquet", {"name": (1, ["a"]), "mail": (None, ["ann@x.org"])})
    assert found(path, "name = 'a'", columns(PERSON, EARLIER)).meant == 1
    with pytest.raises(UnreadableFileError, match="without an id"):
        found(path, "email is null", columns(PERSON, EARLIER))


def test_a_column_that_came_later_is_null_in_earlier_files(tmp_path: Path) -> None:
    path = with_ids(tmp_path / "a.parquet", {"name": (1, ["a", "b"])})
    assert (found(path, ANN, columns(PERSON)).meant, found(path, "email is null", columns(PERSON)).meant) == (0, 2)


def test_a_column_that_has_a_default_in_earlier_files_is_refused(tmp_path: Path) -> None:
    path = with_ids(tmp_path / "a.parquet", {"name": (1, ["a", "b"])})
    email = NestedField(2, "email", StringType(), initial_default="ann@x.org")
    of = replace(columns(PERSON), schema=Schema(PERSON.fields[0], email))
    for text in (ANN, "email is null"):
        with pytest.raises(UnreadableFileError, match="has a default"):
            found(path, text, of)
    assert found(path, "name = 'a'", of).meant == 1


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    fields = [pa.field("email", pa.string(), metadata={"PARQUET:field_id": str(one)}) for one in (1, 2)]
    pq.write_table(pa.Table.from_arrays([pa.array(["x"]), pa.array(["ann@x.org"])], schema=pa.schema(fields)), path)
    for of in (columns(PERSON), mapped(PERSON, {2: ["email"]})):
        with pytest.raises(UnreadableFileError, match="two columns of one name"):
            found(path, ANN, of)


def test_one_id_twice_is_refused(tmp_path: Path) -> None:
    path = with_ids(tmp_path / "a.parquet", {"mail": (2, ["ann@x.org"]), "email": (2, ["x"])})
    with pytest.raises(UnreadableFileError, match="one column of the table twice"):
        found(path, ANN, columns(PERSON, EARLIER))


@pytest.mark.parametrize(
    "other",
    [
        {"mail": (1, ["ann@x.org"]), "name": (2, ["x"])},
        {"name": (1, ["x"]), "other": (2, ["ann@x.org"])},
        {"email": (1, ["ann@x.org"])},
        {"name": (1, ["x"]), "email": (2, ["y"]), "mail": (3, ["ann@x.org"])},
    ],
)
def test_the_ids_of_another_table_are_not_taken_for_ours(
    tmp_path: Path, other: Mapping[str, tuple[int, list[Any]]]
) -> None:
    path = with_ids(tmp_path / "a.parquet", dict(other))
    with pytest.raises(UnreadableFileError, match="was never one of the table"):
        found(path, ANN, columns(PERSON, EARLIER))


def test_an_earlier_name_and_one_made_fit_for_files_are_ours(tmp_path: Path) -> None:
    odd = Schema(NestedField(1, "full name", StringType()), NestedField(2, "mail", StringType()))
    path = with_ids(tmp_path / "a.parquet", {"full_x20name": (1, ["a"]), "mail": (2, ["ann@x.org"])})
    assert found(path, ANN, columns(PERSON, odd)).meant == 1


def test_staged_rows_have_their_operation_beside_them(tmp_path: Path) -> None:
    path = with_ids(
        tmp_path / "a.parquet",
        {"name": (1, ["a"]), "email": (2, ["ann@x.org"]), "_sluice_operation": (1_000_000_000, ["u"])},
    )
    assert found(path, ANN, columns(PERSON)).meant == 1


def test_a_file_of_deleted_positions_holds_no_row(tmp_path: Path) -> None:
    path = with_ids(tmp_path / "a.parquet", {"file_path": (2147483546, ["s3://x"]), "pos": (2147483545, [3])})
    assert found(path, "email is null", columns(PERSON)).meant == 0
    path = with_ids(
        tmp_path / "b.parquet", {"file_path": (2147483546, ["x"]), "pos": (2147483545, [3]), "row": (2147483544, ["a"])}
    )
    with pytest.raises(UnreadableFileError):
        found(path, "email is null", columns(PERSON))


@pytest.mark.parametrize(
    ("held", "kind", "expected"),
    [
        (pa.int32(), LongType(), True),
        (pa.int64(), IntegerType(), False),
        (pa.uint32(), IntegerType(), False),
        (pa.uint32(), LongType(), True),
        (pa.uint64(), LongType(), False),
        (pa.string(), LongType(), False),
        (pa.float64(), LongType(), False),
        (pa.int64(), DoubleType(), False),
        (pa.float32(), DoubleType(), True),
        (pa.float64(), FloatType(), False),
        (pa.float16(), FloatType(), False),
        (pa.decimal128(5, 2), DecimalType(9, 2), True),
        (pa.decimal128(9, 2), DecimalType(5, 2), False),
        (pa.decimal128(5, 1), DecimalType(9, 2), False),
        (pa.int32(), DecimalType(9, 0), False),
        (pa.int32(), DateType(), False),
        (pa.timestamp("us"), DateType(), False),
        (pa.date32(), TimestampType(), False),
        (pa.date32(), DateType(), True),
        (pa.int64(), TimestampType(), False),
        (pa.timestamp("ms"), TimestampType(), True),
        (pa.timestamp("us", "UTC"), TimestampType(), False),
        (pa.timestamp("us"), TimestamptzType(), False),
        (pa.timestamp("us", "Europe/Berlin"), TimestamptzType(), True),
        (pa.int64(), TimeType(), False),
        (pa.time64("us"), TimeType(), True),
        (pa.int64(), StringType(), False),
        (pa.binary(), StringType(), False),
        (pa.string(), BinaryType(), False),
        (pa.large_string(), StringType(), True),
        (pa.binary(16), UUIDType(), True),
        (pa.string(), UUIDType(), False),
        (pa.binary(3), FixedType(3), True),
        (pa.binary(4), FixedType(3), False),
        (pa.binary(), FixedType(3), False),
        (pa.bool_(), IntegerType(), False),
        (pa.null(), StringType(), False),
    ],
)
def test_a_type_counts_where_every_value_of_it_is_one_of_todays(held: Any, kind: IcebergType, expected: bool) -> None:
    assert can_become(held, kind) is expected


def test_times_finer_than_the_tables_are_refused(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "seen", TimestampType()))
    path = tmp_path / "a.parquet"
    for nanoseconds, fits in ((1_000, True), (1_001, False)):
        held = pa.array([nanoseconds], pa.timestamp("ns"))
        fields = [pa.field("seen", held.type, metadata={"PARQUET:field_id": "1"})]
        pq.write_table(pa.Table.from_arrays([held], schema=pa.schema(fields)), path)
        text = "seen = '1970-01-01T00:00:00.000001'"
        if fits:
            assert found(path, text, columns(schema)).meant == 1
        else:
            with pytest.raises(UnreadableFileError, match="cannot be compared"):
                found(path, text, columns(schema))


def test_times_of_96_bits_are_moments_of_every_year(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "seen", TimestamptzType()))
    path = tmp_path / "a.parquet"
    late = pa.array([253_402_300_799_000_000], pa.timestamp("us"))  # the last second of the year 9999
    fields = [pa.field("seen", late.type, metadata={"PARQUET:field_id": "1"})]
    rows = pa.Table.from_arrays([late], schema=pa.schema(fields))
    pq.write_table(rows, path, use_deprecated_int96_timestamps=True)
    seen = found(path, "seen = '9999-12-31T23:59:59+00:00'", columns(schema))
    assert seen.meant == 1
    assert "96 bits" in seen.unwritable


def hive(tmp_path: Path) -> tuple[Table, Path, Path]:
    """A table by countries, to which files without ids were added that have no such column; two of them."""
    catalog = InMemoryCatalog("c", warehouse=tmp_path.as_uri())
    catalog.create_namespace("a")
    schema = Schema(NestedField(1, "name", StringType()), NestedField(2, "country", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "country"))
    table = catalog.create_table("a.b", schema, partition_spec=spec)
    paths = []
    for country in ("de", "fr"):
        path = tmp_path / f"{country}.parquet"
        pq.write_table(pa.table({"name": ["Ann", "Bob"], "country": [country] * 2}), path)
        table.add_files([path.as_uri()])
        pq.write_table(pa.table({"name": ["Ann", "Bob"]}), path)
        paths.append(path)
    return table, paths[0], paths[1]


def test_a_column_that_stands_in_the_partition_alone_has_its_value(tmp_path: Path) -> None:
    table, german, french = hive(tmp_path)
    values = partition_values([table], {2})
    of = columns_of(table.metadata, values=values)
    assert set(values) == {str(german), str(french)}
    assert [found(one, "country = 'de'", of).meant for one in (german, french)] == [2, 0]
    assert [found(one, "name = 'Ann' and country != 'de'", of).meant for one in (german, french)] == [0, 1]
    assert [found(one, "country is null", of).meant for one in (german, french)] == [0, 0]
    assert partition_values([table], {1}) == {}


def test_a_file_in_no_partition_that_is_known_is_refused(tmp_path: Path) -> None:
    table, german, _ = hive(tmp_path)
    of = columns_of(table.metadata, values=partition_values([table], {2}))
    left = tmp_path / "left.parquet"
    left.write_bytes(german.read_bytes())
    with pytest.raises(UnreadableFileError, match="its partition is not known"):
        found(left, "country is null", of)
    whole = with_ids(tmp_path / "whole.parquet", {"name": (1, ["Ann"])})
    with pytest.raises(UnreadableFileError, match="its partition is not known"):
        found(whole, "country is null", of)


def test_a_file_with_other_values_than_its_partition_is_refused(tmp_path: Path) -> None:
    table, german, _ = hive(tmp_path)
    of = columns_of(table.metadata, values=partition_values([table], {2}))
    pq.write_table(pa.table({"name": ["Ann", "Bob"], "country": ["de", "fr"]}), german)
    with pytest.raises(UnreadableFileError, match="other values than its partition"):
        found(german, "country = 'fr'", of)


@pytest.mark.parametrize(
    ("path", "expected"),
    [("s3://b/a", "/b/a"), ("s3a://b/a", "/b/a"), ("file:///a/b", "/a/b"), ("file:/a/b", "/a/b"), ("/a/b", "/a/b")],
)
def test_a_path_is_one_with_every_scheme(path: str, expected: str) -> None:
    assert key_of(path) == expected


def test_a_table_of_the_types_of_pyiceberg_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table_of(PERSON, [{"name": "Ann", "email": "ann@x.org"}]), path)
    assert found(path, ANN, columns(PERSON)) == SearchedFile(rows=1, meant=1)


@pytest.mark.parametrize(
    ("partition", "held", "expected"),
    [
        (math.nan, [math.nan, math.nan], True),
        (math.nan, [], True),
        (math.nan, [math.nan, None], False),
        (math.nan, [math.nan, 1.0], False),
        (1.0, [math.nan], False),
        (None, [math.nan], False),
    ],
)
def test_no_number_is_the_value_of_its_partition(partition: float | None, held: list[float], expected: bool) -> None:
    of, values = HeldColumn(place=0, has_value=True, value=partition), pa.array(held, pa.float64())
    if expected:
        assert len(column_of(of, values, DoubleType(), len(held), is_old_time=False)) == len(held)
    else:
        with pytest.raises(UnreadableFileError, match="other values than its partition says"):
            column_of(of, values, DoubleType(), len(held), is_old_time=False)
