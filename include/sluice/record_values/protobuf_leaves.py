"""Reads the fields of Protobuf messages that have no fields of their own, of all values of a block at once.

Source: https://protobuf.dev/programming-guides/encoding/
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor

from sluice.record_values.arrow_columns import Column
from sluice.record_values.block_columns import (
    FIRST_US,
    LAST_US,
    Arrays,
    Build,
    Kind,
    Leaf,
    NotColumnarError,
    Read,
    boolean,
    double,
    lists_of,
    octets,
    single,
    text,
    time,
    unsigned_decimal,
    whole,
    within,
    word_of,
)
from sluice.record_values.block_cursor import BlockCursor, Numbers, Words, spread

Tags = Callable[[BlockCursor], Numbers]
"""Returns the tags that are next."""

_SECONDS, _NANOS = 0x08, 0x10
"""The tags of the fields of a timestamp."""


def wire_type_of(field: FieldDescriptor) -> int:
    """How the end of a field's value is found.

    Raises
    ------
    NotColumnarError: for a group.
    """
    if field.type == FieldDescriptor.TYPE_GROUP:
        raise NotColumnarError("a group")
    return _WIRE_TYPES.get(field.type, 0)


def scalar(field: FieldDescriptor) -> tuple[Read, Build]:
    """How a field is read, and how its column is built.

    Raises
    ------
    NotColumnarError: for an enum whose unknown numbers are unknown fields.
    """
    if field.enum_type is not None:
        if field.enum_type.is_closed:
            raise NotColumnarError("a closed enum")
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return _signed(32), word_of(names)
    return _SCALARS[field.type]


def instant(tags_of: Tags) -> tuple[Read, Build]:
    """How a timestamp is read: a message of seconds and nanoseconds."""

    def read(cursor: BlockCursor) -> Arrays:
        part = cursor.inside(cursor.bounded(cursor.varints().view(np.int64)))
        seconds = _inner(part, _SECONDS, _signed(64), tags_of)[0]
        nanos = _inner(part, _NANOS, _signed(32), tags_of)[0]
        part.doubt((part.at != part.end) | (nanos % 1000 != 0))
        bounded = within(part, seconds, FIRST_US // 1_000_000, LAST_US // 1_000_000)
        return (bounded * 1_000_000 + within(part, nanos, 0, 999_999_999) // 1000,)

    return read, time("timestamptz", microseconds=1)


def wrapped(value: FieldDescriptor, tags_of: Tags) -> tuple[Read, Build]:
    """How a message of one value is read. value: the field of the message."""
    read_value, build = scalar(value)
    tag = value.number << 3 | wire_type_of(value)

    def read(cursor: BlockCursor) -> Arrays:
        part = cursor.inside(cursor.bounded(cursor.varints().view(np.int64)))
        found = _inner(part, tag, read_value, tags_of)
        part.doubt(part.at != part.end)
        return found

    return read, build


def _inner(part: BlockCursor, tag: int, read: Read, tags_of: Tags) -> Arrays:
    """What was read of a field with a tag of one byte; zeros where it is not there."""
    places = np.flatnonzero(tags_of(part) == tag)
    part.at[places] += 1
    having = part.part(places)
    found = tuple(spread(values, places, len(part)) for values in read(having))
    part.follow(places, having)
    return found


def packed_lists(field: FieldDescriptor) -> Kind:
    """Lists of numbers without tags between them; empty where they are absent."""
    leaf, width = Leaf(*scalar(field)), {1: 8, 5: 4}.get(wire_type_of(field))

    def read(cursor: BlockCursor) -> Any:
        lengths = cursor.bounded(cursor.varints().view(np.int64))
        part = cursor.inside(lengths)
        counts, elements = _of_varints(part, lengths) if width is None else _of_width(part, lengths, width)
        return lists_of(counts, leaf.column(elements))

    return _EmptyIfAbsent(read)


@dataclass(frozen=True, slots=True)
class _EmptyIfAbsent:
    """Lists that are empty where they are absent. read: those of values that all have one."""

    read: Callable[[BlockCursor], Column]

    def column(self, cursor: BlockCursor, present: Numbers | None = None, *, is_zero_if_absent: bool = False) -> Any:
        """See `Kind`."""
        if present is None:
            return self.read(cursor)
        part = cursor.part(present)
        found: Any = self.read(part)
        cursor.follow(present, part)
        lengths = spread(np.diff(found.offsets.to_numpy()).astype(np.int64), present, len(cursor))
        return lists_of(lengths, found.values)


def _of_width(part: BlockCursor, lengths: Numbers, width: int) -> tuple[Numbers, BlockCursor]:
    """The number of elements of each list, and a cursor of all elements; they have the same width."""
    part.doubt(lengths % width != 0)
    counts = lengths // width
    begins = np.repeat(part.at - width * (np.cumsum(counts) - counts), counts)
    at = begins + width * np.arange(len(begins))
    return counts, replace(part, at=at, end=at + width, rows=np.repeat(part.rows, counts))


def _of_varints(part: BlockCursor, lengths: Numbers) -> tuple[Numbers, BlockCursor]:
    """The same for numbers, each of which ends with the byte that has no highest bit."""
    offsets, octets = part.content.gathered(part.at, lengths)
    lasts = offsets[1:] - 1
    are_open = np.zeros(len(part), np.bool_)
    filled = np.flatnonzero(lengths)
    are_open[filled] = octets[lasts[filled]] >= 0x80
    part.doubt(are_open)
    octets[lasts[are_open]] &= 0x7F  # so that it does not reach into the next list
    stops = np.flatnonzero(octets < 0x80)
    counts = np.diff(np.searchsorted(stops, offsets))
    content, first = part.content.beside(octets)
    ends = first + stops + 1
    at = np.concatenate([[first], ends[:-1]]) if len(ends) else ends
    return counts, BlockCursor(content=content, at=at, end=ends, rows=np.repeat(part.rows, counts))


def _signed(bits: int) -> Read:
    """A whole number as the lower bits of a varint with all bits of its sign."""
    largest = 2 ** (bits - 1) - 1

    def read(cursor: BlockCursor) -> Arrays:
        return (within(cursor, cursor.varints().view(np.int64), -largest - 1, largest),)

    return read


def _zigzag(bits: int) -> Read:
    largest = 2 ** (bits - 1) - 1
    return lambda cursor: (within(cursor, cursor.zigzags(), -largest - 1, largest),)


def _unsigned(cursor: BlockCursor) -> Arrays:
    return (within(cursor, cursor.varints().view(np.int64), 0, 2**32 - 1),)


def _places(cursor: BlockCursor) -> Arrays:
    lengths = cursor.bounded(cursor.varints().view(np.int64))
    starts, cursor.at = cursor.at, cursor.at + lengths
    return starts, lengths


_LONG, _INT = whole(64), whole(32)
_LOW = np.uint64(0xFFFF_FFFF)

_SCALARS: Mapping[int, tuple[Read, Build]] = {
    FieldDescriptor.TYPE_DOUBLE: (lambda cursor: (cursor.word(8),), double),
    FieldDescriptor.TYPE_FLOAT: (lambda cursor: (cursor.word(4),), single),
    FieldDescriptor.TYPE_INT64: (lambda cursor: (cursor.varints().view(np.int64),), _LONG),
    FieldDescriptor.TYPE_UINT64: (lambda cursor: (cursor.varints(),), unsigned_decimal),
    FieldDescriptor.TYPE_INT32: (_signed(32), _INT),
    FieldDescriptor.TYPE_FIXED64: (lambda cursor: (cursor.word(8),), unsigned_decimal),
    FieldDescriptor.TYPE_FIXED32: (lambda cursor: ((cursor.word(4) & _LOW).view(np.int64),), _LONG),
    FieldDescriptor.TYPE_BOOL: (lambda cursor: (cursor.varints(),), boolean),
    FieldDescriptor.TYPE_STRING: (_places, text),
    FieldDescriptor.TYPE_BYTES: (_places, octets),
    FieldDescriptor.TYPE_UINT32: (_unsigned, _LONG),
    FieldDescriptor.TYPE_SFIXED32: (lambda cursor: (_low_half(cursor.word(4)),), _INT),
    FieldDescriptor.TYPE_SFIXED64: (lambda cursor: (cursor.word(8).view(np.int64),), _LONG),
    FieldDescriptor.TYPE_SINT32: (_zigzag(32), _INT),
    FieldDescriptor.TYPE_SINT64: (_zigzag(64), _LONG),
}


def _low_half(words: Words) -> Numbers:
    """The numbers of 32 bits with a sign with which words begin."""
    return words.astype(np.uint32).view(np.int32).astype(np.int64)


_WIRE_TYPES: Mapping[int, int] = {
    FieldDescriptor.TYPE_DOUBLE: 1,
    FieldDescriptor.TYPE_FIXED64: 1,
    FieldDescriptor.TYPE_SFIXED64: 1,
    FieldDescriptor.TYPE_FLOAT: 5,
    FieldDescriptor.TYPE_FIXED32: 5,
    FieldDescriptor.TYPE_SFIXED32: 5,
    FieldDescriptor.TYPE_STRING: 2,
    FieldDescriptor.TYPE_BYTES: 2,
    FieldDescriptor.TYPE_MESSAGE: 2,
}
"""The wire types that are not those of varints."""
