"""The types as which msgspec decodes a JSON object of declared columns.

What JSON has no type for is taken as it was written, and read by `json_columns`: dates, times and UUIDs as text,
decimals as the very digits of the value. msgspec would round the fraction of a second, and Python a decimal.

Source: https://jcristharif.com/msgspec/supported-types.html
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import msgspec

from sluice.declarations.column_types import (
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)

LARGEST_FLOAT = float.fromhex("0x1.fffffep+127")
"""The largest finite number of 32 bits."""

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
