"""Finds JSON objects that have a key twice, of which a decoder takes the last silently.

A record that has no key twice is recognised without parsing it again: what was decoded, written as JSON, has as many
quotation marks as the record, because each key and each text has two. A field that is not declared has marks of
its own; then the whole record is decoded and written, and only if marks are missing still, Python looks at each key.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec

_MARK = b'"'
_ESCAPED_MARK = rb"\u0022"
"""A quotation mark within a text that is written without one."""

_encoder = msgspec.json.Encoder()
_Objects = list[tuple[str, Any]]


class _RepeatedKeyError(ValueError):
    """A key is there twice."""


def repeated_keys(values: Sequence[bytes], decoded: Sequence[Any]) -> dict[int, str]:
    """Find the values in which an object has a key twice.

    Parameters
    ----------
    values: JSON texts. decoded: what msgspec has decoded of each, without the fields that were not sent.

    Returns
    -------
    The repeated key, by the index of the value.
    """
    text = b"".join(values)
    if _ESCAPED_MARK not in text:
        marks = text.count(_MARK)
        if marks == _encoder.encode_lines(decoded).count(_MARK) or marks == _marks_of_whole(values):
            return {}
    found = ((index, _repeated_key(value)) for index, value in enumerate(values))
    return {index: key for index, key in found if key is not None}


def _marks_of_whole(values: Sequence[bytes]) -> int | None:
    """The marks of all values when they are decoded and written whole; None when one cannot be."""
    try:
        return _encoder.encode_lines([msgspec.json.decode(value) for value in values]).count(_MARK)
    except msgspec.DecodeError:  # a number that no Python number holds, in a field that is not declared
        return None


def _repeated_key(value: bytes) -> str | None:
    if _ESCAPED_MARK not in value and value.count(_MARK) == _marks_of_whole([value]):
        return None
    try:
        json.loads(value, object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=str)
    except _RepeatedKeyError as error:
        return str(error)
    return None


def _object(pairs: _Objects) -> None:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise _RepeatedKeyError(next(key for index, key in enumerate(keys) if key in keys[:index]))
