"""Reads blocks of JSON objects column by column, without a Python object for any value; for blocks without a flaw.

Arrow's reader of JSON takes a block at once. It is strict about what it knows: types, ranges, keys, repeated keys, half
characters. What it does not know is looked at here. Where it may decide otherwise than `json_decoding` does, and where
anything is wrong with any value, the block is *doubtful*: nothing of it is used, and `json_decoding` decodes it and
finds the reasons. A value therefore becomes the same in both ways, or it is decoded there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from sluice.declarations.column_types import ColumnType, DecimalType, ListType, PrimitiveType, StructType
from sluice.declarations.value_declaration import Column as DeclaredColumn
from sluice.declarations.value_declaration import ValueColumn
from sluice.record_values.arrow_columns import (
    ARROW_TYPES,
    LARGEST_FLOAT,
    PATTERNS,
    UNITS,
    Column,
    ColumnBuilder,
    DecodedBlock,
    arrow_type,
    counted_builder,
    text_column_builder,
)
from sluice.record_values.block_facts import has_odd_numbers, undeclared_counts, with_undeclared
from sluice.record_values.rejection import LARGEST_VALUE_BYTES

_Read = Callable[[Column], Column]
"""Makes a column of what Arrow's reader returned; raises `_DoubtfulError`."""

_ZERO: Any = pa.scalar(0.0)
_LEAST: Any = pa.scalar(-float("inf"))

_ODD_DECIMALS = r'"-?[+.]|[0-9]\.["eE]|[0-9.]{40}|[eE][+-]?[0-9]{3}'
"""Where a text may have a decimal that Arrow reads and `json_columns` does not: `"+1"`, `".5"`, `"5."`, a long one."""

_LARGEST_PAUSE = 64
"""The most blocks that are decoded without a try after doubtful ones."""


class _DoubtfulError(Exception):
    """Something in the block is to be decided value by value."""


class ColumnarJson:
    """Reads blocks of flawless JSON objects.

    Undeclared fields that a doubtful block shows are known from then on. If the block stays doubtful, the next one is
    not tried, then three, seven …, until one is right: a sender whose values always have a flaw costs next to nothing.

    Parameters
    ----------
    columns: the declared columns, of types for which `is_columnar` holds.
    rejects_undeclared: whether values with other fields make a block doubtful; otherwise these fields are counted.
    """

    def __init__(self, columns: Sequence[DeclaredColumn], *, rejects_undeclared: bool = False) -> None:
        units = {column.name: column.unit for column in columns if isinstance(column, ValueColumn)}
        self._required = [column.name for column in columns if column.required]
        kinds = [(column.name, column.column_type, units.get(column.name)) for column in columns]
        self._types = {name: kind for name, kind, _ in kinds}
        self._declared = pa.schema([(name, _sent_type(kind, unit)) for name, kind, unit in kinds])
        self._schema = self._declared
        self._rejects_undeclared = rejects_undeclared
        self._has_decimals = any(_has_decimals(kind) for _, kind, _ in kinds)
        self._reads = [(name, _reading(kind, unit)) for name, kind, unit in kinds]
        self._pause = self._left_out = 0

    def decode(self, block: Column) -> DecodedBlock | None:
        """The declared columns of a block of values; None when the block is doubtful.

        Parameters
        ----------
        block: the values, as bytes.
        """
        if self._left_out:
            self._left_out -= 1
            return None
        decoded = self._attempt(block)
        if decoded is None and self._learns(block):
            decoded = self._attempt(block)
        if decoded is None:
            self._pause = self._left_out = min(2 * self._pause + 1, _LARGEST_PAUSE)
        else:
            self._pause = 0
        return decoded

    def _attempt(self, block: Column) -> DecodedBlock | None:
        try:
            return self._decoded(block)
        except (_DoubtfulError, pa.ArrowException, OverflowError):
            return None

    def _learns(self, block: Column) -> bool:
        """Whether the block shows fields that were not known."""
        if self._rejects_undeclared:
            return False
        found = with_undeclared(self._schema, block, declared=self._declared)
        if found is not None:
            self._schema = found
        return found is not None

    def _decoded(self, block: Column) -> DecodedBlock:
        if block.nbytes < LARGEST_VALUE_BYTES or len(block) == 1:
            return self._decoded_at_once(block)
        half = len(block) // 2  # of records of two kilobytes and more, the usual block of 10,000 is too large
        one, other = self._decoded(block[:half]), self._decoded(block[half:])
        columns = [pa.concat_arrays(list(parts)) for parts in zip(one.columns, other.columns, strict=True)]
        return DecodedBlock(columns=columns, undeclared=Counter(one.undeclared) + Counter(other.undeclared))

    def _decoded_at_once(self, block: Column) -> DecodedBlock:
        text = _lines(block, doubted=_ODD_DECIMALS if self._has_decimals else None)
        schema = self._schema
        options = arrow_json.ReadOptions(use_threads=False, block_size=text.size + 1)
        how = arrow_json.ParseOptions(
            explicit_schema=schema, newlines_in_values=True, unexpected_field_behavior="error"
        )
        source: Any = pa.BufferReader(text)
        table = arrow_json.read_json(source, read_options=options, parse_options=how)
        if table.num_rows != len(block):
            raise _DoubtfulError
        read = {name: _whole(table[name]) for name in schema.names}
        if any(read[name].null_count for name in self._required):
            raise _DoubtfulError
        undeclared = self._undeclared(read) if schema is not self._declared else {}
        return DecodedBlock(columns=[convert(read[name]) for name, convert in self._reads], undeclared=undeclared)

    def _undeclared(self, read: Mapping[str, Any]) -> Mapping[str, int]:
        if any(has_odd_numbers(column.type, column) for column in read.values()):
            raise _DoubtfulError
        return undeclared_counts(read, self._types)


def is_columnar(columns: Iterable[DeclaredColumn]) -> bool:
    """Whether `ColumnarJson` can read such columns: there are some, and none is a map or of bytes."""
    kinds = [column.column_type for column in columns]
    return bool(kinds) and all(_is_columnar(kind) for kind in kinds)


def _is_columnar(kind: ColumnType) -> bool:
    match kind:
        case PrimitiveType(name):
            return name != "binary"
        case DecimalType():
            return True
        case ListType(element):
            return _is_columnar(element)
        case StructType(fields):
            return all(_is_columnar(inner) for _, inner in fields)
    return False


def _has_decimals(kind: ColumnType) -> bool:
    match kind:
        case ListType(element):
            return _has_decimals(element)
        case StructType(fields):
            return any(_has_decimals(inner) for _, inner in fields)
    return isinstance(kind, DecimalType)


def _lines(block: Column, *, doubted: str | None) -> pa.Buffer:
    """The values as lines of text. Each begins and ends with a brace, and no text in JSON holds the end of a line:
    where a line ends, an object ends. As many objects as lines are therefore one in each line.

    Parameters
    ----------
    doubted: a pattern that makes the block doubtful.
    """
    if block.null_count or not len(block) or block.nbytes >= LARGEST_VALUE_BYTES:
        raise _DoubtfulError
    texts = block.cast(pa.string())  # checks the encoding
    if not pc.all(pc.and_(pc.starts_with(texts, "{"), pc.ends_with(texts, "}"))).as_py():
        raise _DoubtfulError
    if doubted is not None and pc.any(pc.match_substring_regex(texts, doubted)).as_py():
        raise _DoubtfulError
    whole = pa.ListArray.from_arrays(pa.array([0, len(block)], pa.int32()), block)
    joined: Any = pc.binary_join(whole, b"\n")
    lines: pa.Buffer = joined[0].as_buffer()
    return lines


def _whole(column: Any) -> Column:
    whole: Column = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return whole


def _sent_type(kind: ColumnType, unit: str | None = None) -> pa.DataType:
    """The Arrow type as which a column is read: that of what JSON has, from which the column is made."""
    match kind:
        case PrimitiveType() if unit is not None:
            return pa.int64()
        case PrimitiveType("float"):
            return pa.float64()
        case PrimitiveType(name):
            return pa.string() if name in PATTERNS else ARROW_TYPES[name]
        case DecimalType():
            return arrow_type(kind)
        case ListType(element):
            return pa.list_(_sent_type(element))
        case StructType(fields):
            return pa.struct([(name, _sent_type(inner)) for name, inner in fields])
    raise ValueError(f"{kind} cannot be read column by column")


def _reading(kind: ColumnType, unit: str | None = None) -> _Read:
    match kind:
        case PrimitiveType(name) if unit is not None:
            return _built(counted_builder(ARROW_TYPES[name], UNITS[unit]))
        case PrimitiveType("double"):
            return _finite
        case PrimitiveType("float"):
            return _single
        case PrimitiveType(name) if name in PATTERNS:
            return _built(text_column_builder(ARROW_TYPES[name], *PATTERNS[name]))
        case DecimalType():
            return _validated
        case ListType(element):
            return _list_reading(_reading(element))
        case StructType(fields):
            return _struct_reading([(name, _reading(inner)) for name, inner in fields])
    return _unchanged


def _unchanged(column: Column) -> Column:
    return column


def _validated(column: Column) -> Column:
    """The same decimals. Arrow counts the digits that were sent, and not those of the column's scale."""
    column.validate(full=True)
    return column


def _built(build: ColumnBuilder) -> _Read:
    return lambda column: build(column, "", _doubt)


def _doubt(index: int, path: str, need: str) -> None:
    raise _DoubtfulError


def _finite(column: Column) -> Column:
    """The same numbers. `NaN` and `Infinity` are no JSON, and the zero of `-0`, a whole number, has no sign."""
    if pc.all(pc.is_finite(column)).as_py() is False or _has_signed_zero(column):
        raise _DoubtfulError
    return column


def _has_signed_zero(column: Column) -> bool:
    has_zero = pc.any(pc.equal(column, _ZERO)).as_py()
    return bool(has_zero and pc.any(pc.equal(pc.divide(1.0, column), _LEAST)).as_py())


def _single(column: Column) -> Column:
    ends: Any = pc.min_max(_finite(column)).as_py()
    if ends["min"] is not None and (ends["min"] < -LARGEST_FLOAT or ends["max"] > LARGEST_FLOAT):
        raise _DoubtfulError
    return column.cast(pa.float32())


def _list_reading(read: _Read) -> _Read:
    def convert(column: Any) -> Column:
        mask = column.is_null() if column.null_count else None
        lists: Column = pa.ListArray.from_arrays(column.offsets, read(column.values), mask=mask)
        return lists

    return convert


def _struct_reading(fields: Sequence[tuple[str, _Read]]) -> _Read:
    def convert(column: Any) -> Column:
        children = [read(column.field(name)) for name, read in fields]
        mask = column.is_null() if column.null_count else None
        structs: Column = pa.StructArray.from_arrays(children, names=[name for name, _ in fields], mask=mask)
        return structs

    return convert
