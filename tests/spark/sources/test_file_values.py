"""Each pair of a file's type and a declared one that the page of formats allows is read exactly, value by value."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, tzinfo
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc, parquet
from pyspark.sql import SparkSession
from tests.architecture.formats_reference import DECLARED
from tests.unit.sources.test_source_types import FILE_TYPES

from sluice.declarations.source_declarations import FilesSource
from sluice.declarations.value_declaration import Column
from sluice.errors import SchemaError
from sluice.settings import Settings
from sluice.sources.source_types import FileFormat, unfit_columns
from sluice_spark.sources import files


def _times(microseconds: int, zone: tzinfo | None) -> list[datetime]:
    at = datetime(2026, 3, 29, 2, 30, 0, microseconds, tzinfo=zone)
    return [at, datetime(1900, 1, 1, tzinfo=zone)]


VALUES: dict[str, list[Any]] = {
    "bool": [True, False],
    "int8": [127, -128],
    "int16": [2**15 - 1, -(2**15)],
    "int32": [2**31 - 1, -(2**31)],
    "int64": [2**63 - 1, -(2**63)],
    "uint8": [255, 0],
    "uint16": [2**16 - 1, 0],
    "uint32": [2**32 - 1, 0],
    "float32": [0.5, -3.4028234663852886e38],
    "float64": [0.1, -1.7976931348623157e308],
    "string": ["\N{SNOWMAN} ü", ""],
    "binary": [b"\x00\xff", b""],
    "fixed16": [bytes(range(16)), b"\xff" * 16],
    "date": [date(9999, 12, 31), date(1900, 1, 1)],
    "ts_ms": _times(123_000, None),
    "ts_us": _times(123_456, None),
    "tz_ms": _times(123_000, UTC),
    "tz_us": _times(123_456, UTC),
    "decimal(9,2)": [Decimal("9999999.99"), Decimal("-0.01")],
    "list": [[1, None], []],
    "map": [[("a", 1), ("b", None)], []],
    "struct": [{"a": 1}, {"a": None}],
}
"""Two values of each type that is allowed for some column, but for INT96."""

WITHOUT: dict[FileFormat, set[str]] = {
    "parquet": set(),
    "orc": {"uint8", "uint16", "uint32", "fixed16", "ts_ms", "ts_us"},
    "avro": {"int8", "int16", "uint8", "uint16", "uint32"},
}
"""What a format does not have, or only as Spark writes it."""

_AVRO: dict[str, Any] = {
    "bool": "boolean",
    "int32": "int",
    "int64": "long",
    "float32": "float",
    "float64": "double",
    "string": "string",
    "binary": "bytes",
    "fixed16": {"type": "fixed", "name": "f", "size": 16},
    "date": {"type": "int", "logicalType": "date"},
    "ts_ms": {"type": "long", "logicalType": "local-timestamp-millis"},
    "ts_us": {"type": "long", "logicalType": "local-timestamp-micros"},
    "tz_ms": {"type": "long", "logicalType": "timestamp-millis"},
    "tz_us": {"type": "long", "logicalType": "timestamp-micros"},
    "decimal(9,2)": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
    "list": {"type": "array", "items": ["null", "int"]},
    "map": {"type": "map", "values": ["null", "int"]},
    "struct": {"type": "record", "name": "s", "fields": [{"name": "a", "type": ["null", "int"]}]},
}


def _arrow(names: list[str]) -> pa.Table:
    columns = {f"c{number}": [*VALUES[name], None] for number, name in enumerate(names)}
    return pa.table(columns, schema=pa.schema({f"c{number}": FILE_TYPES[name] for number, name in enumerate(names)}))


def _without_zones(table: pa.Table) -> pa.Table:
    """Instants as orc's `timestamp`, which Spark takes for them."""
    kinds = [pa.timestamp(one.type.unit) if pa.types.is_timestamp(one.type) else one.type for one in table.schema]
    return table.cast(pa.schema(list(zip(table.column_names, kinds, strict=True))))


def _write_avro(file: Path, names: list[str]) -> None:
    kinds = [_AVRO[name] for name in names]
    for number, kind in enumerate(kinds):
        if isinstance(kind, dict) and "name" in kind:
            kinds[number] = kind | {"name": f"{kind['name']}{number}"}
    fields = [{"name": f"c{number}", "type": ["null", kind]} for number, kind in enumerate(kinds)]
    rows = [
        {
            f"c{number}": dict(VALUES[name][row]) if name == "map" else VALUES[name][row]
            for number, name in enumerate(names)
        }
        for row in (0, 1)
    ]
    with file.open("wb") as opened:
        fastavro.writer(opened, {"type": "record", "name": "r", "fields": fields}, [*rows, dict.fromkeys(rows[0])])


_WRITERS: dict[FileFormat, Callable[[Path, list[str]], None]] = {
    "parquet": lambda file, names: parquet.write_table(_arrow(names), file),
    "orc": lambda file, names: orc.write_table(_without_zones(_arrow(names)), file),
    "avro": _write_avro,
}


def read(
    spark: SparkSession, settings: Settings, file: Path, kinds: list[str], file_format: FileFormat
) -> list[list[Any]]:
    """What Spark reads of a file, by column, with instants in UTC."""
    columns = tuple(Column(name=f"c{number}", type=kind) for number, kind in enumerate(kinds))
    source = FilesSource.model_validate(
        {"connection": "here", "format": file_format, "columns": [one.model_dump() for one in columns]}
    )
    rows = files.read_these(spark, source, settings, [file.as_uri()]).toArrow()
    return [list(map(_plain, rows.column(name).to_pylist())) for name in rows.column_names]


def _plain(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) and value.tzinfo is not None else value


def _right(value: Any, kind: str) -> Any:
    """A value of a file as the declared type has it."""
    if kind == "binary" and isinstance(value, str):
        return value.encode()
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC if kind == "timestamptz" else None)
    return value


@pytest.mark.parametrize(
    "file_format", ["parquet", *(pytest.param(one, marks=pytest.mark.full) for one in ("orc", "avro"))]
)
def test_what_a_type_of_a_file_holds_is_in_its_column(
    spark: SparkSession, settings: Settings, tmp_path: Path, file_format: FileFormat
) -> None:
    pairs = [
        (name, kind)
        for name in VALUES.keys() - WITHOUT[file_format]
        for kind in DECLARED
        if not unfit_columns(
            [Column(name="x", type=kind)], pa.schema([("x", FILE_TYPES[name])]), file_format=file_format
        )
    ]
    absent = {"fixed[16]", "timestamp"} if file_format == "orc" else set()
    assert {kind for _, kind in pairs} == set(DECLARED) - absent
    file = tmp_path / f"all.{file_format}"
    _WRITERS[file_format](file, [name for name, _ in pairs])

    found = read(spark, settings, file, [kind for _, kind in pairs], file_format)

    right = {(name, kind): [*(_right(value, kind) for value in VALUES[name]), None] for name, kind in pairs}
    assert dict(zip(pairs, found, strict=True)) == right


def test_the_old_times_of_parquet_are_instants(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "old.parquet"
    instant, right = pa.timestamp("us", "UTC"), _times(123_456, UTC)
    nested = pa.struct([("n", pa.int64()), ("a", pa.list_(instant))])
    table = pa.table(
        {
            "c0": pa.array(right, instant),
            "c1": pa.array([{"n": 1, "a": [at]} for at in right], nested),
            "c2": pa.array([[("a", at)] for at in right], pa.map_(pa.string(), instant)),
            "c3": pa.array([1] * len(right), pa.int64()),
        }
    )
    parquet.write_table(table, file, use_deprecated_int96_timestamps=True)
    kinds = ["timestamptz", "struct<n: long, a: list<timestamptz>>", "map<string, timestamptz>", "long"]

    times, structs, maps, numbers = read(spark, settings, file, kinds, "parquet")

    assert times == right
    assert structs == [{"n": 1, "a": [at]} for at in right]
    assert maps == [[("a", at)] for at in right]
    assert numbers == [1] * len(right)


def test_local_times_of_orc_are_those_that_spark_has_marked(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    """It writes them as numbers; and its own reader does not read orc's type for instants."""
    local = "TIMESTAMP_NTZ'2026-03-29 02:30:00.123456'"
    terms = (local, f"named_struct('a', {local})", f"array({local})", f"map('a', {local})")
    rows = spark.sql(f"SELECT {', '.join(f'{term} c{number}' for number, term in enumerate(terms))}")  # ours
    rows.coalesce(1).write.orc(str(tmp_path / "local"))
    (file,) = (tmp_path / "local").glob("*.orc")
    at = _times(123_456, None)[0]
    kinds = ["timestamp", "struct<a: timestamp>", "list<timestamp>", "map<string, timestamp>"]

    assert read(spark, settings, file, kinds, "orc") == [[at], [{"a": at}], [[at]], [[("a", at)]]]
    with pytest.raises(SchemaError, match="c0: declared long, got a time without a zone in microseconds"):
        read(spark, settings, file, ["long", *kinds[1:]], "orc")
    instants = tmp_path / "instants.orc"
    orc.write_table(pa.table({"c0": pa.array(_times(0, UTC), pa.timestamp("us", "UTC"))}), instants)
    with pytest.raises(
        SchemaError, match="c0: declared timestamptz, got a timestamp with local time zone, which Spark"
    ):
        read(spark, settings, instants, ["timestamptz"], "orc")
