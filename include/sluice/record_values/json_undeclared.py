"""Undeclared fields of JSON objects for Arrow's reader, which takes those of a schema only.

A few objects of a block show which fields a sender has beside the declared ones; they are added to the schema by which
the block is read. A field that appears later, or is not what it was there, makes a block doubtful.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from sluice.declarations.column_types import ColumnType
from sluice.record_values.arrow_columns import Column
from sluice.record_values.field_counts import struct_in

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
    _count(columns, declared, "", counts)
    return +counts


def has_odd_numbers(kind: pa.DataType, column: Any) -> bool:
    """Whether a column has `NaN` or an infinite number, which Arrow's reader takes and JSON does not have."""
    if pa.types.is_floating(kind):
        return pc.all(pc.is_finite(column)).as_py() is False
    return any(has_odd_numbers(child.type, child) for _, child in _children(column))


def _count(columns: Mapping[str, Any], declared: Mapping[str, ColumnType], path: str, counts: Counter[str]) -> None:
    for name, column in columns.items():
        if name not in declared:
            counts[f"{path}{name}"] += len(column) - column.null_count
        elif (inner := struct_in(declared[name])) is not None:
            structs = _elements(column)
            if pa.types.is_struct(structs.type):
                _count(dict(_children(structs)), dict(inner.fields), f"{path}{name}.", counts)


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
