"""A block that is read column by column becomes the very same columns as value by value, or it is doubtful."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.unit.record_values.test_json_values import EXACT, REJECTED

from sluice.declarations.value_declaration import Column, ValueColumn
from sluice.record_values import json_columnar
from sluice.record_values.json_columnar import ColumnarJson, is_columnar
from sluice.record_values.json_decoding import JsonBlockDecoder
from sluice.record_values.schemas import ValueSchema
from sluice.settings import SchemaRegistryConnection
from sluice_spark.sources.value_decoding import flawless_block

_DECIDED_ONE_BY_ONE = {("int", "-0"), ("double", "-0.0"), ("struct<x: int>", '{"x": 1, "z": 2}')}
"""Values that are valid, and doubtful all the same."""

_KINDS = ("boolean", "int", "long", "float", "double", "string", "date", "timestamp", "timestamptz", "uuid")


def column(kind: str, *, name: str = "x", required: bool = False) -> Column:
    """A column from `type` or `type unit unit`."""
    kind, _, unit = kind.partition(" unit ")
    declared = {"name": name, "type": kind, "required": required, **({"unit": unit} if unit else {})}
    return ValueColumn.model_validate(declared)


def block_of(*texts: str | bytes | None) -> pa.Array[Any]:
    """A block as Spark passes it."""
    return pa.array([text.encode() if isinstance(text, str) else text for text in texts], pa.binary())


def by_column(block: pa.Array[Any], *columns: Column) -> list[pa.Array[Any]] | None:
    """What the columns become; None when the block is doubtful, for other fields too."""
    decoded = ColumnarJson(columns, rejects_undeclared=True).decode(block)
    return None if decoded is None else list(decoded.columns)


def require_same(block: pa.Array[Any], *columns: Column) -> bool:
    """Whether the block is not doubtful; then both ways must agree, bit by bit, and reject nothing."""
    found = by_column(block, *columns)
    if found is None:
        return False
    exact = JsonBlockDecoder(columns).decode(block.to_pylist())
    assert not exact.rejections
    assert not exact.undeclared
    for one, other in zip(found, exact.columns, strict=True):
        assert one.type == other.type
        assert repr(one.to_pylist()) == repr(other.to_pylist())  # -0.0 and 0.0 are equal, and not the same
        one.validate(full=True)
    return True


@pytest.mark.parametrize(("kind", "sent", "value"), EXACT)
def test_a_valid_value_is_the_same_in_both_ways(kind: str, sent: str, value: Any) -> None:
    declared = column(kind)
    if not is_columnar([declared]):
        assert any(word in kind for word in ("map", "binary", "fixed"))
        return
    is_read = require_same(block_of('{"x": null}', f'{{"x": {sent}}}', "{}"), declared)

    assert is_read or (kind, sent) in _DECIDED_ONE_BY_ONE


@pytest.mark.parametrize(("kind", "sent", "reason"), REJECTED)
def test_a_rejected_value_makes_its_block_doubtful(kind: str, sent: str, reason: str) -> None:
    declared = column(kind)
    if is_columnar([declared]):
        assert by_column(block_of('{"x": null}', f'{{"x": {sent}}}'), declared) is None


@pytest.mark.parametrize(
    "texts",
    [
        ("",),
        (None,),
        ("[]",),
        ("null",),
        ('{"x": 1',),
        ('{"x": 1} ',),
        ('{"x": 1}}',),
        ('{"x": 1}{"x": 2}',),
        ('{"x": 1}\n{"x": 2}',),
        ('{"x": 1}{"x": 2}', '{"s": {}', "}"),  # as many objects as values
        ('{"s": {"a": 1}', '{"x": 1}}', '{"x": 1}{"x": 2}'),
        ('{"t": "}', '{", "x": 1}{}'),
        ('{"x": 1, "x": 1}',),
        ('{"x": 1, "\\u0078": 1}',),
        ('{"x": null, "x": null}',),
        ('{"s": {"a": 1, "a": 2}}',),
        ('{"x": 1, "other": 1}',),
        ('{"s": {"other": 1}}',),
        ('{"x": NaN}',),
        ("{'x': 1}",),
        ('{"x": 1 /* one */}',),
        ('{"x": 1,}',),
        ('{"t": "a\tb"}',),
        (b'{"t": "\xff"}',),
        (b'{"t": "\xed\xa0\x80"}',),
        ("\ufeff{}",),
        ("[" * 100_000,),
        ('{"s":' * 100_000 + "}" * 100_000,),
    ],
)
def test_what_is_no_object_of_declared_fields_makes_its_block_doubtful(texts: tuple[str | bytes | None, ...]) -> None:
    columns = column("int"), column("string", name="t"), column("struct<a: int>", name="s")

    assert by_column(block_of("{}", *texts, "{}"), *columns) is None


def test_a_required_field_that_is_absent_makes_its_block_doubtful() -> None:
    columns = column("int", required=True), column("string", name="t")

    assert require_same(block_of('{"x": 1}', '{"x": 2, "t": "b"}'), *columns)
    assert by_column(block_of('{"x": 1}', '{"t": "b"}'), *columns) is None
    assert by_column(block_of('{"x": 1}', '{"x": null}'), *columns) is None


def test_the_prefix_of_a_registry_is_removed_from_all_values_or_the_block_is_doubtful() -> None:
    registry = SchemaRegistryConnection(kind="schema_registry", url="http://localhost:1")
    schema = ValueSchema(format="json", columns=(column("int"),), registry=registry)
    one, two = b"\x00\x00\x00\x00\x07" + b'{"x": 1}', b"\x00\x00\x00\x00\x08" + b'{"x": 2}'

    found = flawless_block(schema, block_of(one, two))

    assert found is not None
    assert [each.to_pylist() for each in found.columns] == [[1, 2]]
    for odd in (b'{"x": 2}', b"\x01\x00\x00\x00\x08" + b'{"x": 2}', b"\x00", None):
        assert flawless_block(schema, block_of(one, odd, two)) is None


def test_a_large_block_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f'{{"x": {number}, "y": [{{"z": "{"a" * number}"}}]}}' for number in range(64)]
    declared = (column("long"), column("list<struct<z: string>>", name="y"))
    monkeypatch.setattr(json_columnar, "LARGEST_VALUE_BYTES", 200)

    assert require_same(block_of(*texts), *declared)
    assert by_column(block_of(*texts, '{"x": 1.5}'), *declared) is None
    assert by_column(block_of(json.dumps({"x": 1, "y": [{"z": "a" * 200}]})), *declared) is None


def test_after_doubtful_blocks_fewer_and_fewer_are_tried() -> None:
    decoder = ColumnarJson([column("int")], rejects_undeclared=True)
    right, wrong = block_of('{"x": 1}'), block_of('{"y": 1}')

    assert decoder.decode(right) is not None
    assert decoder.decode(wrong) is None
    tried = [decoder.decode(right) is not None for _ in range(3)]
    assert tried == [False, True, True]
    pauses = []
    for _ in range(8):
        assert decoder.decode(wrong) is None
        pauses.append(decoder._left_out)  # how long it waits is no result of its own
        decoder._left_out = 0
    assert pauses == [1, 3, 7, 15, 31, 63, 64, 64]


_numbers = st.one_of(
    st.integers(-(2**65), 2**65).map(str),
    st.floats().map(repr),
    st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True),
    st.sampled_from(["-0", "-0.0", "0e0", "1e-400", "4.9e-324", "2e-324", "3.4028235e38", "3.4028236e38", "01", "1."]),
)
_times = st.datetimes().map(lambda time: json.dumps(f"{time.isoformat()}")) | st.datetimes().map(
    lambda time: json.dumps(f"{time.isoformat()}Z")
)
_texts = st.text().map(json.dumps) | st.text().map(lambda text: json.dumps(text, ensure_ascii=False))
ANY_SENT = st.one_of(
    _numbers,
    _times,
    _texts,
    _numbers.map(json.dumps),
    st.from_regex(r"[+-]?[0-9]{0,3}(\.[0-9]{0,3})?([eE][+-]?[0-9]{1,4})?", fullmatch=True).map(json.dumps),
    st.sampled_from([f"0.{'0' * 90}", f'"{"0" * 81}1"', "0e9999", '"0e+999"']),
    st.sampled_from(["true", "false", "null", "[]", "{}", '[1, null, "2"]', "[1.5, -2]", '{"a": 1}', '"2026-01-31"']),
    st.dates().map(lambda day: json.dumps(day.isoformat())),
    st.uuids().map(lambda uuid: json.dumps(str(uuid))),
    st.lists(_numbers, max_size=3).map(lambda some: f"[{', '.join(some)}]"),
    st.dictionaries(st.sampled_from("ab"), _numbers, max_size=2).map(
        lambda fields: "{" + ", ".join(f'"{name}": {number}' for name, number in fields.items()) + "}"
    ),
)
ANY_KIND = st.sampled_from(
    [
        *_KINDS,
        "decimal(6, 2)",
        "decimal(38, 30)",
        "list<decimal(9, 0)>",
        *(f"list<{kind}>" for kind in _KINDS),
        "timestamptz unit milliseconds",
        "struct<a: int, b: double>",
        "struct<a: float>",
        "list<struct<a: double>>",
    ]
)


@settings(max_examples=400)
@given(kind=ANY_KIND, sent=st.lists(ANY_SENT, min_size=1, max_size=3))
@example(kind="double", sent=["-0"])
@example(kind="float", sent=["3.4028235677973366e38"])
def test_whatever_is_sent_both_ways_agree(kind: str, sent: list[str]) -> None:
    require_same(block_of(*(f'{{"x": {one}}}' for one in sent), "{}"), column(kind))


@settings(max_examples=300)
@given(texts=st.lists(st.text(alphabet='{}[]":,xt1 \n\\', max_size=12), min_size=1, max_size=4))
def test_whatever_the_texts_are_a_block_is_decoded_alike(texts: list[str]) -> None:
    require_same(block_of(*(f"{{{text}}}" for text in texts)), column("int"), column("string", name="t"))


def require_same_counts(block: pa.Array[Any], *columns: Column) -> bool:
    """The same for values with fields that are not declared, which both ways count alike."""
    found = ColumnarJson(columns).decode(block)
    if found is None:
        return False
    exact = JsonBlockDecoder(columns).decode(block.to_pylist())
    assert not exact.rejections
    assert dict(found.undeclared) == dict(exact.undeclared)
    for one, other in zip(found.columns, exact.columns, strict=True):
        assert one.type == other.type
        assert repr(one.to_pylist()) == repr(other.to_pylist())
    return True


@pytest.mark.parametrize(
    "texts",
    [
        ('{"x": 1, "more": 1}', '{"x": 2}', '{"more": null, "x": 3}', '{"more": 1.5}'),
        ('{"more": "2026-01-31"}', '{"more": "a"}'),
        ('{"more": {"a": [{"b": 1}, {"b": null}]}}',),
        ('{"x": 1, "some": [], "other": {}}', '{"some": [[1.5], null]}'),
        ('{"s": {"a": 1, "b": 2}}', '{"s": null}', '{"s": {"b": null}}', '{"s": {"c": {"a": 1}}}'),
        ('{"l": [{"y": 1, "z": true}, null, {}]}', '{"l": [{"z": false}, {"z": null}]}', '{"l": []}', "{}"),
        ('{"l": [{"y": 1}]}', '{"a": 1, "b": 1, "c": 1}', '{"c": 2}'),
    ],
)
def test_undeclared_fields_are_left_out_and_counted_in_both_ways(texts: tuple[str, ...]) -> None:
    columns = column("int"), column("struct<a: int>", name="s"), column("list<struct<y: int>>", name="l")

    assert require_same_counts(block_of(*texts), *columns)


@pytest.mark.parametrize(
    "sent",
    ['"more": NaN', '"more": [{"a": -Infinity}]', '"more": 1, "more": 2', '"more": {"a": 1, "a": 2}', '"more": 01'],
)
def test_an_undeclared_field_that_is_no_json_makes_its_block_doubtful(sent: str) -> None:
    assert ColumnarJson([column("int")]).decode(block_of('{"x": 1, "more": null}', f'{{"x": 1, {sent}}}')) is None


def test_an_undeclared_field_may_get_a_value_later() -> None:
    decoder = ColumnarJson([column("int")])
    first = decoder.decode(block_of('{"x": 1, "more": null}'))
    second = decoder.decode(block_of('{"x": 1, "more": "a"}', '{"x": 2, "more": null}'))

    assert first is not None
    assert first.undeclared == {}
    assert second is not None
    assert second.undeclared == {"more": 1}


def learned_by(decoder: ColumnarJson, *texts: str) -> bool:
    """Whether the fields of a block are known afterwards; the next block is tried in any case."""
    known = decoder._schema  # what the fields would cost in memory is no result
    decoder.decode(block_of(*texts))
    decoder._left_out = 0
    return decoder._schema is not known


def test_keys_that_are_data_are_not_learned() -> None:
    decoder = ColumnarJson([column("int")])

    assert not learned_by(decoder, *(f'{{"k{number}": 1}}' for number in range(101)))
    assert not learned_by(decoder, json.dumps({"text": "a" * 2**18, "more": 1}))
    assert learned_by(decoder, *(f'{{"k{number}": 1}}' for number in range(100)))
    assert not learned_by(decoder, '{"one more": 1}')


@pytest.mark.parametrize("levels", [60, 900, 40_000])
def test_a_deep_field_is_not_learned(levels: int) -> None:
    """Forty thousand levels end the process, and nine hundred fail the task, without a limit of their own."""
    decoder = ColumnarJson([column("int")])

    assert not learned_by(decoder, '{"s":' * levels + "1" + "}" * levels)
    assert not learned_by(decoder, '{"s":' + "[" * levels + "1" + "]" * levels + "}")
    assert not learned_by(decoder, '{"s":' + "[" * 120_000 + "1" + "]" * 120_000 + "}")


def test_a_field_does_not_become_deep_step_by_step() -> None:
    decoder = ColumnarJson([column("int")])

    assert learned_by(decoder, '{"s":' * 40 + '{"later": null}' + "}" * 40)
    assert not learned_by(decoder, '{"s":' * 40 + '{"later":' + '{"s":' * 40 + "1" + "}" * 81)


_UNDECLARED = st.dictionaries(st.sampled_from(["more", "other", "x"]), ANY_SENT, max_size=3)


@settings(max_examples=300)
@given(sent=st.lists(_UNDECLARED, min_size=1, max_size=4), inner=_UNDECLARED)
def test_whatever_else_is_sent_is_counted_alike(sent: list[dict[str, str]], inner: dict[str, str]) -> None:
    objects = ["{" + ", ".join(f'"{name}": {one}' for name, one in each.items()) + "}" for each in (*sent, inner)]
    nested = [*objects[:-1], f'{{"s": {objects[-1]}}}']

    require_same_counts(block_of(*nested), column("string"), column("struct<x: int>", name="s"))


@settings(max_examples=200)
@given(
    kind=ANY_KIND,
    sent=st.lists(ANY_SENT, min_size=1, max_size=4),
    odd=st.sampled_from(['{"x": ', "null", '{"x": {{}}}']),
)
def test_beside_a_rejected_value_the_others_are_the_same_in_both_ways(kind: str, sent: list[str], odd: str) -> None:
    declared = [column(kind)]
    values = block_of(odd, *(f'{{"x": {one}, "more": {one}}}' for one in sent), odd).to_pylist()
    one_by_one = JsonBlockDecoder(declared)
    one_by_one._columnar = None

    found, exact = JsonBlockDecoder(declared).decode(values), one_by_one.decode(values)

    assert found.rejections == exact.rejections
    assert dict(found.undeclared) == dict(exact.undeclared)
    assert repr(found.columns[0].to_pylist()) == repr(exact.columns[0].to_pylist())


def test_beside_a_rejected_value_the_others_are_read_column_by_column() -> None:
    decoder = JsonBlockDecoder([column("int")])
    decoder._fields = []  # what builds the columns value by value

    block = decoder.decode([b'{"x": 1}', b"{", b'{"x": 3, "more": 1}'])

    assert list(block.rejections) == [1]
    assert [each.to_pylist() for each in block.columns] == [[1, None, 3]]
    assert block.undeclared == {"more": 1}
