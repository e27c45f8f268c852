"""A JSON value becomes exactly what it says, or is rejected with the reason. One row for each odd value."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.rejections import sentences

from sluice.declarations.value_declaration import Column, ValueColumn
from sluice.record_values.json_decoding import JsonBlockDecoder
from sluice.record_values.rejection import LARGEST_VALUE_BYTES, lacking

EXACT: list[tuple[str, str, Any]] = [
    ("boolean", "true", True),
    ("int", "2147483647", 2147483647),
    ("int", "-0", 0),
    ("long", "-9223372036854775808", -(2**63)),
    ("float", "0.5", 0.5),
    ("float", "3.4028234663852886e38", 3.4028234663852886e38),
    ("double", "1", 1.0),
    ("double", "1e308", 1e308),
    ("double", "-0.0", -0.0),
    ("string", '"na\\u00efve \\ud83d\\ude00"', "naïve 😀"),
    ("string", '""', ""),
    ("string", '"\\u0000"', "\x00"),
    ("string", '"a \\u0022b\\u0022"', 'a "b"'),
    ("decimal(6, 2)", "1.25", Decimal("1.25")),
    ("decimal(6, 2)", "1.250", Decimal("1.25")),
    ("decimal(6, 2)", '"1.25"', Decimal("1.25")),
    ("decimal(6, 2)", "1e3", Decimal("1000.00")),
    ("decimal(38, 0)", "9" * 38, Decimal("9" * 38)),
    ("date", '"2026-01-31"', date(2026, 1, 31)),
    ("date", '"0001-01-01"', date(1, 1, 1)),
    ("timestamp", '"2026-01-31T12:00:00.000001"', datetime(2026, 1, 31, 12, 0, 0, 1)),  # noqa: DTZ001  # a local time
    ("timestamp", '"2026-01-31 12:00"', datetime(2026, 1, 31, 12)),  # noqa: DTZ001  # as above
    ("timestamptz", '"2026-01-31T12:00:00Z"', datetime(2026, 1, 31, 12, tzinfo=UTC)),
    ("timestamptz", '"2026-01-31T12:00:00.5+01:00"', datetime(2026, 1, 31, 11, 0, 0, 500000, tzinfo=UTC)),
    ("timestamptz", '"2026-01-31 12:00:00-0530"', datetime(2026, 1, 31, 17, 30, tzinfo=UTC)),
    ("timestamptz unit seconds", "1706702400", datetime(2024, 1, 31, 12, tzinfo=UTC)),
    ("timestamptz unit milliseconds", "-1", datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=UTC)),
    ("timestamptz unit microseconds", "1", datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ("timestamptz unit nanoseconds", "1000", datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)),
    ("timestamp unit milliseconds", "0", datetime(1970, 1, 1)),  # noqa: DTZ001  # as above
    ("uuid", '"16EC9105-3d1b-4ef6-97a8-ebecba03a3f7"', "16EC9105-3d1b-4ef6-97a8-ebecba03a3f7"),
    ("binary", '"/w=="', b"\xff"),
    ("fixed[2]", '"YWI="', b"ab"),
    ("list<int>", "[1, null]", [1, None]),
    ("list<list<decimal(3, 1)>>", "[[1.5], null, []]", [[Decimal("1.5")], None, []]),
    ("map<string, int>", '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
    ("map<long, string>", '{"1": "x"}', [(1, "x")]),
    ("map<date, int>", '{"2026-01-31": 1}', [(date(2026, 1, 31), 1)]),
    ("struct<class: int, y: list<date>>", '{"class": 1}', {"class": 1, "y": None}),
    ("struct<x: int>", '{"x": 1, "z": 2}', {"x": 1}),
    *((kind, "null", None) for kind in ("int", "decimal(6, 2)", "timestamptz", "list<int>", "struct<x: int>", "uuid")),
]
"""Type, what is sent in the field `x`, and what the column holds."""

REJECTED: list[tuple[str, str, str]] = [
    ("boolean", "1", "Expected `bool | null`, got `int`"),
    ("boolean", '"true"', "Expected `bool | null`, got `str`"),
    ("int", "2147483648", "Expected `int` <= 2147483647"),
    ("int", "-2147483649", "Expected `int` >= -2147483648"),
    ("int", "1.0", "Expected `int | null`, got `float`"),
    ("int", "1e2", "Expected `int | null`, got `float`"),
    ("int", '"1"', "Expected `int | null`, got `str`"),
    ("int", "true", "Expected `int | null`, got `bool`"),
    ("int", "[1]", "Expected `int | null`, got `array`"),
    ("long", "9223372036854775808", "Expected `int` <= 9223372036854775807"),
    ("long", "1" * 5000, "Integer value out of range"),
    ("float", "1e39", "Expected `float` <= 3.402"),
    ("float", "1e400", "Number out of range"),
    ("float", '"1.5"', "Expected `float | null`, got `str`"),
    ("double", "1e400", "Number out of range"),
    ("double", "-1e400", "Number out of range"),
    ("double", "NaN", "is not JSON"),
    ("double", "Infinity", "is not JSON"),
    ("double", '"NaN"', "Expected `float | null`, got `str`"),
    ("double", "true", "Expected `float | null`, got `bool`"),
    ("string", "1", "Expected `str | null`, got `int`"),
    ("string", "1.50", "Expected `str | null`, got `float`"),
    ("string", "true", "Expected `str | null`, got `bool`"),
    ("string", '{"a": 1}', "Expected `str | null`, got `object`"),
    ("string", "[1]", "Expected `str | null`, got `array`"),
    ("string", '"\\ud800"', "a lone surrogate"),
    ("string", '"\\udc00"', "is not JSON"),
    ("string", '"\\ud83dx"', "a lone surrogate"),
    ("string", '"\x01"', "is not JSON"),
    ("decimal(6, 2)", "1.239", "a number that decimal(6, 2) holds exactly"),
    ("decimal(6, 2)", "12345.6", "a number that decimal(6, 2) holds exactly"),
    ("decimal(6, 2)", "1e400", "a number that decimal(6, 2) holds exactly"),
    ("decimal(6, 2)", '"NaN"', "a number that decimal(6, 2) holds exactly"),
    ("decimal(6, 2)", '"1_0"', "a number that decimal(6, 2) holds exactly"),
    ("decimal(6, 2)", '" 1"', "a number that decimal(6, 2) holds exactly"),
    ("decimal(6, 2)", '""', "a number that decimal(6, 2) holds exactly"),
    ("decimal(6, 2)", "true", "a number that decimal(6, 2) holds exactly"),
    ("decimal(6, 2)", "[1]", "a number that decimal(6, 2) holds exactly"),
    ("decimal(6, 2)", "1" * 100000, "a number that decimal(6, 2) holds exactly"),
    ("date", '"2026-01-31T12:00:00Z"', "a date such as"),
    ("date", '"2013"', "a date such as"),
    ("date", '"2026-01"', "a date such as"),
    ("date", '"2026-02-30"', "a date such as"),
    ("date", '"0000-01-01"', "a date such as"),
    ("date", '"today"', "a date such as"),
    ("date", "20260131", "Expected `str | null`, got `int`"),
    ("timestamp", '"2026-01-31T12:00:00Z"', "without a zone"),
    ("timestamp", '"2026-01-31"', "without a zone"),
    ("timestamp", '"12:30"', "without a zone"),
    ("timestamptz", '"2026-01-31T12:00:00"', "a date, a time and a zone"),
    ("timestamptz", '"2026-01-31T12:00:00.1234567Z"', "at most six digits"),
    ("timestamptz", '"12:30"', "a date, a time and a zone"),
    ("timestamptz", '"2026-01-31"', "a date, a time and a zone"),
    ("timestamptz", '"2026-01-31T24:00:00Z"', "a date, a time and a zone"),
    ("timestamptz", '"2026-01-31T12:00:60Z"', "a date, a time and a zone"),
    ("timestamptz", '"9999-12-31T23:59:59-01:00"', "a date, a time and a zone"),
    ("timestamptz", '"0001-01-01T00:00:00+01:00"', "a date, a time and a zone"),
    ("timestamptz", '"Sat, 31 Jan 2026 12:00:00 GMT"', "a date, a time and a zone"),
    ("timestamptz", "1706702400000", "Expected `str | null`, got `int`"),
    ("timestamptz unit milliseconds", '"2026-01-31T12:00:00Z"', "Expected `int | null`, got `str`"),
    ("timestamptz unit milliseconds", "1.5", "Expected `int | null`, got `float`"),
    ("timestamptz unit seconds", "1706702400000", "a number of seconds since 1970"),
    ("timestamptz unit nanoseconds", "1001", "in whole microseconds"),
    ("uuid", '"no uuid"', "a UUID"),
    ("uuid", '"16ec91053d1b4ef697a8ebecba03a3f7"', "a UUID"),
    ("binary", '"/w"', "Invalid base64"),
    ("binary", "[255]", "Expected `bytes | null`, got `array`"),
    ("fixed[2]", '"YQ=="', "2 bytes in base64"),
    ("fixed[2]", '"YWJj"', "2 bytes in base64"),
    ("list<int>", '[1, "2"]', "Expected `int | null`, got `str`, at `$.x[1]`"),
    ("list<int>", "1", "Expected `array | null`, got `int`"),
    ("list<date>", '["2026-01-31", "2013"]', "a date such as 2026-01-31, at `$.x[...]`"),
    ("map<string, int>", "[1]", "Expected `object | null`, got `array`"),
    ("map<string, int>", '{"a": 1, "a": 2}', "has a key twice: a"),
    ("map<long, int>", '{"1.0": 1}', "Expected `int`, got `str`"),
    ("map<date, int>", '{"2013": 1}', "a date such as 2026-01-31, at `$.x[key]`"),
    ("struct<x: int>", '{"x": "1"}', "Expected `int | null`, got `str`, at `$.x.x`"),
    ("struct<x: date>", '{"x": "2013"}', "a date such as 2026-01-31, at `$.x.x`"),
    ("struct<x: int>", '{"x": 1, "x": 1}', "has a key twice: x"),
    ("struct<x: int>", 'null, "x": {}', "has a key twice: x"),
]
"""Type, what is sent in the field `x`, and a part of the reason."""

WHOLE: list[tuple[bytes | None, str]] = [
    (None, "the record has no value"),
    (b"", "is not JSON"),
    (b"{", "is not JSON"),
    (b"null", "Expected `object`, got `null`"),
    (b"[]", "Expected `object`, got `array`"),
    (b'"x"', "Expected `object`, got `str`"),
    (b"{} {}", "trailing characters"),
    (b'{"x": 1}}', "trailing characters"),
    (b'{"x": 1} garbage', "trailing characters"),
    (b"\xef\xbb\xbf{}", "is not JSON"),
    (b"\xff\xfe", "is not UTF-8 text"),
    (b'{"y": "\xff"}', "is not UTF-8 text"),
    (b'{"y": "\xed\xa0\x80"}', "is not UTF-8 text"),
    (b'{"y": "\\ud800"}', "a lone surrogate"),
    (b"{'x': 1}", "is not JSON"),
    (b'{"x": 1,}', "is not JSON"),
    (b'{"x": 01}', "is not JSON"),
    (b'{"x": +1}', "is not JSON"),
    (b'{"x": .5}', "is not JSON"),
    (b'{"x": 0x1}', "is not JSON"),
    (b'{"x": 1 /* one */}', "is not JSON"),
    (b'{"x": 1, "x": 2}', "has a key twice: x"),
    (b'{"x": 1, "\\u0078": 2}', "has a key twice: x"),
    (b'{"x": 1, "y": 1, "y": 2}', "has a key twice: y"),
    (b'{"y": {"z": 1, "z": 1}}', "has a key twice: z"),
    (b'{"x": 1, "x": 1, "y": "\\u0022\\u0022"}', "has a key twice: x"),
    (b'{"y": 1e400, "x": 1, "x": 2}', "has a key twice: x"),
    (b'{"y": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    (b'{"y": "' + b"a" * LARGEST_VALUE_BYTES + b'"}', "at most"),
]
"""A whole value, and a part of the reason."""

GOOD = b'{"x": null}'


def column(text: str) -> Column:
    """The column `x` of a type, with a unit when the text has one."""
    kind, _, unit = text.partition(" unit ")
    return ValueColumn.model_validate({"name": "x", "type": kind, **({"unit": unit} if unit else {})})


@pytest.mark.parametrize(("kind", "sent", "expected"), EXACT)
def test_a_value_becomes_what_it_says(kind: str, sent: str, expected: Any) -> None:
    block = JsonBlockDecoder([column(kind)]).decode([f'{{"x": {sent}}}'.encode(), GOOD])
    assert (block.rejections, block.columns[0].to_pylist()) == ({}, [expected, None])


@pytest.mark.parametrize(("kind", "sent", "reason"), REJECTED)
def test_a_value_that_is_not_exact_is_rejected_alone(kind: str, sent: str, reason: str) -> None:
    block = JsonBlockDecoder([column(kind)]).decode([GOOD, f'{{"x": {sent}}}'.encode(), GOOD])
    assert list(block.rejections) == [1]
    assert reason in sentences(block)[1]
    assert block.columns[0].to_pylist() == [None, None, None]


@pytest.mark.parametrize(("value", "reason"), WHOLE)
def test_a_value_that_is_not_one_json_object_is_rejected_alone(value: bytes | None, reason: str) -> None:
    block = JsonBlockDecoder([column("int")]).decode([b'{"x": 7}', value, b'{"x": 8, "more": {"y": "z"}}'])
    assert list(block.rejections) == [1]
    assert reason in sentences(block)[1]
    assert block.columns[0].to_pylist() == [7, None, 8]


def test_absent_and_required_fields() -> None:
    columns = [Column(name="id", type="long", required=True), Column(name="at", type="date", required=True)]
    block = JsonBlockDecoder(columns).decode([b'{"id": 1, "at": "2026-01-31"}', b'{"id": null}', b'{"id": 3}'])
    assert block.rejections == {1: lacking(["id", "at"]), 2: lacking(["at"])}
    assert block.columns[0].to_pylist() == [1, None, None]


def test_an_empty_block() -> None:
    block = JsonBlockDecoder([column("list<map<string, struct<x: decimal(3, 1)>>>")]).decode([])
    assert (block.rejections, len(block.columns[0])) == ({}, 0)


_LOCAL = st.datetimes(min_value=datetime(1, 1, 1), max_value=datetime(9999, 12, 31))  # noqa: DTZ001  # local times
VALUES: dict[str, tuple[Any, Any]] = {
    "boolean": (st.booleans(), json.dumps),
    "int": (st.integers(-(2**31), 2**31 - 1), json.dumps),
    "long": (st.integers(-(2**63), 2**63 - 1), json.dumps),
    "float": (st.floats(width=32, allow_nan=False, allow_infinity=False), json.dumps),
    "double": (st.floats(allow_nan=False, allow_infinity=False), json.dumps),
    "string": (st.text(st.characters(exclude_categories=["Cs"])), json.dumps),
    "decimal(12, 3)": (st.decimals(-(10**8), 10**8, places=3), str),
    "date": (st.dates(), lambda day: json.dumps(day.isoformat())),
    "timestamp": (_LOCAL, lambda at: json.dumps(at.isoformat())),
    "timestamptz": (
        st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),  # noqa: DTZ001  # the bounds
        lambda at: json.dumps(at.isoformat()),
    ),
    "timestamptz unit microseconds": (
        st.datetimes(datetime(1, 1, 2), timezones=st.just(UTC)),  # noqa: DTZ001  # the bound
        lambda at: str((at - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)),
    ),
    "uuid": (st.builds(lambda: str(uuid4())), json.dumps),
    "binary": (st.binary(), lambda raw: json.dumps(base64.b64encode(raw).decode())),
    "list<int>": (st.lists(st.none() | st.integers(-9, 9)), json.dumps),
    "map<string, double>": (
        st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.floats(-9, 9)),
        json.dumps,
    ),
}


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("kind", list(VALUES))
def test_what_is_encoded_is_what_is_decoded(kind: str, data: st.DataObject) -> None:
    values, encode = VALUES[kind]
    sent = data.draw(st.lists(values, max_size=5))
    block = JsonBlockDecoder([column(kind)]).decode([f'{{"x": {encode(value)}}}'.encode() for value in sent])
    decoded: list[Any] = block.columns[0].to_pylist()
    assert block.rejections == {}
    assert ([dict(pairs) for pairs in decoded] if kind.startswith("map") else decoded) == sent
