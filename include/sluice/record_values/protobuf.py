"""Reads Protobuf values with the declared message. Fields are identified by their numbers.

Protobuf itself treats a field that was sent as another type as an unknown field, and returns the default. Here such a
value is rejected: nothing that cannot be decoded becomes a null or a zero.

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

from sluice.declarations.column_types import ColumnType
from sluice.declarations.protobuf_schemas import TIMESTAMP, WRAPPERS, compiled, is_map, map_entry, message_of
from sluice.record_values.block_columns import NotColumnarError
from sluice.record_values.protobuf_columnar import ColumnarProtobuf
from sluice.record_values.protobuf_strict import KIND_NAMES, invalid_message, strict_walk
from sluice.record_values.rejection import RejectedValueError, Rejection, RejectionKind
from sluice.record_values.schemas import NO_MESSAGE, SchemaText

Conversion = Callable[[Any], Any]
"""Converts the value of a field into the value of a column."""

_SAME_ENCODING: tuple[frozenset[int], ...] = (
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
"""Types that have the same encoding, so that a schema may replace one by the other."""


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


def incompatible_fields(writer: Descriptor, reader: Descriptor) -> tuple[str, ...]:
    """Describe the fields that a reader would decode wrongly: the writer uses the same number for another type."""
    return tuple(_incompatible_fields(writer, reader, "", frozenset()))


def _incompatible_fields(
    writer: Descriptor, reader: Descriptor, place: str, above: frozenset[tuple[str, str]]
) -> Iterator[str]:
    pair = (writer.full_name, reader.full_name)
    if pair in above:
        return
    for number, field in reader.fields_by_number.items():
        written = writer.fields_by_number.get(number)
        if written is None:
            continue
        if not _is_readable(written, field):
            yield f"{place}{field.name} ({number}) was {_type_name(written)} and is {_type_name(field)}"
        elif field.message_type is not None and written.message_type is not None:
            yield from _incompatible_fields(
                written.message_type, field.message_type, f"{place}{field.name}.", above | {pair}
            )


def _is_readable(written: FieldDescriptor, field: FieldDescriptor) -> bool:
    if written.is_repeated != field.is_repeated or is_map(written) != is_map(field):
        return False
    return written.type == field.type or any({written.type, field.type} <= group for group in _SAME_ENCODING)


def _type_name(field: FieldDescriptor) -> str:
    kind = "map" if is_map(field) else KIND_NAMES[field.type]
    return f"repeated {kind}" if field.is_repeated and not is_map(field) else kind


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
