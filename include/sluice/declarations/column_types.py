"""The Iceberg types a declaration may give a column, read from their names without pyiceberg or pyspark.

Source: https://iceberg.apache.org/spec/#schemas-and-data-types (format version 2)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

PRIMITIVES = (
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "date",
    "timestamp",
    "timestamptz",
    "string",
    "uuid",
    "binary",
)
"""All but `time`, which Spark can neither read nor write in an Iceberg table."""

LARGEST_PRECISION = 38
DEEPEST_TYPE = 8
"""Nested types deeper than this are rejected: they are unreadable, and every level is a recursion."""

_TOKEN = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_]*|[0-9]{1,9}|[<>\[\](),:?])")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_ALLOWED = (
    f"allowed are {', '.join(PRIMITIVES)}, decimal(precision, scale), fixed[length], list<type>, map<type, type> and "
    "struct<name: type, …>"
)


@dataclass(frozen=True, slots=True)
class PrimitiveType:
    """A type without parameters, by its Iceberg name."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DecimalType:
    """An exact number of `precision` digits, `scale` of them behind the point."""

    precision: int
    scale: int


@dataclass(frozen=True, slots=True)
class FixedType:
    """Exactly `length` bytes."""

    length: int


@dataclass(frozen=True, slots=True)
class ListType:
    """Any number of optional elements of one type."""

    element: ColumnType


@dataclass(frozen=True, slots=True, kw_only=True)
class MapType:
    """Keys with optional values."""

    key: ColumnType
    value: ColumnType


@dataclass(frozen=True, slots=True)
class StructType:
    """Named optional fields, in order."""

    fields: tuple[tuple[str, ColumnType], ...]


ColumnType: TypeAlias = PrimitiveType | DecimalType | FixedType | ListType | MapType | StructType


def kind_of(column_type: ColumnType) -> str:
    """The Iceberg name of a type without its parameters, for example `decimal`."""
    if isinstance(column_type, PrimitiveType):
        return column_type.name
    return type(column_type).__name__.removesuffix("Type").lower()


def described_type(path: str, column_type: ColumnType) -> Iterator[tuple[str, str]]:
    """A type in words with its path; of one with types inside which kind it is, then each of those with its path."""
    match column_type:
        case DecimalType(precision=precision, scale=scale):
            yield path, f"decimal({precision}, {scale})"
        case FixedType(length=length):
            yield path, f"fixed[{length}]"
        case _:
            yield path, kind_of(column_type)
    match column_type:
        case ListType(element=element):
            yield from described_type(f"{path}.element", element)
        case MapType(key=key, value=value):
            yield from described_type(f"{path}.key", key)
            yield from described_type(f"{path}.value", value)
        case StructType(fields=fields):
            for name, kind in fields:
                yield from described_type(f"{path}.{name}", kind)


def holds_map(column_type: ColumnType) -> bool:
    """Whether a type is a map or has one inside: such values have no order, and Spark does not compare them."""
    match column_type:
        case MapType():
            return True
        case ListType(element=element):
            return holds_map(element)
        case StructType(fields=fields):
            return any(holds_map(kind) for _, kind in fields)
    return False


def parse_column_type(text: str) -> ColumnType:
    """Read a type such as `long`, `decimal(9, 2)` or `list<struct<name: string>>`.

    Raises
    ------
    ValueError: when it is not an Iceberg type of format version 2; the message names those that are.
    """
    reading = _Reading(text)
    parsed = reading.type(depth=1)
    reading.expect_end()
    return parsed


class _Reading:
    """One walk over the words of a type."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def type(self, *, depth: int) -> ColumnType:
        if depth > DEEPEST_TYPE:
            raise ValueError(f"a type is nested at most {DEEPEST_TYPE} levels deep")
        word = self._next()
        if word in PRIMITIVES:
            return PrimitiveType(word)
        match word:
            case "decimal":
                return self._decimal()
            case "fixed":
                self._expect("[")
                length = self._number(smallest=1, largest=2**20)
                self._expect("]")
                return FixedType(length)
            case "list":
                self._expect("<")
                element = self.type(depth=depth + 1)
                self._expect(">")
                return ListType(element)
            case "map":
                return self._map(depth=depth + 1)
            case "struct":
                return self._struct(depth=depth + 1)
        raise self._refusal()

    def expect_end(self) -> None:
        if self._text[self._position :].strip():
            raise self._refusal()

    def _decimal(self) -> DecimalType:
        self._expect("(")
        precision = self._number(smallest=1, largest=LARGEST_PRECISION)
        self._expect(",")
        scale = self._number(smallest=0, largest=precision)
        self._expect(")")
        return DecimalType(precision=precision, scale=scale)

    def _map(self, *, depth: int) -> MapType:
        self._expect("<")
        key = self.type(depth=depth)
        self._expect(",")
        value = self.type(depth=depth)
        self._expect(">")
        return MapType(key=key, value=value)

    def _struct(self, *, depth: int) -> StructType:
        self._expect("<")
        fields: dict[str, ColumnType] = {}
        known: set[str] = set()
        separator = ","
        while separator == ",":
            name = self._next()
            if not _COLUMN.fullmatch(name):
                raise self._refusal()
            if name.lower() in known:
                raise ValueError(f"the type has the field {name} twice: Spark takes upper and lower case for the same")
            known.add(name.lower())
            self._expect(":")
            fields[name] = self.type(depth=depth)
            separator = self._next()
        if separator != ">":
            raise self._refusal()
        return StructType(tuple(fields.items()))

    def _number(self, *, smallest: int, largest: int) -> int:
        word = self._next()
        if not word.isdigit() or not smallest <= int(word) <= largest:
            raise ValueError(f"a number from {smallest} to {largest} is needed in the type {self._text!r}")
        return int(word)

    def _expect(self, word: str) -> None:
        if self._next() != word:
            raise self._refusal()

    def _next(self) -> str:
        match = _TOKEN.match(self._text, self._position)
        if match is None:
            raise self._refusal()
        self._position = match.end()
        return match[1]

    def _refusal(self) -> ValueError:
        return ValueError(f"this is not a column type; {_ALLOWED}")
