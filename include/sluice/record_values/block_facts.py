"""What is known of a block of values beside its columns: the fields that no column takes, and what wrote the values.

A sender that adds a field is seen on the first day, instead of when somebody misses it. Arrow's reader of JSON takes
the fields of a schema only: a few objects of a block show which fields a sender has beside the declared ones, and they
are added to the schema by which the block is read. A field that appears later, or is not what it was there, makes a
block doubtful. The facts travel from Spark's Python workers to the driver as a text in the first row of each block.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from sluice.declarations.column_types import ColumnType, ListType, MapType, StructType
from sluice.record_values.arrow_columns import Column
from sluice.record_values.rejection import Rejection, RejectionKind
from sluice.record_values.schemas import MAGIC_BYTE, PREFIX_BYTES

OTHERS = "(others)"
"""Stands for the fields beyond the limit, here and in the ledger."""

_MOST_NAMES = 50
"""Of each block: a sender whose keys are data, such as ids, sends a new field with each value."""

_LONGEST_NAME = 200

_Object: TypeAlias = Mapping[str, Any]


def undeclared_fields(
    objects: Sequence[_Object], columns: Mapping[str, ColumnType], *, with_nulls: bool = True
) -> Counter[str]:
    """How often each field was sent that no column takes. A field in an object is named with the path to it.

    Parameters
    ----------
    with_nulls: whether a field that was sent as null counts.
    """
    counts: Counter[str] = Counter()
    _count(objects, columns, "", counts, with_nulls=with_nulls)
    return +counts


def _count(
    objects: Sequence[_Object],
    declared: Mapping[str, ColumnType],
    path: str,
    counts: Counter[str],
    *,
    with_nulls: bool,
) -> None:
    by_names = Counter(map(tuple, objects))  # most objects have the same keys
    for name in {name for names in by_names for name in names if name not in declared}:
        times = sum(times for names, times in by_names.items() if name in names)
        nulls = 0 if with_nulls else sum(name in one and one[name] is None for one in objects)
        counts[f"{path}{name}"] += times - nulls
    for name, kind in declared.items():
        inner = struct_in(kind)
        if inner is not None:
            children = list(_objects_in([one[name] for one in objects if name in one], kind))
            _count(children, dict(inner.fields), f"{path}{name}.", counts, with_nulls=with_nulls)


def struct_in(kind: ColumnType) -> StructType | None:
    """The struct that a type is, or that its elements or values are."""
    match kind:
        case StructType():
            return kind
        case ListType(element):
            return struct_in(element)
        case MapType(value=value):
            return struct_in(value)
    return None


def _objects_in(values: Iterable[Any], kind: ColumnType) -> Iterable[_Object]:
    """The objects in values of a type."""
    present = [value for value in values if value is not None]
    match kind:
        case ListType(element):
            return _objects_in(chain.from_iterable(present), element)
        case MapType(value=value):
            return _objects_in(chain.from_iterable(one.values() for one in present), value)
    return present


def undeclared_rejection(names: Iterable[str], *, are_data: bool) -> Rejection:
    """Why a value with such fields is rejected. are_data: whether the names are its own, and not those of a schema."""
    detail = ", ".join(f"`{name}`" for name in bounded_counts(Counter(names)))
    return Rejection(kind=RejectionKind.UNDECLARED, detail=detail, quotes_data=are_data)


def bounded_counts(counts: Counter[str]) -> dict[str, int]:
    """The most frequent fields, with names that are not too long; the sum of all others under `OTHERS`."""
    kept = {name[:_LONGEST_NAME]: times for name, times in counts.most_common(_MOST_NAMES)}
    left = counts.total() - sum(kept.values())
    return kept | ({OTHERS: left} if left else {})


_MOST_FIELDS = 100
"""More are not added: a sender whose keys are data, such as ids, would fill the memory with columns."""

_SAMPLE, _SAMPLE_BYTES = 200, 2**18
"""The most objects that are learned from. Arrow's reader makes a column of each key that it sees: at worst as many as
this has room for take a second and a hundred megabytes."""

_MOST_PARTS = 1_000
"""Of an object that is learned from: Arrow's reader walks to the innermost part by recursion, and a hundred
thousand levels end the process."""

_DEEPEST = 50
"""The level of an object at which an undeclared field may be."""


class _TooDeepError(Exception):
    """An undeclared field is deeper."""


def with_undeclared(known: pa.Schema, block: Column, *, declared: pa.Schema) -> pa.Schema | None:
    """The schema with the fields that the first objects of a block have besides.

    Parameters
    ----------
    known, declared: the fields that have been found so far, and those of them that columns take.
    block: JSON objects, as bytes.

    Returns
    -------
    None when the objects have no other fields, or too many, or cannot be read.
    """
    texts = _sample(block)
    if not texts or any(text.count(b"{") + text.count(b"[") > _MOST_PARTS for text in texts):
        return None
    lines = b"\n".join(texts)
    options = arrow_json.ReadOptions(use_threads=False, block_size=len(lines) + 1)
    source: Any = pa.BufferReader(lines)
    of_known, of_declared = pa.struct(list(known)), pa.struct(list(declared))
    try:
        found = arrow_json.read_json(source, read_options=options).schema
        merged = _merged(of_known, pa.struct(list(found)))
    except (pa.ArrowException, _TooDeepError):
        return None
    if merged == of_known or _leaves(merged) > _leaves(of_declared) + _MOST_FIELDS:
        return None
    return pa.schema(list(merged))


def _sample(block: Column) -> list[bytes]:
    texts: list[Any] = [text for text in block[:_SAMPLE].to_pylist() if text is not None]
    ends = accumulate(len(text) for text in texts)
    return [text for text, end in zip(texts, ends, strict=True) if end <= _SAMPLE_BYTES]


def undeclared_counts(columns: Mapping[str, Any], declared: Mapping[str, ColumnType]) -> Counter[str]:
    """How often each field was sent with a value that no column takes, named with the path to it.

    Parameters
    ----------
    columns: of a block as it was read. declared: the types of the declared ones.
    """
    counts: Counter[str] = Counter()
    _count_read(columns, declared, "", counts)
    return +counts


def has_odd_numbers(kind: pa.DataType, column: Any) -> bool:
    """Whether a column has `NaN` or an infinite number, which Arrow's reader takes and JSON does not have."""
    if pa.types.is_floating(kind):
        return pc.all(pc.is_finite(column)).as_py() is False
    return any(has_odd_numbers(child.type, child) for _, child in _children(column))


def _count_read(
    columns: Mapping[str, Any], declared: Mapping[str, ColumnType], path: str, counts: Counter[str]
) -> None:
    for name, column in columns.items():
        if name not in declared:
            counts[f"{path}{name}"] += len(column) - column.null_count
        elif (inner := struct_in(declared[name])) is not None:
            structs = _elements(column)
            if pa.types.is_struct(structs.type):
                _count_read(dict(_children(structs)), dict(inner.fields), f"{path}{name}.", counts)


def _elements(column: Any) -> Any:
    """The innermost elements of lists; another column as it is."""
    return _elements(column.values) if pa.types.is_list(column.type) else column


def _children(column: Any) -> Iterator[tuple[str, Column]]:
    if pa.types.is_struct(column.type):
        for index in range(column.type.num_fields):
            yield column.type.field(index).name, column.field(index)
    elif pa.types.is_list(column.type):
        yield "", column.values


def _merged(known: Any, found: Any, depth: int = 0) -> Any:
    """The known type with the fields that only the found one has."""
    if pa.types.is_null(known):
        return _wide(found, depth)
    if pa.types.is_struct(known) and pa.types.is_struct(found):
        others = {each.name: each.type for each in found}
        kept = [pa.field(each.name, _merged(each.type, others.pop(each.name, each.type), depth + 1)) for each in known]
        return pa.struct([*kept, *(pa.field(name, _wide(kind, depth + 1)) for name, kind in others.items())])
    if pa.types.is_list(known) and pa.types.is_list(found):
        return pa.list_(_merged(known.value_type, found.value_type, depth + 1))
    return known


def _wide(kind: Any, depth: int) -> Any:
    """The type as which an undeclared field is read: any number, and any text, is one of it."""
    if depth > _DEEPEST:
        raise _TooDeepError
    if pa.types.is_integer(kind):
        return pa.float64()
    if pa.types.is_temporal(kind):
        return pa.string()
    if pa.types.is_list(kind):
        return pa.list_(_wide(kind.value_type, depth + 1))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(each.name, _wide(each.type, depth + 1)) for each in kind])
    return kind


def _leaves(kind: Any) -> int:
    """How many columns a type takes in memory."""
    if pa.types.is_struct(kind):
        return sum(_leaves(each.type) for each in kind)
    return _leaves(kind.value_type) if pa.types.is_list(kind) else 1


_MOST_SCHEMAS = 20
"""Of a block; only a sender that registers a schema for each value has more."""

_MOST_HEADER_NAMES, _LONGEST_HEADER_NAME = 1_000, 200
"""Of the first line of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenValues:
    """How many values were written with a schema, and how many of them are rejected."""

    values: int
    rejected: int = 0

    def __add__(self, other: WrittenValues) -> WrittenValues:
        return WrittenValues(values=self.values + other.values, rejected=self.rejected + other.rejected)


WrittenAs = Mapping[str, WrittenValues]
"""By the id of the schema in a registry, or by the names in the first line of a file as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """What is known of values beside their columns.

    undeclared: how often each field was sent that no column takes.
    """

    undeclared: Mapping[str, int] = field(default_factory=dict)
    written_as: WrittenAs = field(default_factory=dict)


def facts_text(facts: BlockFacts) -> str | None:
    """Facts as the text that a Spark column holds; None when there are none."""
    if not facts.undeclared and not facts.written_as:
        return None
    written = {name: [one.values, one.rejected] for name, one in facts.written_as.items()}
    return json.dumps([bounded_counts(Counter(facts.undeclared)), written])


def facts_of_texts(texts: Iterable[str]) -> BlockFacts:
    """The sum of such texts."""
    counts: Counter[str] = Counter()
    written: dict[str, WrittenValues] = {}
    for text in texts:
        undeclared, by_schema = json.loads(text)
        counts.update(undeclared)
        for name, (values, rejected) in by_schema.items():
            more = WrittenValues(values=values, rejected=rejected)
            written[name] = written[name] + more if name in written else more
    return BlockFacts(undeclared=dict(counts), written_as=written)


def written_by_id(block: Column, rejected: Iterable[int]) -> WrittenAs:
    """How many values of a block have the id of each schema in front, and how many of those are rejected.

    Parameters
    ----------
    rejected: the indexes of the rejected values.
    """
    heads = _heads(block)
    counts = Counter({one["values"]: one["counts"] for one in pc.value_counts(heads.drop_null()).to_pylist()})
    wrong = Counter(heads.take(pa.array(list(rejected), pa.int64())).drop_null().to_pylist())
    return {
        str(int.from_bytes(head[1:], "big")): WrittenValues(values=values, rejected=wrong[head])
        for head, values in counts.most_common(_MOST_SCHEMAS)
    }


def written_by_header(names: Iterable[str | None], *, values: int, rejected: int) -> WrittenAs:
    """The lines of a file by the names in its first line, as JSON."""
    kept = [(name or "")[:_LONGEST_HEADER_NAME] for name in names][:_MOST_HEADER_NAMES]
    return {json.dumps(kept): WrittenValues(values=values, rejected=rejected)}


def _heads(block: Any) -> Any:
    """The prefix of each value; null for one without."""
    magic: Any = MAGIC_BYTE
    least, none = pa.scalar(PREFIX_BYTES), pa.scalar(None, pa.binary())
    are_framed = pc.and_(pc.starts_with(block, magic), pc.greater_equal(pc.binary_length(block), least))
    return pc.if_else(are_framed, pc.binary_slice(block, 0, PREFIX_BYTES), none)
