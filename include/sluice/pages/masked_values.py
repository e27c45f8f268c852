"""What may be shown of a quarantined value of a stream with masked columns. Pure.

Nothing is shown unless it is known to be harmless: a value only under a declared name that is not masked, at its
declared path and with its declared type. Of everything else the name and the type are shown, which suffices to see what
a producer changed. A quarantined value is one that did not fit, so a masked value may lie anywhere in it: when a masked
column is not at its place with its type, no text is shown, and nothing of a type that a masked column has.
"""

from __future__ import annotations

import csv
import io
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any

from sluice.declarations.column_types import (
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from sluice.record_values.arrow_columns import ColumnBuilder, text_builder

MASK = "•••"
"""Stands in the place of what is not shown."""

LONGEST_SEARCHED = 65_536
"""The most characters of a value that is looked into: parsing takes milliseconds. Longer values are hidden."""

_TOO_LONG = f"it is longer than the {LONGEST_SEARCHED:,} characters that are looked into where columns are masked"
_NO_OBJECT = "it is not a JSON object, so its masked columns cannot be found"
_NO_LINE = "it does not have the fields of a line of the input, so its masked columns cannot be found"

_Path = tuple[str, ...]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]{1,2}")
_COMMON_WORDS = frozenset(
    (
        *("address", "at", "by", "code", "created", "customer", "data", "date", "day", "email", "first", "from", "id"),
        *("is", "key", "last", "line", "mail", "name", "new", "no", "nr", "number", "of", "old", "phone", "postal"),
        *("record", "street", "text", "the", "time", "timestamp", "to", "type", "updated", "user", "value", "version"),
    )
)
"""Words of which names of fields are made. A name that consists of these and of words of the declaration is shown: an
object may also have data as its keys."""


class _Family(StrEnum):
    """What values of one kind may be mistaken for another's."""

    TEXT = "text"
    NUMBER = "number"
    BOOLEAN = "boolean"
    TIME = "time"
    UUID = "uuid"
    BYTES = "bytes"


_FAMILIES: Mapping[str, _Family] = {
    "string": _Family.TEXT,
    "uuid": _Family.UUID,
    "boolean": _Family.BOOLEAN,
    "binary": _Family.BYTES,
    **dict.fromkeys(("int", "long", "float", "double"), _Family.NUMBER),
    **dict.fromkeys(("date", "timestamp", "timestamptz"), _Family.TIME),
}


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


def masked_json(text: str, columns: StructType, masked: Iterable[str]) -> MaskedValue:
    """What may be shown of a JSON object.

    Parameters
    ----------
    columns: those that are declared. masked: which of them are, as `email` or `address.street`.
    """
    if len(text) > LONGEST_SEARCHED:
        return hidden(_TOO_LONG)
    try:
        document = _parsed(text)
        if not isinstance(document, _Object):
            return hidden(_NO_OBJECT)
        return MaskedValue(text=_written(_Showing(document, columns, masked).shown()))
    except (ValueError, RecursionError):
        return hidden(_NO_OBJECT)


def masked_line(text: str, columns: StructType, masked: Iterable[str]) -> MaskedValue:
    """What may be shown of a line of csv, whose fields have no names: those that fit their column, but no text, and
    nothing of a type that a masked column has. columns: those of the line's fields, in their order.
    """
    if len(text) > LONGEST_SEARCHED:
        return hidden(_TOO_LONG)
    try:
        lines = list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error:
        return hidden(_NO_LINE)
    if len(lines) != 1 or len(lines[0]) != len(columns.fields):
        return hidden(_NO_LINE)
    paths = _paths(masked)
    secret = {_Family.TEXT, _Family.BYTES} | {
        family for path in paths for kind in _types_at(columns, path) for family in _families(kind)
    }
    names = {path[0] for path in paths}
    fields = [
        value if not value or (name not in names and _is_of(value, kind, secret)) else MASK
        for (name, kind), value in zip(columns.fields, lines[0], strict=True)
    ]
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return MaskedValue(text=line.getvalue())


class _Literal(str):
    """A number as it was written."""

    __slots__ = ()


class _Object(list[tuple[str, Any]]):
    """The fields of a JSON object in their order, repeated keys too."""


@dataclass(frozen=True, slots=True)
class _Absent:
    """Stands for a column that a value does not have once."""


class _Showing:
    """Decides about each part of one object."""

    def __init__(self, document: _Object, columns: StructType, masked: Iterable[str]) -> None:
        self._document, self._columns, self._paths = document, columns, _paths(masked)
        self._words = _COMMON_WORDS | {
            word
            for name in (*_names(columns), *(name for path in self._paths for name in path))
            for word in _words(name)
        }
        self._whole_names = {_bare(name) for name in _names(columns)} | {_bare("".join(path)) for path in self._paths}
        lost: set[_Family] = set()
        self._masked_texts: list[str] = []
        for path in self._paths:
            if kinds := list(_types_at(columns, path)):
                found = list(_values_at(document, columns, path))
                if not found or not all(_fits(value, kind) for value, kind in found):
                    lost |= {_Family.TEXT, *(family for kind in kinds for family in _families(kind))}
                self._masked_texts += [one for value, _ in found for one in _texts(value)]
        self._secret = {_Family.BYTES, *lost}

    def shown(self) -> Any:
        """The object with masks."""
        return self._of(self._document, self._columns, self._paths)

    def _of(self, value: Any, kind: ColumnType | None, paths: frozenset[_Path]) -> Any:
        """A part with masks.

        Parameters
        ----------
        kind: the declared type; none where nothing is declared. paths: the rest of the masked ones, from here.
        """
        if value is None:
            return None
        if isinstance(value, _Object):
            repeated = {key for key, count in Counter(key for key, _ in value).items() if count > 1}
            return _Object(self._field(key, inner, kind, paths, is_repeated=key in repeated) for key, inner in value)
        if isinstance(value, list):
            return [self._of(one, kind.element if isinstance(kind, ListType) else None, paths) for one in value]
        is_shown = kind is not None and not paths and _fits_leaf(value, kind, self._secret) and not self._repeats(value)
        return value if is_shown else _typed_mask(value)

    def _field(
        self, key: str, value: Any, kind: ColumnType | None, paths: frozenset[_Path], *, is_repeated: bool
    ) -> tuple[str, Any]:
        inner: ColumnType | None = None
        name = key if self._is_name(key) else MASK
        if isinstance(kind, StructType):
            inner = None if is_repeated else dict(kind.fields).get(key)
        elif isinstance(kind, MapType):
            inner, name = kind.value, key if self._is_shown_key(key, kind.key) else name
        left = frozenset(path[1:] for path in paths if path[0] == key)
        return (name, _typed_mask(value)) if () in left else (name, self._of(value, inner, left))

    def _is_name(self, key: str) -> bool:
        """Whether a key is known to be a name: it may be data as well."""
        if _NAME.fullmatch(key) is None:
            return False
        return _bare(key) in self._whole_names or {*_words(key)} <= self._words

    def _is_shown_key(self, key: str, kind: ColumnType) -> bool:
        return _is_of(key, kind, self._secret) and not self._repeats(key)

    def _repeats(self, value: Any) -> bool:
        """Whether a text holds what was found in a masked column."""
        if isinstance(value, _Literal):
            return value in self._masked_texts
        return isinstance(value, str) and any(one in value.casefold() for one in self._masked_texts)


def _paths(masked: Iterable[str]) -> frozenset[_Path]:
    return frozenset(tuple(path.split(".")) for path in masked)


def _types_at(kind: ColumnType, path: _Path) -> Iterator[ColumnType]:
    """The declared type at a path; none when it leads nowhere. A text may be JSON itself, so a path may end before."""
    if not path:
        yield kind
        return
    match kind:
        case StructType(fields):
            if (inner := dict(fields).get(path[0])) is not None:
                yield from _types_at(inner, path[1:])
        case ListType(element):
            yield from _types_at(element, path)
        case MapType(value=value):
            yield from _types_at(value, path[1:])
        case PrimitiveType("string"):
            yield kind


def _values_at(value: Any, kind: ColumnType, path: _Path) -> Iterator[tuple[Any, ColumnType]]:
    """What a value has at a path, each with its declared type; `_Absent` for what is missing, repeated or misplaced."""
    match kind:
        case ListType(element) if path:
            for one in value if isinstance(value, list) and not isinstance(value, _Object) else (_Absent(),):
                yield from _values_at(one, element, path)
        case StructType() | MapType() if path:
            inner = kind.value if isinstance(kind, MapType) else dict(kind.fields)[path[0]]
            held = [one for key, one in value if key == path[0]] if isinstance(value, _Object) else []
            yield from _values_at(held[0] if len(held) == 1 else _Absent(), inner, path[1:])
        case _:
            yield value, kind


def _families(kind: ColumnType) -> Iterator[_Family]:
    """What the values within a type are."""
    match kind:
        case PrimitiveType(name):
            yield _FAMILIES[name]
        case DecimalType():
            yield _Family.NUMBER
        case FixedType():
            yield _Family.BYTES
        case ListType(element):
            yield from _families(element)
        case MapType(key=key, value=value):
            yield from (*_families(key), *_families(value))
        case StructType(fields):
            for _, inner in fields:
                yield from _families(inner)


def _fits(value: Any, kind: ColumnType) -> bool:
    """Whether a value is one of a type, and not null."""
    match kind:
        case ListType(element):
            return isinstance(value, list) and not isinstance(value, _Object) and all(_fits(v, element) for v in value)
        case MapType(value=inner):
            return isinstance(value, _Object) and all(_fits(v, inner) for _, v in value)
        case StructType(fields):
            return isinstance(value, _Object) and all(
                any(key == name and _fits(v, inner) for key, v in value) for name, inner in fields
            )
    return _fits_leaf(value, kind, set())


def _fits_leaf(value: Any, kind: ColumnType, secret: set[_Family]) -> bool:
    """Whether a value of JSON is one of a type without parts that is no secret."""
    match kind:
        case PrimitiveType("boolean"):
            return isinstance(value, bool) and _Family.BOOLEAN not in secret
        case PrimitiveType("int" | "long" | "float" | "double"):
            return isinstance(value, _Literal) and _is_of(value, kind, secret)
        case PrimitiveType("string"):
            return isinstance(value, str) and not isinstance(value, _Literal) and _Family.TEXT not in secret
        case DecimalType():
            return isinstance(value, str) and _is_of(value, kind, secret)
        case PrimitiveType() | FixedType():
            return isinstance(value, str) and not isinstance(value, _Literal) and _is_of(value, kind, secret)
    return False


def _is_of(text: str, kind: ColumnType, secret: set[_Family]) -> bool:
    """Whether a text is written as a value of a type without parts that is no secret."""
    if not secret.isdisjoint(_families(kind)) or isinstance(kind, ListType | MapType | StructType):
        return False
    reported: list[int] = []
    try:
        _builder(kind)([text], "", lambda index, path, need: reported.append(index))
    except (ValueError, OverflowError):  # such as half of a character
        return False
    return not reported


@lru_cache(maxsize=256)
def _builder(kind: ColumnType) -> ColumnBuilder:
    return text_builder(kind)


def _texts(value: Any) -> Iterator[str]:
    """The texts and numbers within a masked value, in small letters; not those that any other value may hold too."""
    if isinstance(value, _Object):
        value = [part for pair in value for part in pair]
    if isinstance(value, list):
        for one in value:
            yield from _texts(one)
    elif isinstance(value, str) and len(value.strip()) > 1:
        yield value.strip().casefold()


def _typed_mask(value: Any) -> str | None:
    """The mask with the type of what is not shown."""
    match value:
        case None:
            return None
        case bool():
            return f"{MASK} (boolean)"
        case _Literal():
            return f"{MASK} (number)"
        case str():
            return f"{MASK} (text)"
        case _Object():
            return f"{MASK} (object)"
    return f"{MASK} (list)"


def _names(kind: ColumnType) -> Iterator[str]:
    """The declared names within a type."""
    match kind:
        case StructType(fields):
            for name, inner in fields:
                yield name
                yield from _names(inner)
        case ListType(element):
            yield from _names(element)
        case MapType(value=value):
            yield from _names(value)


def _words(name: str) -> Iterator[str]:
    return (word.casefold() for word in _WORD.findall(name))


def _bare(name: str) -> str:
    """A name without what is between its words."""
    return "".join(letter for letter in unicodedata.normalize("NFKC", name).casefold() if letter.isalnum())


def _parsed(text: str) -> Any:
    return json.loads(
        text, object_pairs_hook=_Object, parse_int=_Literal, parse_float=_Literal, parse_constant=_Literal
    )


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
