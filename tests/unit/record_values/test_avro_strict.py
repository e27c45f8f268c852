"""What fastavro takes for another value is rejected, with the reason and the path; what is allowed is not."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.rejections import sentence
from tests.unit.record_values.test_avro_values import by_file, by_registry, framed, record, written

from sluice.declarations.schema_files import avro_columns
from sluice.declarations.value_declaration import Column

ENUM = {"type": "enum", "name": "kind", "symbols": ["A", "B"]}
MAP = {"type": "map", "values": "long"}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
FIXED_DECIMAL = {**DECIMAL, "type": "fixed", "name": "money", "size": 2}
INNER = json.loads(record(("deep", "boolean"), name="inner"))
LARGE = 2**53 + 1
INVALID = "the value is not valid Avro of its schema: "
MISMATCH = "schema 1: the value does not fit the declared columns: "


@pytest.mark.parametrize(
    ("kind", "content", "reason"),
    [
        ("boolean", b"\x02", "the byte 2 is no boolean, at `k`"),
        (ENUM, b"\x01", "the number -1 stands for none of 2 symbols, at `k`"),
        (["null", "long"], b"\x01\x04", "the number -1 stands for none of 2 types, at `k`"),
        (MAP, b"\x04\x02a\x02\x02a\x04\x00", "the map has the key a twice, at `k`"),
        (MAP, b"\x02\x02a\x02\x02\x02a\x04\x00", "the map has the key a twice, at `k`"),
        (MAP, b"\x01\x06\x02a\x02\x01\x06\x02a\x04\x00", "the map has the key a twice, at `k`"),
        (DECIMAL, b"\x06\x00\x30\x39", "the decimal has more than 4 digits, at `k`"),
        (DECIMAL, b"\x04\xd8\xf0", "the decimal has more than 4 digits, at `k`"),
        (FIXED_DECIMAL, b"\x27\x10", "the decimal has more than 4 digits, at `k`"),
        ("long", b"\xff" * 9 + b"\x02", "the number has more than 64 bits, at `k`"),
        (INNER, b"\x03", "the byte 3 is no boolean, at `k.deep`"),
        ({"type": "array", "items": INNER}, b"\x04\x01\x02\x00", "the byte 2 is no boolean, at `k[].deep`"),
        ({"type": "map", "values": "boolean"}, b"\x02\x02a\x02\x00", "the byte 2 is no boolean, at `k{}`"),
        (["null", ENUM], b"\x02\x01", "the number -1 stands for none of 2 symbols, at `k`"),
        (MAP, b"\x01\x08\x02a\x02\x00", "a block has 3 bytes, not 4, at `k`"),
        ({"type": "array", "items": "long"}, b"\x01\x02\x02\x01\x02\x80\x01\x00", "a block has 2 bytes, not 1, at `k`"),
    ],
)
def test_what_fastavro_takes_for_another_value_is_rejected_with_its_path(
    kind: Any, content: bytes, reason: str
) -> None:
    got = by_file(record(("k", kind))).decode(content)

    assert (got.fields, sentence(got.rejection)) == (None, f"{INVALID}{reason}")


@pytest.mark.parametrize("kind", ["boolean", ENUM, MAP])
def test_a_field_that_no_column_takes_is_looked_at_as_well(kind: Any) -> None:
    content = {"boolean": b"\x02", str(ENUM): b"\x01", str(MAP): b"\x04\x02a\x02\x02a\x04\x00"}[str(kind)]
    decoder = by_registry({1: record(("id", "long"), ("k", kind))}, columns=(Column(name="id", type="long"),))

    got = decoder.decode(framed(1, b"\x02" + content))

    assert sentence(got.rejection).startswith(f"schema 1: {INVALID}")


@pytest.mark.parametrize(
    ("kind", "content", "value"),
    [
        (MAP, b"\x01\x06\x02a\x02\x02\x02b\x04\x00", [("a", 1), ("b", 2)]),
        ({"type": "array", "items": "long"}, b"\x03\x04\x02\x04\x02\x06\x00", [1, 2, 3]),
        (ENUM, b"\x02", "B"),
        ("boolean", b"\x01", True),
        ("long", b"\xff" * 9 + b"\x01", -(2**63)),
        ("string", b"\x00", ""),
    ],
)
def test_what_is_allowed_is_read(kind: Any, content: bytes, value: Any) -> None:
    """Arrays and maps may have several blocks, each with its size."""
    assert by_file(record(("k", kind))).decode(content).fields == {"k": value}


@pytest.mark.parametrize("number", ["9999", "-9999"])
def test_a_decimal_of_all_digits_of_its_schema_is_read(number: str) -> None:
    octets = int(number).to_bytes(2, "big", signed=True)
    for kind, content in ((DECIMAL, b"\x04" + octets), (FIXED_DECIMAL, octets)):
        got = by_file(record(("k", kind))).decode(content)
        assert str((got.fields or {}).get("k")) == f"{number[:-2]}.{number[-2:]}"


@pytest.mark.parametrize(
    ("sent", "declared", "number", "is_read"),
    [
        ("long", "double", LARGE, False),
        ("long", "double", 2**53 + 2, True),
        ("long", "double", -LARGE, False),
        ("long", "float", 2**24 + 1, False),
        ("int", "float", 2**24 + 1, False),
        ("int", "float", 2**24 + 2, True),
        ("int", "double", 2**31 - 1, True),
        (["null", "long"], ["null", "double"], LARGE, False),
        ("long", ["null", "double"], LARGE, False),
        (["null", "long"], "double", LARGE, False),
        ("long", ["null", "long", "double"], LARGE, True),
        ("long", "long", LARGE, True),
    ],
)
def test_a_whole_number_that_no_float_is_is_not_rounded(sent: Any, declared: Any, number: int, is_read: bool) -> None:
    writer, reader = record(("n", sent)), record(("n", declared))
    kind = "long" if "long" in declared else next(name for name in ("double", "float") if name in declared)
    decoder = by_registry({1: writer}, reader=reader, columns=(Column(name="n", type=kind),))

    got = decoder.decode(framed(1, written(writer, {"n": number})))

    name = next((one for one in ("double", "float") if one in declared), "")
    assert got.fields == ({"n": number} if is_read else None)
    assert sentence(got.rejection) == ("" if is_read else f"{MISMATCH}the whole number {number} is no {name}, at `n`")


@pytest.mark.parametrize("inside", ["array", "map", "record", "renamed", "named"])
def test_a_whole_number_is_not_rounded_within_other_types(inside: str) -> None:
    def of(kind: Any) -> Any:
        match inside:
            case "array":
                return {"type": "array", "items": kind}
            case "map":
                return {"type": "map", "values": kind}
        return json.loads(record(("n", kind), name="inner"))

    fields: list[dict[str, Any]] = [{"name": "k", "type": of("double")}]
    if inside == "renamed":
        fields = [{"name": "other", "aliases": ["k"], "type": of("double")}]
    sent = [{"name": "k", "type": of("long")}]
    if inside == "named":
        fields.append({"name": "again", "type": "inner"})
        sent.append({"name": "again", "type": "inner"})
    writer, reader = (json.dumps({"type": "record", "name": "r", "fields": each}) for each in (sent, fields))
    value: Any = {"array": [LARGE], "map": {"a": LARGE}}.get(inside, {"n": LARGE})
    good: Any = {"n": 1}
    content = written(writer, {"k": good, "again": value} if inside == "named" else {"k": value})

    got = by_registry({1: writer}, reader=reader, columns=avro_columns(reader)).decode(framed(1, content))

    path = {"array": "k[]", "map": "k{}", "named": "again.n"}.get(inside, "k.n")
    assert sentence(got.rejection) == f"{MISMATCH}the whole number {LARGE} is no double, at `{path}`"


def test_of_a_union_of_records_the_one_of_the_same_name_counts() -> None:
    of_long, of_double = (json.loads(record(("n", kind), name=name)) for name, kind in (("a", "long"), ("b", "double")))
    sent = json.loads(record(("n", "long"), name="b"))
    writer, reader = record(("k", sent)), record(("k", ["null", of_long, of_double]))
    decoder = by_registry({1: writer}, reader=reader, columns=(Column(name="k", type="struct<n: double>"),))

    assert decoder.decode(framed(1, written(writer, {"k": {"n": 2}}))).fields == {"k": {"n": 2.0}}
    got = decoder.decode(framed(1, written(writer, {"k": {"n": LARGE}})))
    assert sentence(got.rejection) == f"{MISMATCH}the whole number {LARGE} is no double, at `k.n`"


def test_a_number_that_means_a_time_is_no_number() -> None:
    at = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    writer, reader = record(("at", {"type": "long", "logicalType": "timestamp-micros"})), record(("at", "double"))
    decoder = by_registry({1: writer}, reader=reader, columns=(Column(name="at", type="timestamptz"),))

    assert decoder.decode(framed(1, written(writer, {"at": at}))).fields == {"at": at}


@pytest.mark.parametrize(
    ("number", "is_read"), [(0.5, True), (-0.0, True), (0.1, False), (1e39, False), (1e-46, False)]
)
def test_a_number_of_64_bits_that_none_of_32_is_is_not_rounded(number: float, is_read: bool) -> None:
    decoder = by_registry({1: record(("n", "double"))}, columns=(Column(name="n", type="float"),))

    got = decoder.decode(framed(1, written(record(("n", "double")), {"n": number})))

    assert (got.fields == {"n": number}) is is_read
    assert (got.rejection is None) is is_read
