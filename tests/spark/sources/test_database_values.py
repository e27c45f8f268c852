"""Each type of PostgreSQL that the page of formats calls read gives the value that the database has."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import uuid4

from pyspark.sql import SparkSession
from tests.architecture.formats_reference import POSTGRESQL
from tests.fixtures.database import run_sql

from sluice.declarations.input_declaration import InputDeclaration
from sluice.settings import Settings
from sluice.sources.source_types import unreadable_type
from sluice_spark.sources import open_input

VALUES: dict[str, tuple[str, Any]] = {
    "boolean": ("true", True),
    "smallint": ("-32768", -(2**15)),
    "integer": ("2147483647", 2**31 - 1),
    "bigint": ("-9223372036854775808", -(2**63)),
    "real": ("0.5", 0.5),
    "double precision": ("0.1", 0.1),
    "numeric(9,2)": ("9999999.99", Decimal("9999999.99")),
    "text": ("'\N{SNOWMAN} ü'", "\N{SNOWMAN} ü"),
    "character varying(9)": ("'word '", "word "),
    "character(9)": ("'word'", "word     "),
    "bytea": ("'\\x00ff'", b"\x00\xff"),
    "uuid": ("'16ec9105-3d1b-4ef6-97a8-ebecba03a3f7'", "16ec9105-3d1b-4ef6-97a8-ebecba03a3f7"),
    "date": ("'1900-01-01'", date(1900, 1, 1)),
    "timestamp without time zone": ("'2026-03-29 02:30:00.123456'", datetime(2026, 3, 29, 2, 30, 0, 123456)),  # noqa: DTZ001  # a local time
    "timestamp with time zone": (
        "'2026-03-29 02:30:00.123456+02'",
        datetime(2026, 3, 29, 0, 30, 0, 123456, tzinfo=UTC),
    ),
    "interval": ("'1 day 2 hours'", "1 day 02:00:00"),
    "json": ("""'{"a":  1}'""", '{"a":  1}'),
    "jsonb": ("""'{"a":  1}'""", '{"a": 1}'),
    "inet": ("'10.0.0.1'", "10.0.0.1"),
    "int4range": ("'[1,5)'", "[1,5)"),
    "bigint[]": ("ARRAY[1, NULL]", [1, None]),
    "tsvector": ("'a b'", "'a' 'b'"),
    "point": ("'(1,2)'", "(1,2)"),
}
"""What is stored, in SQL, and what is read, for each type that is not refused."""


def test_each_type_is_read_as_the_database_has_it(spark: SparkSession, jdbc_settings: Settings) -> None:
    readable = {name for name, kind in POSTGRESQL.items() if kind is not None}
    assert readable == {name for name in POSTGRESQL if unreadable_type(name) is None}
    assert VALUES.keys() == readable - {"xml"}, "the embedded server is built without it"
    name = f"typed_{uuid4().hex[:8]}"
    terms = ", ".join(f"CAST({value} AS {kind}) c{number}" for number, (kind, (value, _)) in enumerate(VALUES.items()))
    nulls = ", ".join(["NULL"] * len(VALUES))
    run_sql(jdbc_settings, f"CREATE TABLE {name} AS SELECT {terms}".replace(":", "\\:"))
    run_sql(jdbc_settings, f"INSERT INTO {name} SELECT {nulls}")  # our own name
    source = {"jdbc": {"connection": "database", "table": name}}

    read = open_input(spark, InputDeclaration.model_validate({"static": source}), jdbc_settings)

    assert {kind: POSTGRESQL[kind] for kind in VALUES} == {
        kind: read.schema[f"c{number}"].dataType for number, kind in enumerate(VALUES)
    }
    rows = read.toArrow()
    run_sql(jdbc_settings, f"DROP TABLE {name}")
    found = {kind: rows.column(f"c{number}").to_pylist() for number, kind in enumerate(VALUES)}
    at = found["timestamp with time zone"]
    found["timestamp with time zone"] = [None if one is None else one.astimezone(UTC) for one in at]
    assert {kind: [one for one in values if one is not None] for kind, values in found.items()} == {
        kind: [right] for kind, (_, right) in VALUES.items()
    }
    assert rows.num_rows == 2
