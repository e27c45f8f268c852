"""Each type of a table that is read goes into each column that the page of formats names, value by value."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyiceberg.types import TimeType
from tests.architecture.formats_reference import DECLARED, DELTA, taken_by
from tests.fixtures.workshop import Workshop

from sluice.declarations.column_types import parse_column_type
from sluice.errors import SchemaError
from sluice.settings import FilesConnection
from sluice_spark.query.stream_preview import preview
from sluice_spark.session.columns import spark_type

IDS = (UUID("16ec9105-3d1b-4ef6-97a8-ebecba03a3f7"), UUID(int=0))
VALUES: dict[str, tuple[Any, ...]] = {
    "boolean": (True, False),
    "int": (2**31 - 1, -(2**31)),
    "long": (2**63 - 1, -(2**63)),
    "float": (0.5, -3.4028234663852886e38),
    "double": (0.1, -1.7976931348623157e308),
    "decimal(9, 2)": (Decimal("9999999.99"), Decimal("-0.01")),
    "string": ("\N{SNOWMAN} ü", ""),
    "uuid": tuple(one.bytes for one in IDS),
    "binary": (b"\x00\xff", b""),
    "fixed[16]": (bytes(range(16)), b"\xff" * 16),
    "date": (date(9999, 12, 31), date(1900, 1, 1)),
    "timestamp": (datetime(2026, 3, 29, 2, 30, 0, 123456), datetime(1900, 1, 1)),  # noqa: DTZ001  # local times
    "timestamptz": (datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC), datetime(1900, 1, 1, tzinfo=UTC)),
    "list<long>": ([1, None], []),
    "map<string, long>": ([("a", 1), ("b", None)], []),
    "struct<a: long>": ({"a": 1}, {"a": None}),
}
"""Two values of each type, as Arrow takes them."""

SENT: dict[tuple[str, str], tuple[Any, ...]] = {
    ("string", "uuid"): tuple(map(str, IDS)),
    ("binary", "fixed[16]"): VALUES["fixed[16]"],
}
"""What a type holds for a column that holds less."""

OF_DELTA = {
    "boolean": ("true", "false"),
    "int": ("2147483647", "-2147483648"),
    "bigint": ("9223372036854775807", "-9223372036854775807"),
    "float": ("0.5", "-3.4028234663852886e38"),
    "double": ("0.1D", "-1.7976931348623157e308D"),
    "decimal(9,2)": ("9999999.99", "-0.01"),
    "string": ("'16ec9105-3d1b-4ef6-97a8-ebecba03a3f7'", "'00000000-0000-0000-0000-000000000000'"),
    "binary": ("X'000102030405060708090A0B0C0D0E0F'", "X'FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF'"),
    "date": ("DATE'9999-12-31'", "DATE'1900-01-01'"),
    "timestamp": ("TIMESTAMP'2026-03-29T01:30:00.123456Z'", "TIMESTAMP'1900-01-01T00:00:00Z'"),
    "timestamp_ntz": ("TIMESTAMP_NTZ'2026-03-29T02:30:00.123456'", "TIMESTAMP_NTZ'1900-01-01T00:00:00'"),
    "array<bigint>": ("array(1L, NULL)", "array()"),
    "map<string,bigint>": ("map('a', 1L, 'b', NULL)", "map()"),
    "struct<a:bigint>": ("named_struct('a', 1L)", "named_struct('a', CAST(NULL AS BIGINT))"),
}
"""The same values in the SQL of Spark; texts are those of ids, and bytes sixteen."""


def columns(kinds: list[str]) -> dict[str, str]:
    return {f"c{number}": kind for number, kind in enumerate(kinds)}


def copied(
    workshop: Workshop, source: dict[str, Any], kinds: list[str], *, sql: str = "SELECT * FROM rows"
) -> list[list[Any]]:
    """What a stream copies from the columns of a table into columns of other types: the values of each."""
    name = f"s{workshop.namespace}"
    target = workshop.declare_table("target", columns(kinds))
    workshop.declare_stream(
        name,
        sql=sql,
        inputs={"rows": {"stream": source}},
        outputs={"main": {"iceberg": {"table": target}}},
    )
    workshop.run(name)
    rows = workshop.table("target").scan().to_arrow()
    return [_plain(rows.column(name).to_pylist()) for name in rows.column_names]


def _plain(values: list[Any]) -> list[Any]:
    values = [one.bytes if isinstance(one, UUID) else one for one in values]
    return [one.astimezone(UTC) if isinstance(one, datetime) and one.tzinfo is not None else one for one in values]


def test_the_columns_of_iceberg_are_read_as_they_are(workshop: Workshop) -> None:
    assert set(VALUES) == set(DECLARED)
    pairs = [(kind, other) for kind in DECLARED for other in taken_by(spark_type(parse_column_type(kind)))]
    source = workshop.declare_table("source", columns([kind for kind, _ in pairs]))
    sent = [SENT.get(pair, VALUES[pair[0]]) for pair in pairs]
    rows = [{f"c{number}": values[row] for number, values in enumerate(sent)} for row in (0, 1)]
    workshop.append("source", [*rows, dict.fromkeys(rows[0])])

    found = copied(workshop, {"iceberg": {"table": source}}, [kind for _, kind in pairs])

    texts = {("uuid", "string"): SENT["string", "uuid"], ("string", "uuid"): VALUES["uuid"]}
    right = {pair: [*texts.get(pair, values), None] for pair, values in zip(pairs, sent, strict=True)}
    assert dict(zip(pairs, found, strict=True)) == right


def test_a_column_that_spark_does_not_read_is_named(workshop: Workshop) -> None:
    """Another writer may add one to a table that is declared without it."""
    source = workshop.declare_table("source", {"id": "long"})
    assert copied(workshop, {"iceberg": {"table": source}}, ["long"], sql="SELECT id AS c0 FROM rows") == [[]]
    with workshop.table("source").update_schema() as update:
        update.add_column("opens_at", TimeType())

    sentence = rf"{source} cannot be read: column opens_at of type time is a time of day, which Spark does not have\."
    stream = workshop.stream(f"s{workshop.namespace}")
    with pytest.raises(SchemaError, match=sentence):
        workshop.run(stream.name)
    with pytest.raises(SchemaError, match=sentence):
        preview(workshop.spark, stream, workshop.settings, sample=1, shown=1)


@pytest.mark.full  # the same question of Iceberg is in every run
def test_the_columns_of_delta_are_read_as_they_are_and_smaller_numbers_are_refused(
    workshop: Workshop, tmp_path: Path
) -> None:
    pairs = [(name, other) for name, kind in DELTA.items() for other in taken_by(kind)]
    assert {name for name in DELTA if not taken_by(DELTA[name])} == {"tinyint", "smallint"}
    lake = FilesConnection(kind="files", root=tmp_path.as_uri())
    settings = workshop.settings.model_copy(update={"connections": {**workshop.settings.connections, "lake": lake}})
    workshop = replace(workshop, settings=settings)
    for row in (0, 1):
        terms = ", ".join(f"CAST({OF_DELTA[kind][row]} AS {kind}) c{n}" for n, (kind, _) in enumerate(pairs))
        made = workshop.spark.sql(f"SELECT {terms}")  # our own terms
        made.write.format("delta").mode("append").save(f"{lake.root}/typed")
    workshop.spark.sql("SELECT 1Y c0, 1S c1").write.format("delta").save(f"{lake.root}/small")  # ours

    with pytest.raises(SchemaError, match=r"c0: declared int, got tinyint.*c1: declared int, got smallint"):
        copied(workshop, {"delta": {"connection": "lake", "path": "small"}}, ["int", "int"])
    workshop = replace(workshop, namespace=f"{workshop.namespace}b")
    found = copied(workshop, {"delta": {"connection": "lake", "path": "typed"}}, [kind for _, kind in pairs])

    right = {pair: list(VALUES[pair[1]]) for pair in pairs}
    right["bigint", "long"] = [2**63 - 1, -(2**63) + 1]
    right["string", "string"] = list(map(str, IDS))
    right["binary", "binary"] = list(VALUES["fixed[16]"])
    assert {pair: sorted(map(repr, values)) for pair, values in zip(pairs, found, strict=True)} == {
        pair: sorted(map(repr, values)) for pair, values in right.items()
    }
