"""Random values of Avro and Protobuf, whole and damaged, become the same column by column and value by value."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.record_values import test_avro_values as avro
from tests.unit.record_values import test_protobuf_values as proto
from tests.unit.record_values.test_avro_values import record
from tests.unit.record_values.test_binary_columnar import ORDER_TEXT, doubtful, of_avro, of_protobuf, written

_MORE: Any = json.loads(avro.EVERYTHING)
_MORE["fields"] += [
    {
        "name": "tiny",
        "type": ["null", {"type": "fixed", "name": "t", "size": 9, "logicalType": "decimal", "precision": 20}],
    },
    {
        "name": "lines",
        "type": {
            "type": "array",
            "items": json.loads(record(("n", "long"), ("a", {"type": "array", "items": "double"}), name="line")),
        },
    },
]
EVERY_AVRO = json.dumps(_MORE)
AVRO_DECODER = of_avro(EVERY_AVRO)
_longs = st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 200)
_times = st.datetimes()
_optional_text = st.none() | st.text(max_size=9)
AVRO_FIELDS = st.fixed_dictionaries(
    {
        "flag": st.booleans(),
        "small": st.integers(-(2**31), 2**31 - 1),
        "large": _longs,
        "single": st.floats(width=32, allow_nan=False),
        "double": st.floats(allow_nan=False),
        "text": st.text(max_size=20),
        "raw": st.binary(max_size=20),
        "maybe": _optional_text,
        "maybe_other_way": st.none() | _longs,
        "price": st.decimals(-9999999, 9999999, places=2, allow_nan=False),
        "day": st.dates(),
        "at_millis": _times.map(lambda at: at.replace(microsecond=at.microsecond // 1000 * 1000, tzinfo=UTC)),
        "at": _times.map(lambda at: at.replace(tzinfo=UTC)),
        "at_local": _times,
        "key": st.uuids(),
        "hash": st.binary(min_size=2, max_size=2),
        "kind": st.sampled_from("AB"),
        "tags": st.lists(_optional_text, max_size=4),
        "sizes": st.dictionaries(st.text(max_size=3), st.integers(-9, 9), max_size=3),
        "place": st.fixed_dictionaries(
            {
                "x": st.floats(allow_nan=False),
                "deep": st.none() | st.fixed_dictionaries({"y": st.integers(-9, 2**31 - 1)}),
            }
        ),
        "tiny": st.none() | st.integers(-(10**20) + 1, 10**20 - 1).map(Decimal),
        "lines": st.lists(
            st.fixed_dictionaries({"n": _longs, "a": st.lists(st.floats(allow_nan=False), max_size=3)}), max_size=3
        ),
    }
)


@settings(max_examples=40)
@given(st.lists(AVRO_FIELDS, min_size=1, max_size=4))
def test_avro_of_every_type_is_read_column_by_column(rows: list[dict[str, Any]]) -> None:
    assert doubtful(AVRO_DECODER, [written(EVERY_AVRO, row) for row in rows]) == []


@st.composite
def damaged(draw: st.DrawFn, value: bytes) -> bytes:
    """The value with some of its bytes changed, left out or added."""
    for _ in range(draw(st.integers(0, 2))):
        begin = draw(st.integers(0, len(value)))
        end = min(len(value), begin + draw(st.integers(0, 3)))
        value = value[:begin] + draw(st.binary(max_size=3)) + value[end:]
    return value


@settings(max_examples=80)
@given(st.data(), st.lists(AVRO_FIELDS, min_size=1, max_size=3))
def test_whatever_becomes_of_the_bytes_of_avro_both_ways_agree(data: st.DataObject, rows: list[dict[str, Any]]) -> None:
    doubtful(AVRO_DECODER, [data.draw(damaged(written(EVERY_AVRO, row))) for row in rows])


@settings(max_examples=80)
@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_whatever_the_bytes_are_both_ways_agree(values: list[bytes]) -> None:
    for decoder in (AVRO_DECODER, WORDS, PROTOBUF_DECODER, ORDER):
        doubtful(decoder, values)


WORDS = of_avro(record(("id", "long"), ("words", {"type": "array", "items": ["null", "string"]})))


EVERY_PROTOBUF = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
enum Kind { NONE = 0; BOOK = 1; FAR = 900; }
message Order {
  message Place { double x = 1; optional int32 y = 2; repeated sint32 far = 100; }
  double d = 1; float f = 2; int32 i = 3; int64 l = 4; uint32 u = 5; uint64 ul = 6; sint32 si = 7; sint64 sl = 8;
  fixed32 fi = 9; fixed64 fl = 10; sfixed32 sfi = 11; sfixed64 sfl = 12; bool b = 13; string s = 14; bytes by = 15;
  Kind kind = 16;
  optional int32 maybe = 17;
  google.protobuf.Timestamp at = 18;
  google.protobuf.StringValue note = 19;
  google.protobuf.UInt64Value wide = 20;
  repeated string tags = 21;
  repeated Place places = 22;
  repeated int64 numbers = 23;
  repeated float singles = 24;
  repeated Kind kinds = 25;
  repeated google.protobuf.Timestamp times = 26;
  map<string, int32> sizes = 27;
  map<int32, Place> by_number = 28;
  map<bool, google.protobuf.Timestamp> by_flag = 29;
  oneof payment { string card = 30; int64 cash = 31; Place where = 32; }
  Place home = 40;
}
"""
PROTOBUF_DECODER = of_protobuf(EVERY_PROTOBUF)
_ints = st.integers(-(2**31), 2**31 - 1)
_signed = st.integers(-(2**63), 2**63 - 1)
_unsigned = st.integers(0, 2**64 - 1)
_numbers = st.integers(0, 2**32 - 1)
_text = st.text(max_size=9)
_instants = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(lambda at: f"{at.isoformat()}Z")  # noqa: DTZ001  # bounds have no zone
_places = st.fixed_dictionaries(
    {}, optional={"x": st.floats(allow_nan=False, allow_infinity=False), "y": _ints, "far": st.lists(_ints, max_size=3)}
)
_kinds = st.sampled_from(["NONE", "BOOK", "FAR"])
_paid: list[dict[str, Any]] = [{}, {"card": "c"}, {"cash": "7"}, {"where": {}}]
_unpaid = st.fixed_dictionaries(
    {},
    optional={
        "d": st.floats(allow_nan=False, allow_infinity=False),
        "f": st.floats(width=32, allow_nan=False, allow_infinity=False),
        **dict.fromkeys(("i", "si", "sfi", "maybe"), _ints),
        **dict.fromkeys(("l", "sl", "sfl"), _signed.map(str)),
        **dict.fromkeys(("u", "fi"), _numbers),
        **dict.fromkeys(("ul", "fl", "wide"), _unsigned.map(str)),
        "b": st.booleans(),
        **dict.fromkeys(("s", "note"), _text),
        "by": st.sampled_from(["", "/w==", "AAEC"]),
        "kind": _kinds,
        "at": _instants,
        "tags": st.lists(_text, max_size=3),
        "places": st.lists(_places, max_size=3),
        "numbers": st.lists(_signed.map(str), max_size=4),
        "singles": st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=3),
        "kinds": st.lists(_kinds, max_size=3),
        "times": st.lists(_instants, max_size=2),
        "sizes": st.dictionaries(_text, _ints, max_size=3),
        "by_number": st.dictionaries(_ints.map(str), _places, max_size=3),
        "by_flag": st.dictionaries(st.sampled_from(["true", "false"]), _instants),
        "home": _places,
    },
)
PROTOBUF_FIELDS = st.builds(lambda fields, paid: fields | paid, _unpaid, st.sampled_from(_paid))


@settings(max_examples=40)
@given(st.lists(PROTOBUF_FIELDS, min_size=1, max_size=4))
def test_protobuf_of_every_type_is_read_column_by_column(rows: list[dict[str, Any]]) -> None:
    assert doubtful(PROTOBUF_DECODER, [proto.written(EVERY_PROTOBUF, row) for row in rows]) == []


@settings(max_examples=80)
@given(st.data(), st.lists(PROTOBUF_FIELDS, min_size=1, max_size=3))
def test_whatever_becomes_of_the_bytes_of_protobuf_both_ways_agree(
    data: st.DataObject, rows: list[dict[str, Any]]
) -> None:
    doubtful(PROTOBUF_DECODER, [data.draw(damaged(proto.written(EVERY_PROTOBUF, row))) for row in rows])


@settings(max_examples=40)
@given(st.lists(PROTOBUF_FIELDS, min_size=2, max_size=3))
def test_messages_that_follow_one_another_are_merged_in_both_ways(rows: list[dict[str, Any]]) -> None:
    parts = [proto.written(EVERY_PROTOBUF, row) for row in rows]
    doubtful(PROTOBUF_DECODER, [b"".join(parts), *parts])


ORDER = of_protobuf(ORDER_TEXT)
