"""Builds Arrow columns from texts and numbers, a block at a time, and finds what a column cannot hold exactly.

Arrow parses times, dates and decimals: it rejects what it would have to round, and a pattern rejects what is only a
part of a time. Both look at a whole block at once; only a block in which something is wrong is read value by value.
"""

from __future__ import annotations

import re
from binascii import a2b_base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET

from sluice.declarations.column_types import (
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from sluice.record_values.rejection import Rejection, lacking

if TYPE_CHECKING:
    Column: TypeAlias = pa.Array[Any]
else:
    Column = pa.Array


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBlock:
    """The columns of a block of values, and why some are rejected.

    columns: one for each declared column, of the length of the block; null where a value is rejected.
    rejections: by the index of a rejected value.
    undeclared: how often each field was sent that no column takes.
    """

    columns: Sequence[Column]
    rejections: dict[int, Rejection] = field(default_factory=dict)
    undeclared: Mapping[str, int] = field(default_factory=dict)


def lacking_values(columns: Mapping[str, Column], required: Iterable[str]) -> dict[int, Rejection]:
    """Why values are rejected that have nothing for required columns, by their indexes."""
    absent: dict[int, list[str]] = {}
    for name in required:
        if columns[name].null_count:
            for index in columns[name].is_null().to_numpy(zero_copy_only=False).nonzero()[0].tolist():
                absent.setdefault(index, []).append(name)
    return {index: lacking(names) for index, names in absent.items()}


Report = Callable[[int, str, str], None]
"""Takes a value that a column cannot hold: its index in the block, its path, and what the column needs."""

ColumnBuilder = Callable[[Any, str, Report], Column]
"""Builds a column from values, their path in the record, and a `Report`. A reported value may be anything there."""

_YEAR = r"(?:[1-9]\d{3}|0[1-9]\d{2}|00[1-9]\d|000[1-9])"
_DAY = rf"{_YEAR}-\d\d-\d\d"
_TIME = rf"{_DAY}[T ]\d\d:\d\d(?::\d\d(?:\.\d{{1,6}})?)?"
_ZONE = r"(?:Z|[+-]\d\d(?::?\d\d)?)"
NUMBER = r"-?\d{1,80}(?:\.\d{1,80})?(?:[eE][+-]?\d{1,3})?"
_HEX = "[0-9a-fA-F]"

LARGEST_FLOAT = float.fromhex("0x1.fffffep+127")
"""The largest finite number of 32 bits."""

_INSTANT = pa.timestamp("us", "UTC")
_LOCAL = pa.timestamp("us")
_FIRST = datetime(1, 1, 1, tzinfo=UTC)
_LAST = datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)

UNITS: Mapping[str, Any] = {"seconds": "s", "milliseconds": "ms", "microseconds": "us", "nanoseconds": "ns"}
"""The declared units of numbers that count from 1970, by Arrow's names."""


def arrow_type(column_type: ColumnType) -> pa.DataType:
    """The Arrow type of a column."""
    match column_type:
        case PrimitiveType(name):
            return ARROW_TYPES[name]
        case DecimalType(precision=precision, scale=scale):
            return pa.decimal128(precision, scale)
        case FixedType():
            return pa.binary()
        case ListType(element):
            return pa.list_(arrow_type(element))
        case MapType(key=key, value=value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case StructType(fields):
            return pa.struct([(name, arrow_type(inner)) for name, inner in fields])


ARROW_TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": _LOCAL,
    "timestamptz": _INSTANT,
    "string": pa.string(),
    "uuid": pa.string(),
    "binary": pa.binary(),
}


def text_builder(column_type: ColumnType, *, unit: str | None = None) -> ColumnBuilder:
    """The builder of a column of texts, as a line of csv has them. Its values may be an Arrow column.

    Parameters
    ----------
    unit: of numbers that count from 1970, for a column of times.

    Raises
    ------
    ValueError: for a type that no text describes.
    """
    match column_type:
        case PrimitiveType(name) if unit is not None:
            whole, counted = text_column_builder(pa.int64(), *_LONG), counted_builder(ARROW_TYPES[name], UNITS[unit])
            return lambda values, path, report: counted(whole(values, path, report), path, report)
        case PrimitiveType("string"):
            return plain_builder(pa.string())
        case PrimitiveType("binary"):
            return base64_builder()
        case FixedType(length):
            return base64_builder(length)
        case PrimitiveType(name):
            return text_column_builder(ARROW_TYPES[name], *{**PATTERNS, **_TEXT_PATTERNS}[name])
        case DecimalType(precision=precision, scale=scale):
            need = f"a number that decimal({precision}, {scale}) holds exactly"
            return text_column_builder(pa.decimal128(precision, scale), NUMBER, need)
    raise ValueError("a field of csv can have none of the types list, map and struct")


def present(value: Any) -> Any:
    """The value; None for a field that was not sent."""
    return None if value is UNSET else value


def plain_builder(kind: pa.DataType) -> ColumnBuilder:
    """The builder of a column whose values were checked when they were decoded."""

    def build(values: list[Any], path: str, report: Report) -> Column:
        return array_of(values, kind)

    return build


def array_of(values: Any, kind: pa.DataType) -> Column:
    """The values as an Arrow column; what is one already stays as it is."""
    if isinstance(values, pa.Array):
        return values
    try:
        return pa.array(values, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError):  # a field that was not sent
        return pa.array([present(value) for value in values], kind)


def text_column_builder(kind: pa.DataType, pattern: str, need: str) -> ColumnBuilder:
    """The builder of a column of texts that match a pattern and that Arrow can parse. need: what the column needs."""
    whole, one = f"^(?:{pattern})$", re.compile(pattern)

    def build(values: list[Any], path: str, report: Report) -> Column:
        texts = array_of(values, pa.string())
        if pc.all(pc.match_substring_regex(texts, whole)).as_py() is not False:
            try:
                return _bounded(texts.cast(kind))
            except (pa.ArrowInvalid, OverflowError):
                pass  # one of them is the day of no month
        return one_by_one(texts.to_pylist(), kind, path, report, need=need, fits=one.fullmatch)

    return build


def base64_builder(length: int | None = None) -> ColumnBuilder:
    """The builder of a column of bytes from texts in base64, as strict as in JSON. length: of a `fixed`, in bytes."""
    need = "bytes in base64" if length is None else f"{length} bytes in base64"

    def bytes_of(text: str) -> bytes | None:
        try:
            found = a2b_base64(text, strict_mode=True)
        except ValueError:  # also for what is not ASCII
            return None
        return found if length in (None, len(found)) else None

    def build(values: list[Any], path: str, report: Report) -> Column:
        texts = array_of(values, pa.string()).to_pylist()
        column = [None if text is None else bytes_of(text) for text in texts]
        for index, (text, found) in enumerate(zip(texts, column, strict=True)):
            if text is not None and found is None:
                report(index, path, need)
        return pa.array(column, pa.binary())

    return build


def one_by_one(
    texts: list[str | None], kind: pa.DataType, path: str, report: Report, *, need: str, fits: Callable[[str], object]
) -> Column:
    """The column of texts of which at least one is to be reported."""
    found: list[Any] = []
    for index, text in enumerate(texts):
        scalar: Any = None
        if text is not None:
            try:
                scalar = _bounded(pa.array([text], pa.string()).cast(kind))[0] if fits(text) else None
            except (pa.ArrowInvalid, OverflowError):
                scalar = None
            if scalar is None:
                report(index, path, need)
        found.append(scalar)
    return pa.array([None if one is None else one.as_py() for one in found], kind)


def counted_builder(kind: pa.DataType, unit: Any) -> ColumnBuilder:
    """Numbers that count from 1970; a fraction of a microsecond, and a year that no column holds, are rejected."""
    zone = kind.tz if pa.types.is_timestamp(kind) else None
    need = (
        f"a number of {next(name for name, short in UNITS.items() if short == unit)} since 1970, in whole microseconds"
    )

    def convert(numbers: Column) -> Column:
        return _bounded(numbers.cast(pa.timestamp(unit)).cast(pa.timestamp("us"))).cast(pa.timestamp("us", zone))

    def build(values: list[Any], path: str, report: Report) -> Column:
        try:
            return convert(array_of(values, pa.int64()))
        except (pa.ArrowInvalid, OverflowError):
            pass  # one of them is too large, for a column or for Arrow
        kept: list[int | None] = []
        for index, number in enumerate(values.to_pylist() if isinstance(values, pa.Array) else map(present, values)):
            kept.append(number)
            try:
                convert(pa.array([number], pa.int64()))
            except (pa.ArrowInvalid, OverflowError):
                report(index, path, need)
                kept[-1] = None
        return convert(pa.array(kept, pa.int64()))

    return build


def _bounded(column: Column) -> Column:
    """The same column.

    Raises
    ------
    OverflowError: when a time is outside of the years 1 to 9999 in UTC, or a number is not finite.
    """
    if pa.types.is_timestamp(column.type):
        ends: Any = pc.min_max(column.cast(pa.int64())).as_py()
        if ends["min"] is not None and (ends["min"] < _FIRST_US or ends["max"] > _LAST_US):
            raise OverflowError
    if pa.types.is_floating(column.type) and pc.any(pc.is_inf(column)).as_py():
        raise OverflowError
    return column


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_US = (_FIRST - _EPOCH).days * 86_400_000_000
_LAST_US = ((_LAST - _EPOCH).days + 1) * 86_400_000_000 - 1


PATTERNS: Mapping[str, tuple[str, str]] = {
    "date": (_DAY, "a date such as 2026-01-31"),
    "timestamp": (_TIME, "a date and a time without a zone, with at most six digits of a second's fraction"),
    "timestamptz": (_TIME + _ZONE, "a date, a time and a zone, with at most six digits of a second's fraction"),
    "uuid": (rf"{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}", "a UUID"),
}
"""How a text is written that becomes a value of a type, and what a column of that type needs."""

_LONG = (r"-?\d{1,19}", "a whole number of 64 bits")
_TEXT_PATTERNS: Mapping[str, tuple[str, str]] = {
    "boolean": ("(?i:true|false)", "true or false"),
    "int": (r"-?\d{1,10}", "a whole number of 32 bits"),
    "long": _LONG,
    "float": (NUMBER, "a number of 32 bits"),
    "double": (NUMBER, "a number of 64 bits"),
}
"""The same for the types that have values of their own in JSON."""
