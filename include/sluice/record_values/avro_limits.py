"""Finds Avro schemas by which a few bytes of a value can occupy a reader without end.

A record that contains itself is decoded by a recursion that the value's bytes drive: twenty kilobytes end the process.
The elements of an array that take no bytes, such as nulls, are limited by nothing but a number in the value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_NAMED = ("record", "error", "enum", "fixed")


def require_bounded(schema: Any) -> None:
    """Check a schema as fastavro has parsed it.

    Raises
    ------
    ValueError: when a type contains itself, or an array has elements that take no bytes.
    """
    named: dict[str, Any] = {one["name"]: one for one in _types(schema) if one["type"] in _NAMED}
    _require_finite(schema, named, ())
    for one in _types(schema):
        if one["type"] == "array" and _takes_no_bytes(one["items"], named):
            raise ValueError("it has an array whose elements take no bytes, so that no value limits their number")


def _types(schema: Any) -> Iterator[dict[str, Any]]:
    """Every type that is described in a schema; a type that is only named was described before."""
    if isinstance(schema, list):
        for branch in schema:
            yield from _types(branch)
    elif isinstance(schema, dict):
        if isinstance(schema["type"], list | dict):
            yield from _types(schema["type"])
            return
        yield schema
        for inner in _inner(schema):
            yield from _types(inner)


def _inner(schema: dict[str, Any]) -> list[Any]:
    match schema["type"]:
        case "record" | "error":
            return [field["type"] for field in schema["fields"]]
        case "array":
            return [schema["items"]]
        case "map":
            return [schema["values"]]
    return []


def _require_finite(schema: Any, named: dict[str, Any], above: tuple[str, ...]) -> None:
    if isinstance(schema, str):
        if schema in above:
            raise ValueError(f"its type {schema} contains itself")
        if schema in named:
            _require_finite(named[schema], named, above)
    elif isinstance(schema, list):
        for branch in schema:
            _require_finite(branch, named, above)
    else:
        inside = (*above, schema["name"]) if schema["type"] in ("record", "error") else above
        inner = [schema["type"]] if isinstance(schema["type"], list | dict) else _inner(schema)
        for one in inner:
            _require_finite(one, named, inside)


def _takes_no_bytes(schema: Any, named: dict[str, Any]) -> bool:
    if isinstance(schema, str):
        return schema == "null" or (schema in named and _takes_no_bytes(named[schema], named))
    if isinstance(schema, list):
        return False  # the branch of a union is a byte
    match schema["type"]:
        case "null":
            return True
        case "fixed":
            return bool(schema["size"] == 0)
        case "record" | "error":
            return all(_takes_no_bytes(field["type"], named) for field in schema["fields"])
        case list() | dict() as inner:
            return _takes_no_bytes(inner, named)
    return False
