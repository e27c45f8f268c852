"""What is known of a block of values beside its columns, and its way from the workers to the driver."""

from __future__ import annotations

import json

import pyarrow as pa
from tests.unit.record_values.test_avro_values import framed

from sluice.record_values.block_facts import (
    BlockFacts,
    WrittenValues,
    facts_of_texts,
    facts_text,
    written_by_header,
    written_by_id,
)


def test_values_are_counted_by_the_id_in_front_of_them() -> None:
    values = [framed(7, b"a"), None, b"{}", framed(300, b""), framed(7, b"b"), framed(7, b"c"), b"\x00\x00"]

    found = written_by_id(pa.array(values, pa.binary()), [1, 2, 5, 6])

    assert found == {"7": WrittenValues(values=3, rejected=1), "300": WrittenValues(values=1)}
    assert written_by_id(pa.array([None, b"x"], pa.binary()), []) == {}


def test_of_schemas_without_end_the_most_frequent_are_counted() -> None:
    values = [framed(number, b"") for number in range(100)] + [framed(99, b"")]

    found = written_by_id(pa.array(values, pa.binary()), [])

    assert len(found) == 20
    assert found["99"] == WrittenValues(values=2)


def test_first_lines_are_bounded() -> None:
    (names,) = written_by_header([None, "x" * 500, *map(str, range(2_000))], values=3, rejected=1)

    assert json.loads(names)[:2] == ["", "x" * 200]
    assert len(json.loads(names)) == 1_000


def test_facts_of_several_blocks_are_summed() -> None:
    one = BlockFacts(undeclared={"a": 1}, written_as={"7": WrittenValues(values=3, rejected=1)})
    other = BlockFacts(written_as={"7": WrittenValues(values=2), "8": WrittenValues(values=1)})
    texts = [text for text in map(facts_text, (one, other, one, BlockFacts())) if text is not None]

    found = facts_of_texts(texts)

    assert len(texts) == 3
    assert found.undeclared == {"a": 2}
    assert found.written_as == {"7": WrittenValues(values=8, rejected=2), "8": WrittenValues(values=1)}
