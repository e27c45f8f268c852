"""Debezium's marker for a large value that it does not have is no value, wherever it stands."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from sluice.record_values.arrow_columns import DecodedBlock
from sluice.record_values.column_validation import MARKER, without_unavailable
from sluice.record_values.rejection import NO_VALUE, RejectionKind

BYTES = MARKER.encode()
UUID_TEXT = "b68a35a7-17ad-35b3-af2a-ae46edb4545a"
"""As Java's `UUID.nameUUIDFromBytes` makes it of the marker."""
PLACES: list[tuple[pa.DataType, Any, Any, str]] = [
    (pa.string(), "word", MARKER, "x"),
    (pa.binary(), b"word", BYTES, "x"),
    (pa.string(), "word", "X19kZWJleml1bV91bmF2YWlsYWJsZV92YWx1ZQ==", "x"),
    (pa.string(), "word", "5f5f646562657a69756d5f756e617661696c61626c655f76616c7565", "x"),
    (pa.binary(), b"word", bytes.fromhex("0101000020E6100000000000FC83D797C1000000FC83D797C1"), "x"),
    (pa.list_(pa.int32()), [95, None], list(BYTES), "x"),
    (pa.list_(pa.int64()), [*BYTES[:-1], 102], list(BYTES), "x"),
    (pa.struct([("a", pa.list_(pa.int64()))]), {"a": [1]}, {"a": list(BYTES)}, "x.a"),
    (pa.list_(pa.string()), ["word", None], ["8e4b5d54-0000", UUID_TEXT], "x.element"),
    (pa.list_(pa.string()), ["word", None], ["word", MARKER], "x.element"),
    (pa.struct([("a", pa.string())]), {"a": "word"}, {"a": MARKER}, "x.a"),
    (pa.map_(pa.string(), pa.binary()), {"a": b"word"}, {"a": b"word", "b": BYTES}, "x.value"),
    (pa.map_(pa.string(), pa.string()), {"a": "word"}, {MARKER: None}, "x.key"),
    (
        pa.list_(pa.struct([("a", pa.list_(pa.string()))])),
        [{"a": ["b"]}],
        [{"a": []}, {"a": [MARKER]}],
        "x.element.a.element",
    ),
]


def block(kind: pa.DataType, values: list[Any]) -> DecodedBlock:
    given: list[Any] = [list(one.items()) if pa.types.is_map(kind) and one is not None else one for one in values]
    numbers = pa.array(range(len(values)), pa.int64())
    return DecodedBlock(columns=[numbers, pa.array(given, kind)])


@pytest.mark.parametrize(("kind", "plain", "marked", "path"), PLACES)
def test_a_marker_is_rejected_with_its_path_and_the_others_stay(
    kind: pa.DataType, plain: Any, marked: Any, path: str
) -> None:
    given = block(kind, [plain, None, marked, plain, marked])

    found = without_unavailable(given, ["n", "x"])

    assert {index: (one.kind, one.path) for index, one in found.rejections.items()} == {
        2: (RejectionKind.UNAVAILABLE, path),
        4: (RejectionKind.UNAVAILABLE, path),
    }
    assert found.columns[0].to_pylist() == [0, 1, None, 3, None]
    assert found.columns[1].to_pylist() == [*given.columns[1][:2].to_pylist(), None, given.columns[1][3].as_py(), None]
    assert "REPLICA IDENTITY FULL" in found.rejections[2].sentence
    assert not found.rejections[2].quotes_data


@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.string()), pa.int64(), pa.map_(pa.string(), pa.string())])
def test_a_block_without_one_stays_as_it_is(kind: pa.DataType) -> None:
    given = block(kind, [None, None])

    assert without_unavailable(given, ["n", "x"]) is given


@pytest.mark.parametrize("word", [f"{MARKER} ", MARKER.upper(), MARKER[:-1], ""])
def test_a_word_that_is_only_like_it_is_a_word(word: str) -> None:
    given = block(pa.string(), [word])

    assert without_unavailable(given, ["n", "x"]) is given


def test_the_first_reason_of_a_value_stays() -> None:
    given = block(pa.string(), [MARKER])

    assert without_unavailable(
        DecodedBlock(columns=given.columns, rejections={0: NO_VALUE}), ["n", "x"]
    ).rejections == {0: NO_VALUE}
