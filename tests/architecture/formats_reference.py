"""`docs/formats.md`, made by asking the code that decides: which value of a format becomes which column.

Each value of a format is handed to the decoder, or each type of a file to the check, with each declared type. Write the
page again with `python -m tests.architecture.formats_reference`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql import types
from tests.unit.record_values.test_avro_values import by_registry, framed, record
from tests.unit.record_values.test_avro_values import written as avro
from tests.unit.sources.test_source_types import FILE_TYPES

from sluice.declarations.column_types import parse_column_type
from sluice.declarations.protobuf_schemas import compiled, message_columns, message_of
from sluice.declarations.schema_files import avro_columns
from sluice.declarations.value_declaration import Column
from sluice.record_values.csv_decoding import CsvBlockDecoder
from sluice.record_values.json_decoding import JsonBlockDecoder
from sluice.sources.source_identities import UNREADABLE
from sluice.sources.source_types import FileFormat, unfit_columns, unreadable_type
from sluice_spark.query.stream_outputs import find_differences
from sluice_spark.session.columns import spark_type

FILE = Path(__file__).parents[2] / "docs" / "formats.md"

DECLARED = (
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "decimal(9, 2)",
    "string",
    "uuid",
    "binary",
    "fixed[16]",
    "date",
    "timestamp",
    "timestamptz",
    "list<long>",
    "map<string, long>",
    "struct<a: long>",
)
TEXTS = (
    "true",
    "1",
    "3000000000",
    "99999999999999999999",
    "1.5",
    "1.0",
    "1e2",
    "1e400",
    "NaN",
    "1.005",
    "word",
    "16ec9105-3d1b-4ef6-97a8-ebecba03a3f7",
    "AAECAwQFBgcICQoLDA0ODw==",
    "2026-01-31",
    "2026-02-30",
    "2026-01-31T12:00:00",
    "2026-01-31T12:00:00.1234567",
    "2026-01-31T12:00:00Z",
)
"""What a field of csv has, and a text of JSON."""

JSON = (
    *("true", "1", "3000000000", "99999999999999999999", "1.5", "1.0", "1e400", "1.005"),
    *(json.dumps(text) for text in ("1", "1.5", *TEXTS[10:])),
    *("[1]", '["a"]', '{"a": 1}', "{}"),
)
AVRO: Mapping[str, tuple[Any, Any]] = {
    "boolean": ("boolean", True),
    "int": ("int", 1),
    "long": ("long", 3_000_000_000),
    "long of 2^53 + 1": ("long", 2**53 + 1),
    "float": ("float", 0.5),
    "double of 1.5": ("double", 1.5),
    "double of 0.1": ("double", 0.1),
    "string": ("string", "word"),
    "bytes": ("bytes", b"\x00\xff"),
    "decimal": ({"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}, Decimal("1.25")),
    "date": ({"type": "int", "logicalType": "date"}, date(2026, 1, 31)),
    "timestamp-millis": ({"type": "long", "logicalType": "timestamp-millis"}, datetime(2026, 1, 31, tzinfo=UTC)),
    "timestamp-micros": ({"type": "long", "logicalType": "timestamp-micros"}, datetime(2026, 1, 31, tzinfo=UTC)),
    "local-timestamp-micros": ({"type": "long", "logicalType": "local-timestamp-micros"}, datetime(2026, 1, 31)),  # noqa: DTZ001  # a local time has no zone
    "time-micros": ({"type": "long", "logicalType": "time-micros"}, 1),
    "uuid": ({"type": "string", "logicalType": "uuid"}, UUID("16ec9105-3d1b-4ef6-97a8-ebecba03a3f7")),
    "enum": ({"type": "enum", "name": "e", "symbols": ["A"]}, "A"),
    "fixed": ({"type": "fixed", "name": "f", "size": 16}, bytes(16)),
    "array": ({"type": "array", "items": "long"}, [1]),
    "map": ({"type": "map", "values": "long"}, {"a": 1}),
    "record": (json.loads(record(("a", "long"), name="inner")), {"a": 1}),
    "null or long": (["null", "long"], 1),
    "long or string": (["long", "string"], 1),
}
PROTOBUF = (
    *("double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32", "fixed64", "sfixed32"),
    *("sfixed64", "bool", "string", "bytes", "Kind", "google.protobuf.Timestamp", "google.protobuf.Int64Value"),
    *("google.protobuf.Struct", "Inner", "Empty", "repeated int64", "map<string, int64>"),
)
_TEXT = types.StringType()
POSTGRESQL: Mapping[str, types.DataType | None] = {
    "boolean": types.BooleanType(),
    "smallint": types.ShortType(),
    "integer": types.IntegerType(),
    "bigint": types.LongType(),
    "real": types.FloatType(),
    "double precision": types.DoubleType(),
    "numeric(9,2)": types.DecimalType(9, 2),
    **dict.fromkeys(("numeric", "numeric(40,2)", "numeric(9,-2)", "money")),
    **dict.fromkeys(("text", "character varying(9)", "character(9)"), _TEXT),
    "bytea": types.BinaryType(),
    "uuid": _TEXT,
    "date": types.DateType(),
    "timestamp without time zone": types.TimestampNTZType(),
    "timestamp with time zone": types.TimestampType(),
    **dict.fromkeys(("time without time zone", "time(3) with time zone")),
    **dict.fromkeys(("interval", "json", "jsonb", "xml", "inet", "int4range"), _TEXT),
    "bigint[]": types.ArrayType(types.LongType()),
    **dict.fromkeys(("numeric[]", "money[]")),
    **dict.fromkeys(("tsvector", "point"), _TEXT),
}
"""The types of PostgreSQL as Spark gives them; none of those that are refused."""

DELTA: Mapping[str, types.DataType] = {
    "boolean": types.BooleanType(),
    "tinyint": types.ByteType(),
    "smallint": types.ShortType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "decimal(9,2)": types.DecimalType(9, 2),
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "date": types.DateType(),
    "timestamp": types.TimestampType(),
    "timestamp_ntz": types.TimestampNTZType(),
    "array<bigint>": types.ArrayType(types.LongType()),
    "map<string,bigint>": types.MapType(types.StringType(), types.LongType()),
    "struct<a:bigint>": types.StructType([types.StructField("a", types.LongType())]),
}
"""The types of Delta tables as Spark gives them."""


def render() -> str:
    """The text of the page."""
    return "\n".join(
        [
            _INTRODUCTION,
            "## JSON\n",
            *_table("value", JSON, _json_reads),
            "## csv\n",
            *_table("field", TEXTS, _csv_reads),
            "## Avro, as values\n",
            "`derived` is the column that a schema file or a subject gives; `columns` can declare the others.\n",
            *_avro_table(),
            "## Protobuf, as values\n",
            *_protobuf_table(),
            "Of files, `ts` is a time without a zone and `tz` an instant, in `ms`, `us` or `ns`.\n",
            *(part for one in ("parquet", "orc", "avro") for part in _files_table(one)),
            "## Tables of Iceberg\n",
            _OF_TABLES,
            *_tables_table({kind: spark_type(parse_column_type(kind)) for kind in DECLARED}, UNREADABLE),
            "## Tables of Delta\n",
            *_tables_table(DELTA, {}),
            "## PostgreSQL\n",
            *_tables_table(
                {name: kind for name, kind in POSTGRESQL.items() if kind is not None},
                {name: why for name in POSTGRESQL if (why := unreadable_type(name)) is not None},
            ),
        ]
    )


_INTRODUCTION = """\
# What becomes of the values of each format

This page is made by the code that decides: each value was handed to the decoder of its format with each declared type.
What is not listed for a type is rejected, or refused where it is a type of a file. Nothing is cut or completed; only
json and csv, whose numbers have decimal digits, give the nearest `float` or `double`. [The guide](guides/inputs.md)
says where such values go. Records of Kinesis, and values that a table stores, are decoded as those of Kafka are.
"""

_OF_TABLES = """\
An input that is a table declares no columns: each is read as it is. It goes unchanged into columns of these types; into
all others only by a cast of the transformation, and the stream says so at its start. A `uuid` and a `fixed[16]` take
what has their form, and stop the stream at anything else.
"""


def _table(what: str, values: Sequence[str], reads: Callable[[str, str], bool]) -> Iterable[str]:
    yield f"| declared | {what}s that are read |\n|---|---|"
    for kind in DECLARED:
        found = [value for value in values if reads(kind, value)]
        yield f"| `{kind}` | {_listed(found) if found else 'none'} |"
    yield ""


def _json_reads(kind: str, value: str) -> bool:
    block = JsonBlockDecoder([Column(name="x", type=kind)]).decode([f'{{"x": {value}}}'.encode()])
    return not block.rejections


def _csv_reads(kind: str, value: str) -> bool:
    try:
        decoder = CsvBlockDecoder([Column(name="x", type=kind)])
    except ValueError:
        return False
    return not decoder.decode([pa.array([value], pa.string())]).rejections


def _avro_table() -> Iterable[str]:
    yield "| type | derived | declared as |\n|---|---|---|"
    for name, (schema, value) in AVRO.items():
        written = record(("x", schema))
        others = [kind for kind in DECLARED if _avro_reads(kind, written, value)]
        yield f"| `{name}` | {_avro_column(written)} | {_listed(others) if others else 'none'} |"
    yield ""


def _avro_column(schema: str) -> str:
    try:
        (column,) = avro_columns(schema)
    except ValueError as error:
        return _refused(str(error).splitlines()[0])
    return f"`{column.type}`"


def _avro_reads(kind: str, schema: str, value: Any) -> bool:
    decoder = by_registry({1: schema}, columns=(Column(name="x", type=kind),))
    decoder.begin_block()
    found = decoder.decode(framed(1, avro(schema, {"x": value})))
    return found.fields is not None


def _protobuf_table() -> Iterable[str]:
    yield "| type | column |\n|---|---|"
    messages = " ".join(f"message M{number} {{ {kind} x = 1; }}" for number, kind in enumerate(PROTOBUF))
    file = compiled(_PROTO + messages)
    for number, kind in enumerate(PROTOBUF):
        try:
            (column,) = message_columns(message_of(file, f"M{number}"))
            yield f"| `{kind}` | `{column.type}` |"
        except ValueError as error:
            yield f"| `{kind}` | {_refused(str(error).splitlines()[0])} |"
    yield ""


_PROTO = """\
syntax = "proto3";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
import "google/protobuf/struct.proto";
enum Kind { NONE = 0; }
message Inner { int64 a = 1; }
message Empty {}
"""


def _files_table(file_format: FileFormat) -> Iterable[str]:
    yield f"## Files of {file_format}\n"
    yield "| declared | types that are read |\n|---|---|"
    for kind in DECLARED:
        columns = [Column(name="x", type=kind)]
        found = [
            name
            for name, one in FILE_TYPES.items()
            if not unfit_columns(columns, pa.schema([("x", one)]), file_format=file_format)
        ]
        yield f"| `{kind}` | {_listed(found) if found else 'none'} |"
    yield ""


def _tables_table(columns: Mapping[str, types.DataType], unreadable: Mapping[str, str]) -> Iterable[str]:
    yield "| type in the table | goes unchanged into |\n|---|---|"
    for name, kind in columns.items():
        found = taken_by(kind)
        yield f"| `{name}` | {_listed(found) if found else 'none'} |"
    for name, why in unreadable.items():
        yield f"| `{name}` | {_refused(why)} |"
    yield ""


def taken_by(kind: types.DataType) -> list[str]:
    """The declared types whose columns take rows of a type of Spark without a cast."""
    rows = types.StructType([types.StructField("x", kind)])
    wanted = {one: types.StructType([types.StructField("x", spark_type(parse_column_type(one)))]) for one in DECLARED}
    return [name for name, table in wanted.items() if not list(find_differences(rows, table))]


def _listed(values: Iterable[str]) -> str:
    return ", ".join(f"`{value}`" for value in values)


def _refused(why: str) -> str:
    return f"refused: {why.replace('|', chr(92) + '|')}"


if __name__ == "__main__":
    FILE.write_text(render())
