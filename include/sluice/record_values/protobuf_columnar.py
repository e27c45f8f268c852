"""Reads blocks of Protobuf messages column by column: a step of a cursor for each field, in the order of their numbers.

Senders write fields in this order, and leave out what is absent. A message becomes what `protobuf` and
`decoding` make of it, or it is doubtful and is left to them: fields in another order, one that is there twice,
one that was sent as another type. Messages with groups, extensions, required fields or closed enums are not read here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from sluice.declarations.column_types import ColumnType, ListType, MapType, StructType
from sluice.declarations.protobuf_schemas import TIMESTAMP, WRAPPERS, map_entry, message_columns
from sluice.record_values.arrow_columns import Column, arrow_type
from sluice.record_values.block_columns import (
    Kind,
    Leaf,
    Nested,
    NotColumnarError,
    in_order,
    lists_of,
    map_of,
    struct_of,
)
from sluice.record_values.block_cursor import BlockCursor, Flags, Numbers
from sluice.record_values.protobuf_leaves import instant, packed_lists, scalar, wire_type_of, wrapped

_LENGTH_DELIMITED = 2
_MOST_UNKNOWN = 16
"""Unknown fields of a message, one behind the other, that are left out at once."""

_LARGEST_NUMBER = 2047
"""The largest number of a field whose tag has at most two bytes."""

_NO_TAG = 0
_ODD_TAG = 7
"""Stands for a tag that is not read at once: no field has the number 0."""


class ColumnarProtobuf:
    """Reads blocks of one message.

    Parameters
    ----------
    message: the declared message. columns: the declared columns.

    Raises
    ------
    NotColumnarError: when such messages are decoded one by one.
    """

    def __init__(self, message: Descriptor, columns: Mapping[str, ColumnType]) -> None:
        try:
            types = {column.name: column.column_type for column in message_columns(message)}
        except ValueError as error:
            raise NotColumnarError(str(error)) from error
        if any(types.get(name, kind) != kind for name, kind in columns.items()):
            raise NotColumnarError("a column of another type")
        self._message = _Message(message, types, "")

    def columns(self, cursor: BlockCursor) -> dict[str, Column]:
        """The columns of the fields; the cursor is at the messages' beginnings."""
        return self._message.columns(cursor)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """A field of a message. tag: what stands before its value.

    is_repeated: whether its elements follow one another, each with the tag. is_map: whether they are pairs.
    is_zero_if_absent: whether it has no presence. choice: the name of the `oneof` that has it.
    """

    name: str
    tag: int
    kind: Kind
    nothing: Column
    is_repeated: bool
    is_map: bool
    is_zero_if_absent: bool
    choice: str | None

    @property
    def number(self) -> int:
        """Its number in the schema."""
        return self.tag >> 3

    def column(self, cursor: BlockCursor, tags: Numbers) -> Any:
        """Read the field where its tag is next; the tags become those behind it."""
        places = np.flatnonzero(tags == self.tag)
        if self.is_repeated:
            return self._lists(cursor, tags, places)
        if not places.size:
            return self.kind.column(cursor, places, is_zero_if_absent=self.is_zero_if_absent)
        present = None if len(places) == len(cursor) else places
        self._enter(cursor, places)
        column = self.kind.column(cursor, present, is_zero_if_absent=self.is_zero_if_absent)
        tags[places] = _tags(cursor.part(present))
        return column

    def _lists(self, cursor: BlockCursor, tags: Numbers, places: Numbers) -> Any:
        parts: list[Column] = []
        owners: list[Numbers] = []
        lengths = np.zeros(len(cursor), np.int64)
        while places.size and cursor.content.takes_step(places.size, element=len(parts)):
            self._enter(cursor, places)
            part = cursor.part(places)
            parts.append(self.kind.column(part))
            owners.append(places)
            cursor.follow(places, part)
            lengths[places] += 1
            tags[places] = _tags(part)
            places = places[tags[places] == self.tag]
        elements = in_order(parts, owners, lengths) if parts else self.nothing
        lists = lists_of(lengths, elements)
        return map_of(cursor, lists) if self.is_map else lists

    def _enter(self, cursor: BlockCursor, places: Numbers) -> None:
        cursor.at[places] += 1 if self.tag < 0x80 else 2


class _Message:
    """Reads messages of one type. path: to the fields of this message."""

    def __init__(self, message: Descriptor, types: Mapping[str, ColumnType], path: str) -> None:
        if message.extension_ranges or max(message.fields_by_number) > _LARGEST_NUMBER:
            raise NotColumnarError("extensions, or a large number")
        fields = sorted(message.fields, key=lambda field: field.number)
        self._fields = [_field(field, types[field.name], f"{path}{field.name}.") for field in fields]
        self._numbers = np.array([field.number for field in fields], np.int64)
        self._path = path

    def columns(self, cursor: BlockCursor) -> dict[str, Column]:
        """The columns of all fields."""
        tags = _tags(cursor)
        found: dict[str, Column] = {}
        chosen: dict[str, Flags] = {}
        last = 0
        for field in self._fields:
            if field.number > last + 1:
                self._leave_out(cursor, tags, before=field.number)
            if field.choice is not None:
                is_here = tags == field.tag
                cursor.doubt(is_here & chosen.get(field.choice, False))
                chosen[field.choice] = is_here | chosen.get(field.choice, False)
            found[field.name] = field.column(cursor, tags)
            last = field.number
        self._leave_out(cursor, tags, before=None)
        cursor.doubt(cursor.at != cursor.end)
        return found

    def _leave_out(self, cursor: BlockCursor, tags: Numbers, *, before: int | None) -> None:
        """Go behind fields that the message does not have. before: the number of the next field that it has."""
        for _ in range(_MOST_UNKNOWN):
            numbers = tags >> 3
            are_unknown = (numbers > 0) if before is None else (numbers > 0) & (numbers < before)
            if not are_unknown.any():
                return
            places = np.flatnonzero(are_unknown & ~np.isin(numbers, self._numbers))
            if not places.size:
                return
            for number in np.unique(numbers[places]).tolist():
                having = places[numbers[places] == number]
                cursor.content.undeclared.append((f"{self._path}{number}", cursor.rows[having]))
            part = cursor.part(places)
            _skip(part, tags[places])
            cursor.follow(places, part)
            tags[places] = _tags(part)


def _skip(part: BlockCursor, tags: Numbers) -> None:
    """Go behind a field of any type, whose tag is next."""
    part.at = part.at + np.where(tags < 0x80, 1, 2)
    kinds = tags & 7
    fixed = np.select([kinds == 1, kinds == 5], [8, 4], 0)
    part.at = part.at + fixed
    for kind in (0, _LENGTH_DELIMITED):
        places = np.flatnonzero(kinds == kind)
        if places.size:
            some = part.part(places)
            numbers = some.varints().view(np.int64)
            if kind == _LENGTH_DELIMITED:
                some.at = some.at + some.bounded(numbers)
            part.follow(places, some)
    part.doubt(np.isin(kinds, (3, 4, 6, 7)))


def _tags(cursor: BlockCursor) -> Numbers:
    """The tag that is next in each message; 0 at the end. It stays next."""
    word = cursor.content.words_at(cursor.at).view(np.int64) & 0xFFFF
    low = word & 0x7F
    both = low | ((word >> 1) & 0x3F80)
    tags = np.where(word & 0x80, both, low)
    is_odd = (word & 0x80 != 0) & ((word & 0x8000 != 0) | (both < 0x80))
    return np.where(cursor.at >= cursor.end, _NO_TAG, np.where(is_odd, _ODD_TAG, tags))


def _field(field: FieldDescriptor, column: ColumnType, path: str) -> _Field:
    if field.is_required:
        raise NotColumnarError("a field that is required")
    entry = map_entry(field)
    single = column.element if isinstance(column, ListType) else column
    kind = _single(field, single, path) if entry is None else _entry(entry, column, path)
    wire_type = wire_type_of(field)
    is_packed = field.is_repeated and field.is_packed
    choice = field.containing_oneof
    return _Field(
        name=field.name,
        tag=(field.number << 3) | (_LENGTH_DELIMITED if is_packed else wire_type),
        kind=packed_lists(field) if is_packed else kind,
        nothing=pa.array([], arrow_type(single) if not isinstance(single, MapType) else _pair_type(single)),
        is_repeated=field.is_repeated and not is_packed,
        is_map=entry is not None,
        is_zero_if_absent=is_packed or not field.has_presence,
        choice=choice.name if choice is not None and len(choice.fields) > 1 else None,
    )


def _single(field: FieldDescriptor, column: ColumnType, path: str) -> Kind:
    message = field.message_type
    if message is None:
        return Leaf(*scalar(field))
    if message.full_name == TIMESTAMP:
        return Leaf(*instant(_tags))
    if message.full_name in WRAPPERS:
        return Leaf(*wrapped(message.fields_by_number[1], _tags))
    if not isinstance(column, StructType) or field.type == FieldDescriptor.TYPE_GROUP:
        raise NotColumnarError("a message in another form")
    inner, fields = _Message(message, dict(column.fields), path), column.fields
    return Nested(_of_message(lambda part: struct_of(inner.columns(part), fields, len(part))))


def _entry(entry: Descriptor, column: ColumnType, path: str) -> Kind:
    """A pair of a map. A key or a value that was not sent has no bits; an absent message is doubtful."""
    if not isinstance(column, MapType):
        raise NotColumnarError("a map in another form")
    key, value = (
        replace(_field(entry.fields_by_name[name], kind, path), is_zero_if_absent=True)
        for name, kind in (("key", column.key), ("value", column.value))
    )
    is_nested = isinstance(value.kind, Nested)

    def read(part: BlockCursor) -> Column:
        tags = _tags(part)
        keys = key.column(part, tags)
        if is_nested:
            part.doubt(tags != value.tag)
        values = value.column(part, tags)
        part.doubt(part.at != part.end)
        return pa.StructArray.from_arrays([keys, values], names=["key", "value"])

    return Nested(_of_message(read))


def _pair_type(column: MapType) -> pa.DataType:
    return pa.struct([("key", arrow_type(column.key)), ("value", arrow_type(column.value))])


def _of_message(read: Callable[[BlockCursor], Column]) -> Callable[[BlockCursor], Column]:
    """Read what has its length before it."""

    def column(cursor: BlockCursor) -> Column:
        lengths = cursor.bounded(cursor.varints().view(np.int64))
        return read(cursor.inside(lengths))

    return column
