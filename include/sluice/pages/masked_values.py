"""Masks the declared columns of a stream within a quarantined value. Pure.

A quarantined value is one that did not fit, so a masked field may lie elsewhere than declared. It is therefore looked
for at every depth, whatever the case of its letters, also within text that is JSON itself. What stands in the place of
an object that has a masked field is masked as a whole. A value in which the fields cannot be found is hidden.
"""

from __future__ import annotations

import base64
import csv
import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

MASK = "•••"
"""Stands in the place of a masked value."""

LONGEST_SEARCHED = 65_536
"""The most characters in which masked fields are looked for: parsing takes milliseconds. Longer values are hidden."""

_TOO_LONG = f"it is longer than the {LONGEST_SEARCHED:,} characters in which masked columns are looked for"
_NO_OBJECT = "it is not a JSON object, so its masked columns cannot be found"
_NO_LINE = "it does not have the fields of a line of the input, so its masked columns cannot be found"

_BASE64 = re.compile(r"[A-Za-z0-9+/]{8,}={0,2}")
_Path = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedValue:
    """A value as it may be shown.

    text: empty when the whole value is hidden. hidden_because: why it is; empty when it is shown.
    """

    text: str
    hidden_because: str = ""


def hidden(because: str) -> MaskedValue:
    """A value that is not shown at all."""
    return MaskedValue(text="", hidden_because=because)


def masked_json(text: str, columns: Iterable[str]) -> MaskedValue:
    """Mask the columns in a JSON object, or in a list of objects.

    Parameters
    ----------
    columns: the masked ones, as `email` or `address.street`.

    Returns
    -------
    The value with everything else as it was sent: repeated keys and the digits of numbers too.
    """
    if len(text) > LONGEST_SEARCHED:
        return hidden(_TOO_LONG)
    masking = _Masking(columns)
    try:
        document = _parsed(text)
        if not _has_objects(document):
            return hidden(_NO_OBJECT)
        return MaskedValue(text=_written(masking.of(document)))
    except (ValueError, RecursionError):
        return hidden(_NO_OBJECT)


def masked_line(text: str, names: Sequence[str], columns: Iterable[str]) -> MaskedValue:
    """Mask the columns in a line of csv. names: those of the line's fields, in their order."""
    if len(text) > LONGEST_SEARCHED:
        return hidden(_TOO_LONG)
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return hidden(_NO_LINE)
    if len(lines) != 1 or len(lines[0]) != len(names):
        return hidden(_NO_LINE)
    masking = _Masking(columns)
    try:
        fields = [masking.of_field(name, value) for name, value in zip(names, lines[0], strict=True)]
    except RecursionError:
        return hidden(_NO_LINE)
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return MaskedValue(text=line.getvalue())


class _Literal(str):
    """A number as it was written."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """The fields of a JSON object in their order, repeated keys too."""


class _Masking:
    """Walks through values."""

    def __init__(self, columns: Iterable[str]) -> None:
        self._paths = frozenset(tuple(path.casefold().split(".")) for path in columns)

    def of(self, value: Any) -> Any:
        """The value with masks."""
        return self._of(value, self._paths, begun=False)

    def of_field(self, key: str, value: Any) -> Any:
        """The value of a field with masks, or the mask in its place."""
        return self._of_field(key, value, self._paths)

    def _of(self, value: Any, paths: frozenset[_Path], *, begun: bool) -> Any:
        """The value with masks.

        Parameters
        ----------
        paths: the masked ones, and what is left of those of which an object above is the beginning.
        begun: whether one begins with this very value, which should be an object then.
        """
        if isinstance(value, _Object):
            return _Object((key, self._of_field(key, inner, paths)) for key, inner in value)
        if isinstance(value, list):
            return [self._of(one, paths, begun=begun) for one in value]
        if isinstance(value, str) and not isinstance(value, _Literal) and _may_hold_json(value):
            return self._within_text(value, paths, begun=begun)
        if isinstance(value, str) and _is_encoded_json(value):
            return _masked(value)
        return _masked(value) if begun else value

    def _of_field(self, key: str, value: Any, paths: frozenset[_Path]) -> Any:
        name = key.casefold()
        left = frozenset(path[1:] for path in paths if path[0] == name)
        return _masked(value) if () in left else self._of(value, paths | left, begun=bool(left))

    def _within_text(self, text: str, paths: frozenset[_Path], *, begun: bool) -> Any:
        try:
            document = _parsed(_without_mark(text))
        except ValueError:
            return _masked(text)
        return _written(self._of(document, paths, begun=begun))


def _masked(value: Any) -> Any:
    return None if value is None else MASK


def _may_hold_json(text: str) -> bool:
    """Whether a text begins as an object or a list, or is a text of JSON itself: what was written as JSON twice."""
    begun = _without_mark(text)
    if not begun.startswith('"'):
        return begun[:1] in ("{", "[")
    try:
        return isinstance(json.loads(begun), str)
    except ValueError:
        return False


def _without_mark(text: str) -> str:
    """The text without a mark of the order of its bytes, and without spaces, before it."""
    return text.lstrip().removeprefix("\ufeff").lstrip()


def _is_encoded_json(text: str) -> bool:
    """Whether a text is the Base64 of JSON: bytes within a record that was written as JSON."""
    if len(text) % 4 or _BASE64.fullmatch(text) is None:
        return False
    return base64.b64decode(text).lstrip()[:1] in (b"{", b"[")


def _parsed(text: str) -> Any:
    return json.loads(
        text, object_pairs_hook=_Object, parse_int=_Literal, parse_float=_Literal, parse_constant=_Literal
    )


def _has_objects(document: Any) -> bool:
    """Whether it is an object, or a list of nothing else: a text or a number alone has no columns."""
    if isinstance(document, list) and not isinstance(document, _Object):
        return bool(document) and all(isinstance(one, _Object) for one in document)
    return isinstance(document, _Object)


def _written(value: Any) -> str:
    if isinstance(value, _Object):
        return "{" + ", ".join(f"{_quoted(key)}: {_written(inner)}" for key, inner in value) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_written(one) for one in value) + "]"
    if isinstance(value, _Literal):
        return str(value)
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
