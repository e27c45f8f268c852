"""What stands before a value whose schema is in a registry: a zero byte, the schema's id, for Protobuf the message.

Source: https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

from dataclasses import dataclass

from sluice.record_values.unfit import UnfitError

HEAD = b"\x00"
HEAD_BYTES = 5
"""The zero byte, and four of the schema's id, the highest first."""

NO_FRAME = "the value does not begin with the id of a schema in a registry"

_MOST_MESSAGES_DEEP = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A value without its head. schema_id: of the schema that it was written with."""

    schema_id: int
    content: bytes


def read_frame(value: bytes) -> Frame:
    """Take the head off a value.

    Raises
    ------
    UnfitError: when it has none.
    """
    if len(value) < HEAD_BYTES or not value.startswith(HEAD):
        raise UnfitError(NO_FRAME)
    return Frame(schema_id=int.from_bytes(value[1:HEAD_BYTES], "big"), content=value[HEAD_BYTES:])


def read_message_indexes(content: bytes) -> tuple[tuple[int, ...], bytes]:
    """The way to a value's message within its Protobuf schema, and the message: zigzag numbers, the first their count.

    Raises
    ------
    UnfitError: when there are none.
    """
    count, position = _zigzag(content, 0)
    if count == 0:
        return (0,), content[position:]
    if not 0 < count <= _MOST_MESSAGES_DEEP:
        raise UnfitError("the value does not say which message it is")
    indexes = []
    for _ in range(count):
        index, position = _zigzag(content, position)
        indexes.append(index)
    return tuple(indexes), content[position:]


def _zigzag(content: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while position < len(content) and shift < 35:
        byte = content[position]
        position += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), position
    raise UnfitError("the value does not say which message it is")
