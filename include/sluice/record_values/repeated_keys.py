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
_decode = msgspec.json.Decoder().decode
_Objects = list[tuple[str, Any]]


class _RepeatedKeyError(ValueError):
    """A key is there twice."""


def has_other_keys(values: Sequence[bytes], decoded: Sequence[Any]) -> bool:
    """Whether some of the values have keys that are not declared, or that are there twice.

    Parameters
    ----------
    values: JSON texts. decoded: what msgspec has decoded of each, without the fields that were not sent.
    """
    text = b"".join(values)
    return _ESCAPED_MARK in text or text.count(_MARK) != _encoder.encode_lines(decoded).count(_MARK)


def repeated_keys(values: Sequence[bytes], whole: Sequence[Any] | None) -> dict[int, str]:
    """Find the values in which an object has a key twice.

    Parameters
    ----------
    values: JSON texts. whole: what `whole_objects` makes of them.

    Returns
    -------
    The repeated key, by the index of the value.
    """
    text = b"".join(values)
    if (
        _ESCAPED_MARK not in text
        and whole is not None
        and text.count(_MARK) == _encoder.encode_lines(whole).count(_MARK)
    ):
        return {}
    suspects = [index for index, value in enumerate(values) if whole is None or not _has_all_marks(value, whole[index])]
    return {index: key for index in suspects if (key := _repeated_key(values[index])) is not None}


def _has_all_marks(value: bytes, whole: Any) -> bool:
    return _ESCAPED_MARK not in value and value.count(_MARK) == _encoder.encode(whole).count(_MARK)


def whole_objects(values: Sequence[bytes]) -> list[Any] | None:
    """The values with all their fields; None when one has a number that no Python number holds."""
    try:
        return [_decode(value) for value in values]
    except msgspec.DecodeError:
        return None


def _repeated_key(value: bytes) -> str | None:
    try:
        json.loads(value, object_pairs_hook=_object, parse_int=str, parse_float=str, parse_constant=str)
    except _RepeatedKeyError as error:
        return str(error)
    return None


def _object(pairs: _Objects) -> None:
    keys = [key for key, _ in pairs]
    if len(set(keys)) < len(keys):
        raise _RepeatedKeyError(next(key for index, key in enumerate(keys) if key in keys[:index]))
