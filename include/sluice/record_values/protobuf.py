"""Reads Protobuf values with the declared message. Fields are identified by their numbers.

Protobuf itself treats a field that was sent as another type as an unknown field, and returns the default. Here such a
value is rejected: nothing that cannot be decoded becomes a null or a zero.

Its parser also cuts numbers to the bits of their field, takes every number but 0 for true, and the last of a key that a
map has twice. So the bytes of a message that may say something else than was parsed are walked through once more.

Sources: https://protobuf.dev/programming-guides/encoding/ and https://protobuf.dev/programming-guides/proto3/#updating
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC
from typing import Any, TypeAlias

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from sluice.declarations.column_types import ColumnType
from sluice.declarations.protobuf_schemas import KIND_NAMES, TIMESTAMP, WRAPPERS, compiled, map_entry, message_of
from sluice.record_values.block_columns import NotColumnarError
from sluice.record_values.protobuf_columnar import ColumnarProtobuf
from sluice.record_values.rejection import RejectedValueError, Rejection, RejectionKind
from sluice.record_values.schemas import NO_MESSAGE, SchemaText

Conversion = Callable[[Any], Any]
"""Converts the value of a field into the value of a column."""

Walk = Callable[[bytes], None]
"""Walks through the bytes of a message; raises `RejectedValueError`."""

_Sent: TypeAlias = int | bytes
"""What stands behind the tag of a field: a varint, or bytes."""
_Step = Callable[[Sequence[Any]], None]
"""Looks at all that a message has of one field, in its order."""

_VARINT, _FIXED_64, _LENGTH, _GROUP, _GROUP_END, _FIXED_32 = range(6)
_WIDTHS = {_FIXED_64: 8, _FIXED_32: 4}
_PLACE_OF_SIGN = 63


class ProtobufReading:
    """Reads values of one message. `undeclared` are the fields of the last value that the message does not have, by
    their numbers; no value has one by its schema, so `of_schema` is empty. `columnar` reads blocks of messages, unless
    they have what is read value by value.

    Parameters
    ----------
    reader: the declared schema.
    message: the name of a message in it; None for the first.
    columns: those that take the fields, by name.

    Raises
    ------
    ValueError: when the schema cannot be compiled, or has no such message.
    """

    of_schema: tuple[str, ...] = ()

    def __init__(self, *, reader: SchemaText, columns: Mapping[str, ColumnType], message: str | None = None) -> None:
        self.message = message_of(compiled(reader.text, reader.imports), message)
        self._class = GetMessageClass(self.message)
        self.undeclared: list[str] = []
        self._convert = _message_conversion(self.message, self.undeclared, "")
        self._require_strict = strict_walk(self.message)
        try:
            self.columnar: ColumnarProtobuf | None = ColumnarProtobuf(self.message, columns)
        except NotColumnarError:
            self.columnar = None

    def read(self, content: bytes) -> Mapping[str, Any]:
        """Return the fields of a value.

        Raises
        ------
        RejectedValueError: when the value is not a valid message of this type, or the parser has read something else
            than it says.
        """
        self.undeclared.clear()
        try:
            message = self._class.FromString(content)
        except DecodeError as error:
            raise invalid_message(str(error), quotes_data=True) from error
        try:
            fields: Mapping[str, Any] = self._convert(message)
        except RejectedValueError:
            raise
        except (ValueError, OverflowError) as error:  # of a time that Python does not have
            raise invalid_message(str(error), quotes_data=True) from error
        if message.SerializePartialToString() != content:  # otherwise the message is all that the bytes say
            self._require_strict(content)
        return fields


def unusable_schema(detail: str) -> RejectedValueError:
    """The error of a value whose schema cannot be used. detail: why, in words of the schema and not of the value."""
    return RejectedValueError(Rejection(kind=RejectionKind.UNUSABLE_SCHEMA, detail=detail, quotes_data=False))


def message_at(schema: SchemaText, indexes: tuple[int, ...]) -> Descriptor:
    """Return the message that the indexes in a value's prefix name.

    Raises
    ------
    RejectedValueError: when the schema has no such message.
    """
    messages = list(compiled(schema.text, schema.imports).message_types_by_name.values())
    for depth, index in enumerate(indexes):
        if not 0 <= index < len(messages):
            raise unusable_schema(f"it has no message at {'.'.join(map(str, indexes))}")
        if depth == len(indexes) - 1:
            return messages[index]
        messages = list(messages[index].nested_types)
    raise RejectedValueError(NO_MESSAGE)


def _message_conversion(message: Descriptor, undeclared: list[str], path: str) -> Callable[[Message], dict[str, Any]]:
    """Create the conversion of a message into its fields. A field with presence that was not sent is None.

    undeclared: takes the numbers of fields that the message does not have, behind the path to it.
    """
    fields = [
        (
            field.name,
            field.has_presence and not field.is_repeated,
            _field_conversion(field, undeclared, f"{path}{field.name}."),
        )
        for field in message.fields
    ]
    numbers = frozenset(message.fields_by_number)

    def convert(of: Message) -> dict[str, Any]:
        unknown = UnknownFieldSet(of)
        for number in (unknown[index].field_number for index in range(len(unknown))):
            if number in numbers:
                name = message.fields_by_number[number].name
                raise invalid_message(f"field {number} was sent as another type", f"{path}{name}", quotes_data=False)
            undeclared.append(f"{path}{number}")
        return {
            name: None if can_be_absent and not of.HasField(name) else convert_field(getattr(of, name))
            for name, can_be_absent, convert_field in fields
        }

    return convert


def _field_conversion(field: FieldDescriptor, undeclared: list[str], path: str) -> Conversion:
    if (entry := map_entry(field)) is not None:
        value = _single_conversion(entry.fields_by_name["value"], undeclared, path)
        return lambda pairs: [(key, value(pairs[key])) for key in pairs]
    single = _single_conversion(field, undeclared, path)
    return (lambda values: [single(value) for value in values]) if field.is_repeated else single


def _single_conversion(field: FieldDescriptor, undeclared: list[str], path: str) -> Conversion:
    message, enum = field.message_type, field.enum_type
    if enum is not None:
        names = {number: value.name for number, value in enum.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if message is None:
        return lambda value: value
    if message.full_name == TIMESTAMP:
        return _instant
    if message.full_name in WRAPPERS:
        return lambda wrapper: wrapper.value
    return _message_conversion(message, undeclared, path)


def _instant(timestamp: Any) -> Any:
    if timestamp.nanos % 1000:
        raise invalid_message(f"{timestamp.nanos} nanoseconds are not in whole microseconds", quotes_data=True)
    return timestamp.ToDatetime(tzinfo=UTC)


def invalid_message(detail: str, path: str = "", *, quotes_data: bool) -> RejectedValueError:
    """The error of a value that is not the message that it should be."""
    rejection = Rejection(kind=RejectionKind.INVALID_MESSAGE, path=path, detail=detail, quotes_data=quotes_data)
    return RejectedValueError(rejection)


def strict_walk(message: Descriptor, path: str = "") -> Walk:
    """Create the function that raises `RejectedValueError` for a message of which the parser makes another one.

    Parameters
    ----------
    message: a type that does not contain itself. It takes bytes that were parsed as this type, of which no field was
        sent as another type.
    path: to the message, within the value.
    """
    before = f"{path}." if path else ""
    found = [(field.number, _step(field, f"{before}{field.name}")) for field in message.fields]
    steps = {number: step for number, step in found if step is not None}

    def walk(content: bytes) -> None:
        sent: dict[int, list[_Sent]] = {}
        for number, value in _fields(content):
            if number in steps:
                sent.setdefault(number, []).append(value)
        for number, values in sent.items():
            steps[number](values)

    return walk


def _step(field: FieldDescriptor, path: str) -> _Step | None:
    """The step of a field; None for one whose values are no whole numbers and have no fields."""
    if (entry := map_entry(field)) is not None:
        return _map(entry, path)
    if field.message_type is None:
        return _numbers(field, f"{path}[]" if field.is_repeated else path) if field.type in _NUMBERS else None
    if not field.is_repeated:
        walk = strict_walk(field.message_type, path)
        return lambda parts: walk(b"".join(parts))  # as the parser merges a message that was sent in parts
    walk_element = strict_walk(field.message_type, f"{path}[]")

    def each(messages: Sequence[bytes]) -> None:
        for message in messages:
            walk_element(message)

    return each


def _map(entry: Descriptor, path: str) -> _Step:
    walk, of_key = strict_walk(entry, f"{path}{{}}"), entry.fields_by_name["key"]

    def step(entries: Sequence[bytes]) -> None:
        keys: set[int | str] = set()
        for one in entries:
            walk(one)
            key = _key(of_key, dict(_fields(one)).get(of_key.number))
            if key in keys:
                raise invalid_message(f"the map has the key {key} twice", path, quotes_data=True)
            keys.add(key)

    return step


def _key(field: FieldDescriptor, sent: _Sent | None) -> int | str:
    """The key of a pair; one that was not sent is zero, or the empty text."""
    if field.type == FieldDescriptor.TYPE_STRING:
        return sent.decode() if isinstance(sent, bytes) else ""
    if isinstance(sent, bytes):
        return int.from_bytes(sent, "little", signed=field.type in _SIGNED_FIXED)
    return _NUMBERS[field.type][0](sent) if sent else 0


def _numbers(field: FieldDescriptor, path: str) -> _Step:
    read, least, most = _NUMBERS[field.type]

    def step(values: Sequence[_Sent]) -> None:
        for value in values:
            for sent in (value,) if isinstance(value, int) else _packed(value):
                number = read(sent)
                if sent >> 64:
                    raise invalid_message("the number has more than 64 bits", path, quotes_data=False)
                if not least <= number <= most:
                    raise invalid_message(f"the number {number} is no {KIND_NAMES[field.type]}", path, quotes_data=True)

    return step


def _fields(content: bytes) -> Iterator[tuple[int, _Sent]]:
    """The fields of a message by their numbers. The fields in a group are the bytes of one."""
    at = 0
    while at < len(content):
        tag, at = _varint(content, at)
        value, at = _value(content, at, tag & 7)
        yield tag >> 3, value


def _value(content: bytes, at: int, wire_type: int) -> tuple[_Sent, int]:
    """What stands behind a tag, and the place behind it."""
    if wire_type == _VARINT:
        return _varint(content, at)
    if wire_type == _GROUP:
        return _group(content, at)
    length = _WIDTHS.get(wire_type)
    if length is None:
        length, at = _varint(content, at)
    return content[at : at + length], at + length


def _group(content: bytes, begin: int) -> tuple[bytes, int]:
    at = begin
    while True:
        end = at
        tag, at = _varint(content, at)
        if tag & 7 == _GROUP_END:
            return content[begin:end], at
        _, at = _value(content, at, tag & 7)


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """A number of variable length with all of its bits, and the place behind it."""
    found = shift = 0
    while True:
        octet = content[at]
        at += 1
        found |= (octet & 0x7F) << shift
        if octet < 0x80:
            return found, at
        shift += 7


def _packed(content: bytes) -> Iterator[int]:
    at = 0
    while at < len(content):
        number, at = _varint(content, at)
        yield number


def _signed(sent: int) -> int:
    return sent - ((sent >> _PLACE_OF_SIGN) << 64)


def _zigzag(sent: int) -> int:
    return (sent >> 1) ^ -(sent & 1)


def _plain(sent: int) -> int:
    return sent


_INT_32, _INT_64 = (-(2**31), 2**31 - 1), (-(2**63), 2**63 - 1)
_SIGNED_FIXED = (FieldDescriptor.TYPE_SFIXED32, FieldDescriptor.TYPE_SFIXED64)

_NUMBERS: Mapping[int, tuple[Callable[[int], int], int, int]] = {
    FieldDescriptor.TYPE_INT32: (_signed, *_INT_32),
    FieldDescriptor.TYPE_INT64: (_signed, *_INT_64),
    FieldDescriptor.TYPE_UINT32: (_plain, 0, 2**32 - 1),
    FieldDescriptor.TYPE_UINT64: (_plain, 0, 2**64 - 1),
    FieldDescriptor.TYPE_SINT32: (_zigzag, *_INT_32),
    FieldDescriptor.TYPE_SINT64: (_zigzag, *_INT_64),
    FieldDescriptor.TYPE_ENUM: (_signed, *_INT_32),
    FieldDescriptor.TYPE_BOOL: (_plain, 0, 1),
}
"""How the types that are sent as varints are read, and the least and the largest number that a field of one holds."""
