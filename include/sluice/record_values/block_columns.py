"""Builds Arrow columns from what a cursor has read of all values of a block. What a column cannot hold is doubtful."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sluice.declarations.column_types import ColumnType, DecimalType, PrimitiveType
from sluice.record_values.arrow_columns import ARROW_TYPES, Column, arrow_type
from sluice.record_values.block_cursor import BlockCursor, Flags, Numbers, Words, spread

Arrays = tuple[npt.NDArray[Any], ...]
"""What was read of a field of all values: numbers, or where texts begin and how long they are."""

Read = Callable[[BlockCursor], Arrays]
Build = Callable[[BlockCursor, Arrays, Flags | None], Column]
"""Takes what was read, and which values have the field; None for all. What the others have is zeros."""

_DAYS = (date.min.toordinal() - date(1970, 1, 1).toordinal(), date.max.toordinal() - date(1970, 1, 1).toordinal())
FIRST_US, LAST_US = _DAYS[0] * 86_400_000_000, (_DAYS[1] + 1) * 86_400_000_000 - 1
"""The first and the last microsecond of the years 1 to 9999."""


class NotColumnarError(ValueError):
    """Values of this schema are decoded one by one."""


class Kind(Protocol):
    """Reads a field of all values of a block."""

    def column(self, cursor: BlockCursor, present: Numbers | None = None, *, is_zero_if_absent: bool = False) -> Column:
        """The column of a field, of the length of the cursor, which continues behind the field.

        Parameters
        ----------
        present: the places of the values that have the field; None for all. The others have null.
        is_zero_if_absent: whether they have zero, or the empty text, instead.
        """


@dataclass(frozen=True, slots=True)
class Leaf:
    """A field without fields of its own: how it is read, and how its column is built."""

    read: Read
    build: Build

    def column(self, cursor: BlockCursor, present: Numbers | None = None, *, is_zero_if_absent: bool = False) -> Column:
        """See `Kind`."""
        if present is None:
            return self.build(cursor, self.read(cursor), None)
        part = cursor.part(present)
        found = tuple(spread(values, present, len(cursor)) for values in self.read(part))
        cursor.follow(present, part)
        are_there = None if is_zero_if_absent else spread(np.ones(len(present), np.bool_), present, len(cursor))
        return self.build(cursor, found, are_there)


@dataclass(frozen=True, slots=True)
class Nested:
    """A field with fields of its own, or with elements. read: its column, for values that all have it."""

    read: Callable[[BlockCursor], Column]

    def column(self, cursor: BlockCursor, present: Numbers | None = None, *, is_zero_if_absent: bool = False) -> Column:
        """See `Kind`; absent is null in any case."""
        if present is None:
            return self.read(cursor)
        part = cursor.part(present)
        column = self.read(part)
        cursor.follow(present, part)
        return with_nulls(column, present, len(cursor))


def with_nulls(column: Column, places: Numbers, length: int) -> Column:
    """The values of a column at their places, and nulls between them."""
    index = np.full(length, -1)
    index[places] = np.arange(len(places))
    return column.take(numbers_of(index, mask=index < 0))


def numbers_of(values: npt.NDArray[Any], mask: Flags | None = None) -> Any:
    """Numbers as an Arrow column. mask: which of them are null."""
    return pa.array(values, mask=mask)


def lists_of(lengths: Numbers, elements: Column) -> Any:
    """A column of lists with these lengths from the column of all elements."""
    of: Any = pa.ListArray  # its types name the classes of offsets and elements
    return of.from_arrays(list_offsets(lengths), elements)


def nulls(length: int, kind: Any = None) -> Any:
    """A column of nulls."""
    return pa.nulls(length, kind)


def list_offsets(lengths: Numbers) -> Column:
    """Where each list begins in the column of all elements; the last is the end."""
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets)


def in_order(parts: Sequence[Column], owners: Sequence[Numbers], lengths: Numbers) -> Column:
    """The elements of all lists, list by list.

    Parameters
    ----------
    parts: the first elements, the second ones … of those lists that have one. owners: of each part, which lists.
    lengths: of the lists.
    """
    if len(parts) == 1:
        return parts[0]
    begins = np.cumsum(lengths) - lengths
    places = np.concatenate([begins[of] + number for number, of in enumerate(owners)])
    order = np.empty(len(places), np.int64)
    order[places] = np.arange(len(places))
    return pa.concat_arrays(list(parts)).take(numbers_of(order))


def fixed_width(kind: pa.DataType, values: npt.NDArray[Any], are_there: Flags | None) -> Column:
    """A column of values as they are in memory."""
    length = len(values) if values.ndim == 1 else values.shape[0]
    return pa.Array.from_buffers(kind, length, [_validity(are_there), _memory(values)])


def _memory(values: npt.NDArray[Any]) -> pa.Buffer:
    exporting: Any = np.ascontiguousarray(values)
    return pa.py_buffer(exporting)


def whole(bits: int) -> Build:
    """A builder of whole numbers."""
    kind, width = (pa.int32(), np.int32) if bits == 32 else (pa.int64(), np.int64)
    largest = 2 ** (bits - 1) - 1

    def build(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
        numbers = within(cursor, found[0], -largest - 1, largest) if bits < 64 else found[0]
        return fixed_width(kind, numbers.astype(width, copy=False), are_there)

    return build


def within(cursor: BlockCursor, numbers: Numbers, least: int, most: int) -> Numbers:
    """The numbers; zero for one that is out of range, whose value is doubtful."""
    are_wrong = (numbers < least) | (numbers > most)
    if not are_wrong.any():
        return numbers
    cursor.doubt(are_wrong)
    return np.where(are_wrong, 0, numbers)


def boolean(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
    """Build a column of booleans from numbers; one that is neither 0 nor 1 is doubtful."""
    cursor.doubt(found[0] > 1)
    return numbers_of(found[0] == 1, mask=None if are_there is None else ~are_there)  # type: ignore[no-any-return]  # numpy types == as Any


def double(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
    """Build a column of numbers of 64 bits from their words."""
    return fixed_width(pa.float64(), found[0], are_there)


def single(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
    """Build a column of numbers of 32 bits from words that begin with them."""
    return fixed_width(pa.float32(), found[0].astype(np.uint32), are_there)


def day(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
    """Build a column of dates from numbers of days."""
    return fixed_width(pa.date32(), within(cursor, found[0], *_DAYS).astype(np.int32), are_there)


def time(name: str, *, microseconds: int) -> Build:
    """A builder of times from numbers that count from 1970. name: of the column's type. microseconds: of a unit."""
    kind, least, most = ARROW_TYPES[name], -(-FIRST_US // microseconds), LAST_US // microseconds

    def build(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
        return fixed_width(kind, within(cursor, found[0], least, most) * microseconds, are_there)

    return build


def octets(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
    """Build a column of bytes from their beginnings and lengths."""
    return _of_octets(pa.binary(), cursor, found[0], found[1], are_there)


def text(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
    """Build a column of texts; one that is not UTF-8 is doubtful."""
    starts, lengths = found
    column = _of_octets(pa.string(), cursor, starts, lengths, are_there)
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        values = _of_octets(pa.binary(), cursor, starts, lengths, are_there).to_pylist()
        are_wrong = np.array([value is not None and not _is_utf8(value) for value in values], np.bool_)
        cursor.doubt(are_wrong)
        return _of_octets(pa.string(), cursor, starts, np.where(are_wrong, 0, lengths), are_there)
    return column


def matching_text(pattern: str) -> Build:
    """A builder of texts that match a pattern; others are doubtful."""
    one = f"^(?:{pattern})$"

    def build(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
        column = text(cursor, found, are_there)
        found_fits: Any = pc.match_substring_regex(column, one)
        fits: Any = found_fits.fill_null(True)
        if not pc.all(fits).as_py():
            cursor.doubt(~fits.to_numpy(zero_copy_only=False))
        return column

    return build


def word_of(symbols: Mapping[int, str]) -> Build:
    """A builder of texts from the numbers that stand for them; a number that stands for none is doubtful."""
    numbers = np.array(sorted(symbols), np.int64)
    words = pa.array([symbols[number] for number in sorted(symbols)], pa.string())

    def build(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
        index = np.minimum(np.searchsorted(numbers, found[0]), len(numbers) - 1)
        cursor.doubt((numbers[index] != found[0]) & (True if are_there is None else are_there))
        return words.take(numbers_of(index, mask=None if are_there is None else ~are_there))

    return build


def unsigned_decimal(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
    """Build a column of decimals from whole numbers of 64 bits without a sign."""
    halves = np.zeros((len(found[0]), 2), np.uint64)
    halves[:, 0] = found[0]
    return fixed_width(pa.decimal128(20, 0), halves, are_there)


def decimal(precision: int, scale: int) -> Build:
    """A builder of decimals from the beginnings and lengths of numbers with a sign, the highest byte first."""
    kind: Any = pa.decimal128(precision, scale)

    def build(cursor: BlockCursor, found: Arrays, are_there: Flags | None) -> Column:
        starts, lengths = found
        cursor.doubt(lengths > 16)
        ends = starts + lengths
        low, high = _signed(cursor, ends, lengths), _signed(cursor, ends - 8, lengths - 8)
        halves = np.empty((len(starts), 2), np.int64)
        halves[:, 0] = low
        halves[:, 1] = np.where(lengths > 8, high, low >> 63)
        column = fixed_width(kind, halves, are_there)
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            are_wrong = np.array([abs(_number(*each)) >= 10**precision for each in halves.tolist()], np.bool_)
            cursor.doubt(are_wrong)
            halves[are_wrong] = 0
            return fixed_width(kind, halves, are_there)
        return column

    return build


def _signed(cursor: BlockCursor, ends: Numbers, lengths: Numbers) -> Numbers:
    """The numbers in the last eight bytes before some places, or in fewer if a number has fewer."""
    word: Words = cursor.content.words_at(ends - 8).byteswap()
    unused = 64 - 8 * np.clip(lengths, 0, 8)
    found: Numbers = (word.view(np.int64) << unused) >> unused
    return found


def _number(low: int, high: int) -> int:
    return (high << 64) | (low & 0xFFFF_FFFF_FFFF_FFFF)


def _of_octets(
    kind: pa.DataType, cursor: BlockCursor, starts: Numbers, lengths: Numbers, are_there: Flags | None
) -> Column:
    offsets, found = cursor.content.gathered(starts, lengths)
    memory = [_validity(are_there), _memory(offsets), _memory(found)]
    return pa.Array.from_buffers(kind, len(starts), memory)


def _validity(are_there: Flags | None) -> Any:
    return None if are_there is None else pa.array(are_there).buffers()[1]


def _is_utf8(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


_LOWER_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
lower_uuid = matching_text(_LOWER_UUID)
"""A UUID as Python writes it."""


def builder_of(column_type: ColumnType) -> Build | None:
    """The builder for a type whose values are numbers, words or texts as they are; None for all others."""
    match column_type:
        case PrimitiveType("int"):
            return whole(32)
        case PrimitiveType("long"):
            return whole(64)
        case DecimalType(precision=precision, scale=scale):
            return decimal(precision, scale)
        case PrimitiveType(name):
            return _BUILDERS.get(name)
    return None


_BUILDERS: Mapping[str, Build] = {
    "boolean": boolean,
    "double": double,
    "float": single,
    "date": day,
    "string": text,
    "binary": octets,
}


def map_of(cursor: BlockCursor, pairs: Any) -> Column:
    """A column of maps from lists of pairs. A value that has a key twice in one of its maps is doubtful."""
    keys, values = pairs.values.field(0), pairs.values.field(1)
    offsets = pairs.offsets.to_numpy()
    owners = np.repeat(np.arange(len(pairs)), np.diff(offsets))
    numbers = keys.dictionary_encode().indices.to_numpy().astype(np.int64)
    found, counts = np.unique(owners * (len(keys) + 1) + numbers, return_counts=True)
    cursor.doubt_at(np.unique(found[counts > 1] // (len(keys) + 1)))
    return pa.MapArray.from_arrays(pairs.offsets, keys, values)


def struct_of(columns: Mapping[str, Column], fields: Sequence[tuple[str, ColumnType]], length: int) -> Column:
    """A column of structs; a field that no column has is null."""
    kinds = [pa.field(name, arrow_type(inner)) for name, inner in fields]
    children = [columns[kind.name] if kind.name in columns else nulls(length, kind.type) for kind in kinds]
    return pa.StructArray.from_arrays(children, fields=kinds)
