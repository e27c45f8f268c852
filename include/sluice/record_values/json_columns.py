"""As what msgspec decodes a JSON object of declared columns, and how Arrow columns are built from what it has decoded.

What JSON has no type for is decoded as it was written, and read here: dates, times and UUIDs as text, decimals as the
very digits of the value. msgspec would round the fraction of a second, and Python a decimal. Lists, maps and structs
become their columns by way of the columns of what is in them.

Source: https://jcristharif.com/msgspec/supported-types.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from itertools import accumulate, chain
from operator import attrgetter
from typing import Annotated, Any

import msgspec
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
from sluice.record_values.arrow_columns import (
    ARROW_TYPES,
    LARGEST_FLOAT,
    NUMBER,
    PATTERNS,
    UNITS,
    Column,
    ColumnBuilder,
    Report,
    array_of,
    arrow_type,
    counted_builder,
    one_by_one,
    plain_builder,
    present,
    text_column_builder,
)

_TEXTS = ("string", "uuid", "date", "timestamp", "timestamptz")
_KEYS = {"string": str, "uuid": str, "int": int, "long": int, "date": str}
"""The types of the keys of a map that a JSON object can have, whose keys are text."""


def _whole(bits: int) -> Any:
    largest = 2 ** (bits - 1) - 1
    return Annotated[int, msgspec.Meta(ge=-largest - 1, le=largest)]


_PRIMITIVES: dict[str, Any] = {
    "boolean": bool,
    "int": _whole(32),
    "long": _whole(64),
    "float": Annotated[float, msgspec.Meta(ge=-LARGEST_FLOAT, le=LARGEST_FLOAT)],
    "double": float,
    "binary": bytes,
    **dict.fromkeys(_TEXTS, str),
}


def field_name(index: int) -> str:
    """The attribute that holds a field: the name of a column may be a word that Python reserves."""
    return f"f{index}"


def object_type(fields: Iterable[tuple[str, Any]]) -> type[msgspec.Struct]:
    """The type of a JSON object: a field that was not sent is `msgspec.UNSET`, others are ignored.

    Parameters
    ----------
    fields: the name and the msgspec type of each.
    """
    named = list(fields)
    return msgspec.defstruct(
        "JsonObject",
        [(field_name(index), _optional(kind), msgspec.UNSET) for index, (_, kind) in enumerate(named)],
        rename={field_name(index): name for index, (name, _) in enumerate(named)},
        gc=False,
    )


def json_type(column_type: ColumnType) -> Any:
    """The msgspec type of a column, without null.

    Raises
    ------
    ValueError: for a map whose keys no JSON object can have.
    """
    match column_type:
        case PrimitiveType(name):
            return _PRIMITIVES[name]
        case DecimalType():
            return msgspec.Raw
        case FixedType():
            return bytes
        case ListType(element):
            return list[_optional(json_type(element))]  # type: ignore[misc]  # a type that is made at run time
        case MapType(key=PrimitiveType(name), value=value) if name in _KEYS:
            return dict.__class_getitem__(
                (_PRIMITIVES[name] if _KEYS[name] is int else str, _optional(json_type(value)))
            )
        case MapType():
            raise ValueError(f"the keys of a JSON object can be read as {', '.join(_KEYS)} only")
        case StructType(fields):
            return object_type((name, json_type(inner)) for name, inner in fields)


def _optional(kind: Any) -> Any:
    """The type with null and with absence. Raw text includes null."""
    return kind | msgspec.UnsetType if kind is msgspec.Raw else kind | None | msgspec.UnsetType


def column_builder(column_type: ColumnType, *, unit: str | None = None) -> ColumnBuilder:
    """The builder of a column of decoded values; `json_type` says as what they are decoded.

    Parameters
    ----------
    unit: of numbers that count from 1970, for a column of times.
    """
    match column_type:
        case PrimitiveType(name) if unit is not None:
            return counted_builder(ARROW_TYPES[name], UNITS[unit])
        case PrimitiveType(name) if name in PATTERNS:
            pattern, need = PATTERNS[name]
            return text_column_builder(ARROW_TYPES[name], pattern, need)
        case DecimalType(precision=precision, scale=scale):
            return _decimal_builder(precision, scale)
        case FixedType(length):
            return _fixed_builder(length)
        case ListType(element):
            return _list_builder(column_builder(element))
        case MapType(key=key, value=value):
            return _map_builder(column_builder(key), column_builder(value))
        case StructType(fields):
            return _struct_builder([(name, inner) for name, inner in fields])
        case PrimitiveType(name):
            return plain_builder(ARROW_TYPES[name])


def field_builders(
    fields: Iterable[tuple[str, ColumnBuilder]],
) -> list[tuple[str, Callable[[Any], Any], ColumnBuilder]]:
    """Name, getter and builder of each field of an object."""
    return [(name, attrgetter(field_name(index)), builder) for index, (name, builder) in enumerate(fields)]


def _decimal_builder(precision: int, scale: int) -> ColumnBuilder:
    kind, one = pa.decimal128(precision, scale), re.compile(NUMBER)
    whole = rf'^(?:"{NUMBER}"|{NUMBER})$'
    need = f"a number that decimal({precision}, {scale}) holds exactly"

    def build(values: list[Any], path: str, report: Report) -> Column:
        written = [None if value is UNSET else bytes(value) for value in values]
        texts = pa.array([None if text == b"null" else text for text in written], pa.binary())
        if pc.all(pc.match_substring_regex(texts, whole)).as_py() is not False:
            try:
                return pc.utf8_trim(texts.cast(pa.string()), '"').cast(kind)
            except pa.ArrowInvalid:
                pass
        bare = [None if text is None else _unquoted(text) for text in texts.to_pylist()]
        return one_by_one(bare, kind, path, report, need=need, fits=one.fullmatch)

    return build


def _unquoted(text: bytes) -> str:
    shown = text.decode()
    return shown[1:-1] if len(shown) > 1 and shown[0] == shown[-1] == '"' else shown


def _fixed_builder(length: int) -> ColumnBuilder:
    def build(values: list[Any], path: str, report: Report) -> Column:
        column = array_of(values, pa.binary())
        for index, value in enumerate(column.to_pylist()):
            if value is not None and len(value) != length:
                report(index, path, f"{length} bytes in base64")
        return column

    return build


def _list_builder(build_elements: ColumnBuilder) -> ColumnBuilder:
    def build(values: list[Any], path: str, report: Report) -> Column:
        lists = [present(value) for value in values]
        elements = list(chain.from_iterable(one for one in lists if one))
        child = build_elements(elements, f"{path}[...]", _of_parents(lists, report))
        column: Column = pa.ListArray.from_arrays(_offsets(lists), child)
        return column

    return build


def _map_builder(build_keys: ColumnBuilder, build_values: ColumnBuilder) -> ColumnBuilder:
    def build(values: list[Any], path: str, report: Report) -> Column:
        maps = [present(value) for value in values]
        inner = _of_parents(maps, report)
        keys = build_keys(list(chain.from_iterable(one for one in maps if one)), f"{path}[key]", inner)
        if keys.null_count:  # reported; a column of maps has no null among its keys
            keys = pc.fill_null(keys, _ANY_KEY[str(keys.type)])
        items = list(chain.from_iterable(one.values() for one in maps if one))
        column: Column = pa.MapArray.from_arrays(_offsets(maps), keys, build_values(items, f"{path}[...]", inner))
        return column

    return build


_ANY_KEY: Mapping[str, Any] = {"string": "", "date32[day]": date(1970, 1, 1)}


def _offsets(collections: list[Any]) -> Any:
    """Where each collection begins in the column of all elements; null for a null."""
    ends = list(accumulate((len(one) if one else 0 for one in collections), initial=0))
    begins = [None if one is None else ends[index] for index, one in enumerate(collections)]
    return pa.array([*begins, ends[-1]], pa.int32())


def _of_parents(collections: list[Any], report: Report) -> Report:
    """A report about elements that names the index of the collection that holds each."""
    holders: list[int] = []

    def report_holder(index: int, path: str, need: str) -> None:
        if not holders:
            holders.extend(chain.from_iterable([number] * len(one) for number, one in enumerate(collections) if one))
        report(holders[index], path, need)

    return report_holder


def _struct_builder(fields: list[tuple[str, ColumnType]]) -> ColumnBuilder:
    named = field_builders((name, column_builder(inner)) for name, inner in fields)
    kind = [pa.field(name, arrow_type(inner)) for name, inner in fields]

    def build(values: list[Any], path: str, report: Report) -> Column:
        objects = [present(value) for value in values]
        mask = pa.array([one is None for one in objects], pa.bool_())
        columns = [
            builder([None if one is None else get(one) for one in objects], f"{path}.{name}", report)
            for name, get, builder in named
        ]
        return pa.StructArray.from_arrays(columns, fields=kind, mask=mask)

    return build
