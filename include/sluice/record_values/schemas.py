"""The schemas of values: the text, the schema in a registry, what a decoder needs, and the prefix of a value that names
its schema in a registry: a zero byte, the schema's id, and for Protobuf the message.

confluent-kafka's deserializers read the same format, and more: they take the place of the decoder and keep no reason
per value. Importing them takes more than a second in each of Spark's Python workers.

Source: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from sluice.declarations.value_declaration import Column, UnknownFieldPolicy
from sluice.record_values.rejection import LARGEST_VALUE_BYTES, RejectedValueError, Rejection, RejectionKind
from sluice.settings import SchemaRegistryConnection

ValueFormat = Literal["json", "avro", "protobuf"]

FORMATS_OF_REGISTRY: Mapping[str, ValueFormat] = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
"""The formats by the names that a registry uses for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaText:
    """A schema and the schemas that it imports, by their names in the imports, each after its own imports."""

    text: str
    imports: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema in a registry."""

    format: ValueFormat
    schema: SchemaText


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingLimits:
    """What a value may cost.

    seconds: the longest that the decoding of a value may take; a block has more time if it is large.
    tries: how often a value is decoded alone before it is rejected, because a process may also die for another reason.
    """

    seconds: float = 30
    tries: int = 3

    def seconds_of(self, values: Sequence[bytes | None]) -> float:
        """The longest that the decoding of some values may take."""
        return self.seconds * (1 + sum(len(value or b"") for value in values) // LARGEST_VALUE_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """How the values of an input are read. It is sent to Spark's workers pickled, so that no secret is part of a plan.

    columns: the columns that the values become.
    reader: the schema that the columns were derived from; None when it is not of the same format.
    message: the name of a Protobuf message; None for the first of the schema.
    registry: the registry of the schemas that values name by id; None when values carry no id.
    limits: what the decoding of a value may cost.
    on_unknown_field: what becomes of a value that has a field without a column.
    """

    format: ValueFormat
    columns: tuple[Column, ...]
    reader: SchemaText | None = None
    message: str | None = None
    registry: SchemaRegistryConnection | None = None
    limits: DecodingLimits = field(default_factory=DecodingLimits)
    on_unknown_field: UnknownFieldPolicy = "ignore"

    @property
    def rejects_undeclared(self) -> bool:
        """Whether a value is rejected for such a field, by which a stream may also be stopped."""
        return self.on_unknown_field != "ignore"


MAGIC_BYTE = b"\x00"
PREFIX_BYTES = 5
"""The zero byte and the four bytes of the schema's id, most significant first."""

NO_SCHEMA_ID = Rejection(kind=RejectionKind.NO_SCHEMA_ID, quotes_data=False)

NO_MESSAGE = Rejection(kind=RejectionKind.NO_MESSAGE, quotes_data=False)
_MOST_MESSAGES_DEEP = 16
_MOST_BITS = 35


def read_schema_id(value: bytes) -> tuple[int, bytes]:
    """Split a value into the id of the schema that it was written with and the content.

    Raises
    ------
    RejectedValueError: when the value does not begin with an id.
    """
    if len(value) < PREFIX_BYTES or not value.startswith(MAGIC_BYTE):
        raise RejectedValueError(NO_SCHEMA_ID)
    return int.from_bytes(value[1:PREFIX_BYTES], "big"), value[PREFIX_BYTES:]


def read_message_indexes(content: bytes) -> tuple[tuple[int, ...], bytes]:
    """Split content into the indexes of its message in a Protobuf schema, outermost first, and the message.

    Indexes are written as zigzag varints, preceded by their count.

    Raises
    ------
    RejectedValueError: when the content does not begin with indexes.
    """
    count, position = _zigzag(content, 0)
    if count == 0:
        return (0,), content[position:]
    if not 0 < count <= _MOST_MESSAGES_DEEP:
        raise RejectedValueError(NO_MESSAGE)
    indexes = []
    for _ in range(count):
        index, position = _zigzag(content, position)
        indexes.append(index)
    return tuple(indexes), content[position:]


def _zigzag(content: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(content) and shift < _MOST_BITS:
        byte = content[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise RejectedValueError(NO_MESSAGE)
