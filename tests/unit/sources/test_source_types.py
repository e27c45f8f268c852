"""Types in sources that Spark would read as other values: what fits a declared column, and what is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from sluice.declarations.value_declaration import Column
from sluice.sources.source_types import (
    LEGACY_INSTANT,
    ORC_INSTANT,
    checked_columns,
    columns_in_the_path,
    undeclared_columns,
    unfit_columns,
    unreadable_columns,
    unreadable_type,
)

FILE_TYPES: dict[str, pa.DataType] = {
    "bool": pa.bool_(),
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "uint8": pa.uint8(),
    "uint16": pa.uint16(),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "fixed12": pa.binary(12),
    "fixed16": pa.binary(16),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "ts_ms": pa.timestamp("ms"),
    "ts_us": pa.timestamp("us"),
    "ts_ns": pa.timestamp("ns"),
    "tz_ms": pa.timestamp("ms", tz="UTC"),
    "tz_us": pa.timestamp("us", tz="Europe/Berlin"),
    "tz_ns": pa.timestamp("ns", tz="UTC"),
    "int96": LEGACY_INSTANT,
    "orc_tz": ORC_INSTANT,
    "decimal(9,2)": pa.decimal128(9, 2),
    "decimal(20,2)": pa.decimal128(20, 2),
    "decimal(20,4)": pa.decimal128(20, 4),
    "list": pa.list_(pa.int32()),
    "map": pa.map_(pa.string(), pa.int32()),
    "struct": pa.struct([("a", pa.int32())]),
}
FIT = {
    "boolean": {"bool"},
    "int": {"int8", "int16", "int32", "uint8", "uint16"},
    "long": {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32"},
    "float": {"float32"},
    "double": {"float32", "float64"},
    "string": {"string"},
    "uuid": {"string"},
    "binary": {"string", "binary", "fixed12", "fixed16"},
    "fixed[16]": {"fixed16"},
    "date": {"date"},
    "timestamp": {"ts_ms", "ts_us"},
    "timestamptz": {"tz_ms", "tz_us", "int96"},
    "decimal(9, 2)": {"decimal(9,2)"},
    "decimal(20, 4)": {"decimal(9,2)", "decimal(20,4)"},
    "decimal(38, 2)": {"decimal(9,2)", "decimal(20,2)"},
    "list<int>": {"list"},
    "list<string>": set(),
    "map<string, long>": {"map"},
    "map<string, string>": set(),
    "map<int, int>": set(),
    "struct<a: long>": {"struct"},
    "struct<b: long>": set(),
}


@pytest.mark.parametrize("declared", FIT)
def test_only_types_whose_values_are_kept_fit(declared: str) -> None:
    column = Column(name="x", type=declared)
    fits = {
        name
        for name, kind in FILE_TYPES.items()
        if not unfit_columns([column], pa.schema([("x", kind)]), file_format="parquet")
    }
    assert fits == FIT[declared]


def test_a_column_that_differs_is_named_with_both_types() -> None:
    columns = [Column(name="id", type="int"), Column(name="s", type="struct<at: timestamptz>")]
    found = pa.schema([("ID", pa.uint32()), ("s", pa.struct([("at", pa.timestamp("ns", tz="UTC"))]))])

    differences = unfit_columns(columns, found, file_format="parquet")

    assert [str(one) for one in differences] == [
        "id: declared int, got an unsigned number of 32 bits",
        "s.at: declared timestamptz, got an instant in nanoseconds",
    ]


def test_a_column_that_was_renamed_is_missing() -> None:
    columns, found = [Column(name="amount", type="double")], pa.schema([("amount_eur", pa.float64())])
    assert [str(one) for one in unfit_columns(columns, found, file_format="avro")] == [
        "amount: declared double, got nothing"
    ]
    assert undeclared_columns(columns, found) == ("amount_eur",)


NESTED = "struct<a: int, b: string>"


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        ({"id": pa.int64()}, []),
        ({"id": pa.int64(), "s": pa.struct([("a", pa.int32())])}, []),
        ({"id": pa.int64(), "s": pa.struct([("a", pa.int32()), ("c", pa.string())])}, ["s.b"]),
        ({"id": pa.int64(), "s": pa.struct([])}, ["s.a", "s.b"]),
        ({"id": pa.int64(), "note2": pa.string()}, ["note", "s", "l"]),
        ({"note": pa.string()}, ["id"]),
        ({"id": pa.int64(), "l": pa.list_(pa.struct([("a", pa.int32())]))}, []),
        ({"id": pa.int64(), "l": pa.list_(pa.struct([("z", pa.int32())]))}, ["l.element.a", "l.element.b"]),
        ({}, ["id", "note", "s", "l"]),
    ],
    ids=["columns", "field", "renamed field", "empty struct", "renamed", "required", "in a list", "of a list", "none"],
)
def test_an_older_file_lacks_columns_and_a_renamed_one_is_refused(
    found: dict[str, pa.DataType], missing: list[str]
) -> None:
    columns = [
        Column(name="id", type="long", required=True),
        Column(name="note", type="string"),
        Column(name="s", type=NESTED),
        Column(name="l", type=f"list<{NESTED}>"),
    ]

    differences = unfit_columns(columns, pa.schema(found), file_format="parquet")

    assert [one.column for one in differences] == missing
    assert {one.got for one in differences} <= {""}


def test_names_that_differ_in_case_only_are_ambiguous() -> None:
    found = pa.schema([("id", pa.int64()), ("ID", pa.int64())])
    (difference,) = unfit_columns([Column(name="id", type="long")], found, file_format="parquet")
    assert difference.got == "id and ID, which differ in case only"


@pytest.mark.parametrize("declared", ["timestamp", "timestamptz"])
def test_orc_has_no_units_and_an_instant_that_spark_does_not_read(declared: str) -> None:
    prefix = "ts_" if declared == "timestamp" else "tz_"
    column = Column(name="x", type=declared)
    times = {name: kind for name, kind in FILE_TYPES.items() if name.startswith(("ts_", "tz_", "orc_"))}
    fits = [
        name for name, kind in times.items() if not unfit_columns([column], pa.schema([("x", kind)]), file_format="orc")
    ]
    assert fits == [name for name in times if name.startswith(prefix)]


def test_avro_has_no_text_for_bytes() -> None:
    (difference,) = unfit_columns(
        [Column(name="x", type="binary")], pa.schema([("x", pa.string())]), file_format="avro"
    )
    assert str(difference) == "x: declared binary, got string"


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("file:///in/day=5/a.parquet", ["Day"]),
        ("s3a://bucket/in/DAY=5/hour=1/a.parquet", ["Day"]),
        ("file:///in/id=5/a.parquet", []),  # the file has it
        ("file:///in/day/5/a.parquet", []),
        ("file:///in/today=5/a.parquet", []),
        ("file:///in/day=5.parquet", []),  # no folder
    ],
)
def test_a_column_that_only_a_folder_is_named_after_is_not_null(path: str, named: list[str]) -> None:
    columns = [Column(name="id", type="long"), Column(name="Day", type="int")]

    found = columns_in_the_path(columns, ["id"], path)

    assert [one.column for one in found] == named


@pytest.mark.parametrize(
    "kind",
    [
        "numeric",
        "numeric[]",
        "numeric(40,2)",
        "numeric(5,-2)",
        "money",
        "time without time zone",
        "time(3) with time zone",
    ],
)
def test_what_spark_would_change_is_refused(kind: str) -> None:
    assert unreadable_type(kind) is not None


@pytest.mark.parametrize(
    "kind",
    [
        "numeric(38,18)",
        "numeric(9,2)[]",
        "bigint",
        "text",
        "character varying(10)",
        "timestamp with time zone",
        "timestamp(3) without time zone",
        "uuid",
        "jsonb",
        "bytea",
        "interval",
        "int4range",
        "double precision",
    ],
)
def test_all_else_is_left_to_spark(kind: str) -> None:
    assert unreadable_type(kind) is None


def test_the_values_of_times_and_numbers_are_checked() -> None:
    terms = list(checked_columns({'a"b': "bigint", "it's": "date", "n": "numeric(9,2)"}))

    assert terms[0] == '"a""b"'
    assert 'isfinite("it\'s")' in terms[1]
    assert "in column it''s" in terms[1]
    assert "<> 'NaN'" in terms[2]
    assert terms[2].endswith('AS numeric(9,2)) AS "n"')


def test_a_column_is_named_with_its_type() -> None:
    (phrase,) = unreadable_columns({"id": "bigint", "amount": "numeric"})
    assert (
        phrase == "column amount of type numeric has no scale, and Spark would round it to 18 digits behind the point"
    )
