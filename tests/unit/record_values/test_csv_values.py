"""A field of csv becomes exactly what it says, or its line is rejected with the reason."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fixtures.rejections import sentences
from tests.unit.record_values.test_json_values import VALUES

from sluice.declarations.value_declaration import ValueColumn
from sluice.record_values.csv_decoding import CsvBlockDecoder, CsvHeader, lines_of, read_header, split_line
from sluice.record_values.rejection import LARGEST_VALUE_BYTES, Rejection, RejectionKind, too_large

EXACT: list[tuple[str, str | None, Any]] = [
    ("string", "", ""),
    ("string", " padded ", " padded "),
    ("string", "\x00", "\x00"),
    ("boolean", "True", True),
    ("int", "-5", -5),
    ("long", "9223372036854775807", 9223372036854775807),
    ("double", "1e3", 1000.0),
    ("float", "0.5", 0.5),
    ("decimal(6, 2)", "1.250", Decimal("1.25")),
    ("date", "2026-01-31", date(2026, 1, 31)),
    ("timestamp", "2026-01-31 12:00:00", datetime(2026, 1, 31, 12)),  # noqa: DTZ001  # a local time
    ("timestamptz", "2026-01-31T12:00:00+01:00", datetime(2026, 1, 31, 11, tzinfo=UTC)),
    ("timestamptz unit milliseconds", "1706702400000", datetime(2024, 1, 31, 12, tzinfo=UTC)),
    ("binary", "AP8=", b"\x00\xff"),
    ("binary", "", b""),
    ("fixed[2]", "AP8=", b"\x00\xff"),
    *((kind, None, None) for kind in ("string", "int", "timestamptz")),
]

REJECTED: list[tuple[str, str, str]] = [
    ("string", "caf\N{REPLACEMENT CHARACTER}", "the value is not UTF-8 text, at `x`"),
    ("boolean", "1", "true or false"),
    ("boolean", "yes", "true or false"),
    ("int", "", "a whole number of 32 bits"),
    ("int", "1.0", "a whole number of 32 bits"),
    ("int", " 1", "a whole number of 32 bits"),
    ("int", "2147483648", "a whole number of 32 bits"),
    ("int", "0x10", "a whole number of 32 bits"),
    ("long", "9223372036854775808", "a whole number of 64 bits"),
    ("double", "1e400", "a number of 64 bits"),
    ("double", "NaN", "a number of 64 bits"),
    ("double", "Infinity", "a number of 64 bits"),
    ("double", "1,5", "a number of 64 bits"),
    ("float", "1e39", "a number of 32 bits"),
    ("decimal(6, 2)", "1.239", "holds exactly"),
    ("decimal(6, 2)", "12345.6", "holds exactly"),
    ("date", "31.01.2026", "a date such as"),
    ("date", "2026-01-31 00:00:00", "a date such as"),
    ("date", "2026", "a date such as"),
    ("timestamp", "2026-01-31", "without a zone"),
    ("timestamp", "2026-01-31T12:00:00Z", "without a zone"),
    ("timestamptz", "2026-01-31T12:00:00", "a date, a time and a zone"),
    ("timestamptz", "12:30", "a date, a time and a zone"),
    ("timestamptz", "2026-01-31T12:00:00.1234567Z", "at most six digits"),
    ("timestamptz unit milliseconds", "1706702400000.5", "a whole number of 64 bits"),
    ("uuid", "no", "a UUID"),
    ("binary", "ab", "bytes in base64"),
    ("binary", "YQ==\n", "bytes in base64"),
    ("binary", "YQ\xe4=", "bytes in base64"),
    ("fixed[2]", "YQ==", "2 bytes in base64"),
]

KINDS = [kind for kind in VALUES if "<" not in kind]
"""The types that a field of a line can have."""


def values(kind: str) -> st.SearchStrategy[Any]:
    """Random values of a type; texts without what Spark's reader puts in the place of wrong bytes."""
    is_text = kind == "string"
    characters = st.characters(codec="utf-8", exclude_characters="\N{REPLACEMENT CHARACTER}")
    return st.text(characters) if is_text else VALUES[kind][0]


def field_of(kind: str, value: Any) -> str:
    """The text of a value in a field."""
    text: str = VALUES[kind][1](value)
    return json.loads(text) if text.startswith('"') else text


def decoder(text: str) -> CsvBlockDecoder:
    """A decoder of one column `x`, of a type and perhaps a unit."""
    kind, _, unit = text.partition(" unit ")
    return CsvBlockDecoder(
        [ValueColumn.model_validate({"name": "x", "type": kind, **({"unit": unit} if unit else {})})]
    )


@pytest.mark.parametrize(("kind", "sent", "expected"), EXACT)
def test_a_field_becomes_what_it_says(kind: str, sent: str | None, expected: Any) -> None:
    block = decoder(kind).decode([pa.array([sent, None], pa.string())])
    assert (block.rejections, block.columns[0].to_pylist()) == ({}, [expected, None])


@pytest.mark.parametrize(("kind", "sent", "reason"), REJECTED)
def test_a_field_that_is_not_exact_rejects_its_line(kind: str, sent: str, reason: str) -> None:
    block = decoder(kind).decode([pa.array([None, sent], pa.string())])
    assert list(block.rejections) == [1]
    assert reason in sentences(block)[1]


@settings(max_examples=25)
@given(data=st.data())
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_what_is_decoded(kind: str, data: st.DataObject) -> None:
    sent = data.draw(st.lists(values(kind), max_size=5))
    block = decoder(kind).decode([pa.array([field_of(kind, value) for value in sent], pa.string())])
    assert (block.rejections, block.columns[0].to_pylist()) == ({}, sent)


def test_a_line_that_is_too_large_is_rejected_and_its_neighbours_are_not() -> None:
    columns = [ValueColumn(name=name, type="string") for name in ("id", "note")]
    half = "x" * (LARGEST_VALUE_BYTES // 2)
    ids, notes = pa.array(["1", half, half, None]), pa.array(["a", half, half + "x", None])

    block = CsvBlockDecoder(columns).decode([ids, notes])

    size = LARGEST_VALUE_BYTES + 1
    assert block.rejections == {2: too_large(size)}


def header_of(names: list[str | None], *, required: str = "", rejects: bool = False) -> CsvHeader | Rejection:
    """What a first line says of the columns a and b."""
    return read_header(names, ("a", "b"), required=required, rejects_undeclared=rejects)


@pytest.mark.parametrize(
    ("header", "places", "undeclared"),
    [
        (["b", "a"], (1, 0), ()),
        (["\N{ZERO WIDTH NO-BREAK SPACE}a", "b"], (0, 1), ()),
        (["b"], (None, 0), ()),
        (["x", "a", None, "b", ""], (1, 3), ("x", "a column without a name")),
        (["a", "c"], (0, None), ("c",)),
    ],
)
def test_columns_are_matched_by_their_names(
    header: list[str | None], places: tuple[int | None, ...], undeclared: tuple[str, ...]
) -> None:
    assert header_of(header) == CsvHeader(width=len(header), places=places, undeclared=undeclared)


@pytest.mark.parametrize(
    ("header", "problem"),
    [
        (["a"], "lacks b"),
        (["a", "c"], "lacks b, has c, which is not declared"),
        (["a", "b", "b"], "has b twice"),
        (["a", "b", "A", "B", "b"], "has b twice, has A, which is not declared, has B, which is not declared"),
        (["1", "2"], "lacks a, lacks b, has 1, which is not declared, has 2, which is not "
         "declared"),
    ],
)  # fmt: skip
def test_a_header_that_lacks_a_required_column_or_all_is_refused(header: list[str | None], problem: str) -> None:
    rejection = header_of(header, required="b")
    assert isinstance(rejection, Rejection)
    assert rejection.sentence == f"the first line of the file does not name the declared columns: it {problem}"
    assert rejection.quotes_data


@pytest.mark.parametrize("header", [["1", "2"], ["a", "B"]], ids=["none of the columns", "another case"])
def test_a_header_that_cannot_be_meant_is_refused(header: list[str | None]) -> None:
    assert isinstance(header_of(header), Rejection)


def test_an_undeclared_column_rejects_the_lines_when_that_is_declared() -> None:
    rejection = header_of(["a", "c", "b"], rejects=True)
    assert isinstance(rejection, Rejection)
    assert rejection.kind is RejectionKind.UNDECLARED
    assert "`c`" in rejection.sentence


@given(fields=st.lists(st.none() | st.text() | st.text(alphabet='a",\r\n'), min_size=1, max_size=5))
def test_lines_are_written_as_they_are_split(fields: list[str | None]) -> None:
    line = lines_of([pa.array([field], pa.string()) for field in fields])[0].as_py()
    assert line is not None
    assert split_line(line) == (fields if line else [])


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("", []),
        (",", [None, None]),
        (',""', [None, ""]),
        ('a,"b ""c"" ,d"', ["a", 'b "c" ,d']),
        ("a\rb,c\n", ["a\rb", "c\n"]),
        ('a,"b', ["a", '"b']),
        ('"a"b,c', ["ab", "c"]),
        ("x" * 200_000, ["x" * 200_000]),
    ],
)
def test_any_line_is_split(line: str, fields: list[str | None]) -> None:
    assert split_line(line) == fields


def test_a_column_may_be_read_from_a_field_of_another_name() -> None:
    decoder = CsvBlockDecoder([ValueColumn(name="at", type="string", field="@timestamp", required=True)])

    assert decoder.names == ("@timestamp",)
    assert decoder.required == ["@timestamp"]


def test_null_and_an_empty_text_differ_in_a_line() -> None:
    fields = [pa.array(texts, pa.string()) for texts in (["1", None], [None, 'a"b'], ["", "c"])]
    assert lines_of(fields).to_pylist() == ['1,,""', ',"a""b",c']
