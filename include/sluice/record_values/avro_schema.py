"""Walks through Avro schemas as fastavro has parsed them: what they name, and what values of them can cost.

By some schemas a few bytes of a value occupy a reader without end. A record that contains itself is decoded by a
recursion that the value's bytes drive: twenty kilobytes end the process. The elements of an array that take no bytes,
such as nulls, are limited by nothing but a number in the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.declarations.column_types import ColumnType
from sluice.record_values.block_facts import struct_in

_NAMED = ("record", "error", "enum", "fixed")


def named_types(schema: Any) -> dict[str, Any]:
    """The types that a schema describes, by name; a schema describes each once and names it afterwards."""
    return {one["name"]: one for one in _types(schema) if one["type"] in _NAMED}


def described(schema: Any, named: Mapping[str, Any]) -> Any:
    """The schema without the levels that only wrap or name another one."""
    if isinstance(schema, str) and schema in named:
        return named[schema]
    if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
        return described(schema["type"], named)
    return schema


def type_of(schema: Any) -> str:
    """The name of a schema's type."""
    return str(schema["type"] if isinstance(schema, dict) else schema)


def last_name(schema: Any) -> str:
    """The name of a described type without its namespace."""
    return str(schema["name"]).rpartition(".")[2]


def require_bounded(schema: Any) -> None:
    """Check a schema as fastavro has parsed it.

    Raises
    ------
    ValueError: when a type contains itself, or an array has elements that take no bytes.
    """
    named = named_types(schema)
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


def undeclared_in_schema(writer: Any, reader: Any, columns: Mapping[str, ColumnType]) -> tuple[str, ...]:
    """The fields of the writer's schema that become no column; one in a record has the path to it.

    Parameters
    ----------
    writer: the schema as fastavro has parsed it, without a type that contains itself.
    reader: the declared schema, whose fields may have other names for those of the writer; None when there is none.
    """
    return tuple(_undeclared(writer, reader, columns, "", named_types(writer), named_types(reader)))


def _undeclared(
    writer: Any,
    reader: Any,
    declared: Mapping[str, ColumnType],
    path: str,
    writers: Mapping[str, Any],
    readers: Mapping[str, Any],
) -> Iterator[str]:
    of_reader = {field["name"]: field for field in (_record_in(reader, readers) or {}).get("fields", ())}
    aliases = {alias: name for name, field in of_reader.items() for alias in field.get("aliases", ())}
    for field in (_record_in(writer, writers) or {}).get("fields", ()):
        name = aliases.get(field["name"], field["name"])
        if name not in declared:
            yield f"{path}{field['name']}"
        elif (inner := struct_in(declared[name])) is not None:
            other = of_reader.get(name, {}).get("type")
            yield from _undeclared(field["type"], other, dict(inner.fields), f"{path}{name}.", writers, readers)


def _record_in(schema: Any, named: Mapping[str, Any]) -> Any:
    """The record that a schema is, or that its branches, elements or values are."""
    match schema:
        case str():
            return _record_in(named[schema], named) if schema in named else None
        case list():
            return next((found for branch in schema if (found := _record_in(branch, named)) is not None), None)
        case {"type": "record" | "error"}:
            return schema
        case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
            return _record_in(inner, named)
        case {"type": dict() | list() as inner}:
            return _record_in(inner, named)
    return None
