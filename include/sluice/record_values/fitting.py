"""Brings decoded values into the types of columns; what does not fit is told, never rounded or cut.

pyarrow itself takes 1.5 for the whole number 1 and a number for a time, so that every value is looked at first where
nobody knows that it was read with the columns' own schema.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from sluice.declarations.column_types import (
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from sluice.record_values.unfit import UnfitError

Fit = Callable[[Any], Any]
"""Brings a value that is not null into a type. Raises UnfitError when it cannot."""

_ARROW: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "string": pa.string(),
    "uuid": pa.string(),
    "binary": pa.binary(),
}


def arrow_type(column_type: ColumnType) -> pa.DataType:
    """The type in which Arrow hands a column to Spark."""
    match column_type:
        case PrimitiveType(name):
            return _ARROW[name]
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


def fit_of(column_type: ColumnType) -> Fit:
    """What brings values into a type."""
    match column_type:
        case PrimitiveType(name):
            return _PRIMITIVES[name]
        case DecimalType(precision=precision, scale=scale):
            return _decimal(precision, scale)
        case FixedType(length):
            return _fixed(length)
        case ListType(element):
            return _list(fit_of(element))
        case MapType(key=key, value=value):
            return _map(fit_of(key), fit_of(value))
        case StructType(fields):
            return _struct({name: fit_of(inner) for name, inner in fields})


def _is_a(kind: str, *types: type, but: type | None = None) -> Fit:
    def fit(value: Any) -> Any:
        if isinstance(value, types) and (but is None or not isinstance(value, but)):
            return value
        raise _unfit(value, kind)

    return fit


def _whole(kind: str, bits: int) -> Fit:
    largest = 2 ** (bits - 1) - 1

    def fit(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool) and -largest - 1 <= value <= largest:
            return value
        raise _unfit(value, kind)

    return fit


def _time(kind: str, *, has_zone: bool) -> Fit:
    def fit(value: Any) -> Any:
        if isinstance(value, datetime) and (value.tzinfo is not None) == has_zone:
            return value
        raise _unfit(value, kind)

    return fit


def _number(kind: str, largest: float) -> Fit:
    def fit(value: Any) -> Any:
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _unfit(value, kind)
        is_within = abs(value) <= largest or (isinstance(value, float) and not math.isfinite(value))
        if not is_within:
            raise _unfit(value, kind)
        return float(value)

    return fit


def _uuid(value: Any) -> Any:
    if isinstance(value, UUID | str):
        return str(value)
    raise _unfit(value, "uuid")


def _text(value: Any) -> Any:
    if isinstance(value, str):
        return value
    if isinstance(value, UUID):
        return str(value)
    raise _unfit(value, "string")


def _decimal(precision: int, scale: int) -> Fit:
    kind = f"decimal({precision}, {scale})"

    def fit(value: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = Decimal(value)
        if not isinstance(value, Decimal) or not value.is_finite():
            raise _unfit(value, kind)
        _, digits, exponent = value.as_tuple()
        cut = max(0, -int(exponent) - scale)  # digits that the column has no place for
        whole = len(digits) + int(exponent) if value else 0
        if any(digits[-cut:] if cut else ()) or whole > precision - scale:
            raise _unfit(value, kind)
        return value

    return fit


def _fixed(length: int) -> Fit:
    def fit(value: Any) -> Any:
        if isinstance(value, bytes) and len(value) == length:
            return value
        raise _unfit(value, f"fixed[{length}]")

    return fit


def _list(element: Fit) -> Fit:
    def fit(value: Any) -> Any:
        if not isinstance(value, list):
            raise _unfit(value, "list")
        return [None if one is None else element(one) for one in value]

    return fit


def _map(key: Fit, inner: Fit) -> Fit:
    def fit(value: Any) -> Any:
        if not isinstance(value, Mapping | list):
            raise _unfit(value, "map")
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(key(name), None if one is None else inner(one)) for name, one in pairs]

    return fit


def _struct(fields: Mapping[str, Fit]) -> Fit:
    def fit(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise _unfit(value, "struct")
        found = {name: value.get(name) for name in fields}
        return {name: None if one is None else fields[name](one) for name, one in found.items()}

    return fit


def _date(value: Any) -> Any:
    if isinstance(value, date) and not isinstance(value, datetime):
        return value
    raise _unfit(value, "date")


def _unfit(value: Any, kind: str) -> UnfitError:
    return UnfitError(f"{_told(value)} is no {kind}")


def _told(value: Any) -> str:
    """What kind of value it is; what it says stands in the payload."""
    return "true or false" if isinstance(value, bool) else f"a {type(value).__name__}"


_PRIMITIVES: Mapping[str, Fit] = {
    "boolean": _is_a("boolean", bool),
    "int": _whole("int", 32),
    "long": _whole("long", 64),
    "float": _number("float", float.fromhex("0x1.fffffep+127")),
    "double": _number("double", sys.float_info.max),
    "date": _date,
    "timestamp": _time("timestamp", has_zone=False),
    "timestamptz": _time("timestamptz", has_zone=True),
    "string": _text,
    "uuid": _uuid,
    "binary": _is_a("binary", bytes),
}
