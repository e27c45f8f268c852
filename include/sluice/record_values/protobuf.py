"""Protobuf values: read with the declared message; fields are told by their numbers.

Protobuf itself takes a field that was sent as another kind for one that it does not know, and gives the default. Here
such a value is refused: nothing that cannot be decoded becomes a null or a zero.

Sources: https://protobuf.dev/programming-guides/encoding/ and https://protobuf.dev/programming-guides/proto3/#updating
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from sluice.declarations.schemas.protobuf_schemas import TIMESTAMP, WRAPPERS, compiled, is_map, map_entry, message_of
from sluice.record_values.schemas import SchemaText
from sluice.record_values.unfit import UnfitError

Taken = Callable[[Any], Any]
"""Turns a field's value into a column's."""

_ALIKE: tuple[frozenset[int], ...] = (
    frozenset(
        (
            FieldDescriptor.TYPE_INT32,
            FieldDescriptor.TYPE_INT64,
            FieldDescriptor.TYPE_UINT32,
            FieldDescriptor.TYPE_UINT64,
            FieldDescriptor.TYPE_BOOL,
        )
    ),
    frozenset((FieldDescriptor.TYPE_SINT32, FieldDescriptor.TYPE_SINT64)),
    frozenset((FieldDescriptor.TYPE_FIXED32, FieldDescriptor.TYPE_SFIXED32)),
    frozenset((FieldDescriptor.TYPE_FIXED64, FieldDescriptor.TYPE_SFIXED64)),
    frozenset((FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)),
)
"""Kinds of which one may follow the other in a schema: they look the same on the wire."""


class ProtobufReading:
    """Reads values of one message.

    Parameters
    ----------
    reader: the declared schema. message: of it; unset: its first.

    Raises
    ------
    ValueError: when the schema cannot be compiled, or has no such message.
    """

    def __init__(self, *, reader: SchemaText, message: str | None = None) -> None:
        self.message = message_of(compiled(reader.text, reader.imports), message)
        self._class = GetMessageClass(self.message)
        self._take = _message_taken(self.message)

    def read(self, content: bytes) -> Mapping[str, Any]:
        """The fields of a value.

        Raises
        ------
        UnfitError: when it is none of the message.
        """
        try:
            message = self._class.FromString(content)
        except DecodeError as error:
            raise UnfitError(f"the value is no {self.message.full_name}: {error}") from error
        try:
            fields: Mapping[str, Any] = self._take(message)
        except (ValueError, OverflowError) as error:
            raise UnfitError(f"the value is no {self.message.full_name}: {error}") from error
        return fields


def message_at(schema: SchemaText, indexes: tuple[int, ...]) -> Descriptor:
    """The message at the place that a value's head names.

    Raises
    ------
    UnfitError: when the schema has no such place.
    """
    messages = list(compiled(schema.text, schema.imports).message_types_by_name.values())
    for depth, index in enumerate(indexes):
        if not 0 <= index < len(messages):
            raise UnfitError(f"its schema has no message at {'.'.join(map(str, indexes))}")
        if depth == len(indexes) - 1:
            return messages[index]
        messages = list(messages[index].nested_types)
    raise UnfitError("the value does not say which message it is")


def misfits(writer: Descriptor, reader: Descriptor) -> tuple[str, ...]:
    """The fields that one message would take wrongly from another one: the same number, another kind."""
    return tuple(_misfits(writer, reader, "", frozenset()))


def _misfits(writer: Descriptor, reader: Descriptor, place: str, above: frozenset[tuple[str, str]]) -> Iterator[str]:
    pair = (writer.full_name, reader.full_name)
    if pair in above:
        return
    for number, field in reader.fields_by_number.items():
        written = writer.fields_by_number.get(number)
        if written is None:
            continue
        if not _is_readable(written, field):
            yield f"{place}{field.name} ({number}) was {_told(written)} and is {_told(field)}"
        elif field.message_type is not None and written.message_type is not None:
            yield from _misfits(written.message_type, field.message_type, f"{place}{field.name}.", above | {pair})


def _is_readable(written: FieldDescriptor, field: FieldDescriptor) -> bool:
    if written.is_repeated != field.is_repeated or is_map(written) != is_map(field):
        return False
    return written.type == field.type or any({written.type, field.type} <= alike for alike in _ALIKE)


def _told(field: FieldDescriptor) -> str:
    kind = "map" if is_map(field) else _KIND_NAMES[field.type]
    return f"repeated {kind}" if field.is_repeated and not is_map(field) else kind


_KIND_NAMES = {
    getattr(FieldDescriptor, name): name.removeprefix("TYPE_").lower()
    for name in dir(FieldDescriptor)
    if name.startswith("TYPE_")
}


def _message_taken(message: Descriptor) -> Callable[[Message], dict[str, Any]]:
    """What takes the fields out of a message. A field that can be absent is null then."""
    fields = [
        (field.name, field.has_presence and not field.is_repeated, _field_taken(field)) for field in message.fields
    ]
    numbers = frozenset(message.fields_by_number)

    def taken(of: Message) -> dict[str, Any]:
        unknown = UnknownFieldSet(of)
        for number in (unknown[index].field_number for index in range(len(unknown))):
            if number in numbers:
                raise ValueError(f"{message.fields_by_number[number].name} ({number}) was sent as another kind")
        return {
            name: None if can_be_absent and not of.HasField(name) else take(getattr(of, name))
            for name, can_be_absent, take in fields
        }

    return taken


def _field_taken(field: FieldDescriptor) -> Taken:
    if (entry := map_entry(field)) is not None:
        value = _single_taken(entry.fields_by_name["value"])
        return lambda pairs: [(key, value(pairs[key])) for key in pairs]
    single = _single_taken(field)
    return (lambda values: [single(value) for value in values]) if field.is_repeated else single


def _single_taken(field: FieldDescriptor) -> Taken:
    message, enum = field.message_type, field.enum_type
    if enum is not None:
        names = {number: value.name for number, value in enum.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    if message is None:
        return lambda value: value
    if message.full_name == TIMESTAMP:
        return lambda timestamp: timestamp.ToDatetime(tzinfo=UTC)
    if message.full_name in WRAPPERS:
        return lambda wrapper: wrapper.value
    return _message_taken(message)
