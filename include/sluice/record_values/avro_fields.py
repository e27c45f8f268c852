"""Finds the fields of an Avro schema that no column takes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sluice.declarations.column_types import ColumnType
from sluice.record_values.field_counts import struct_in


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


def named_types(schema: Any) -> dict[str, Any]:
    """The types that a schema describes, by name; a schema describes each once and names it afterwards."""
    found: dict[str, Any] = {}
    match schema:
        case list():
            for branch in schema:
                found |= named_types(branch)
        case {"type": "record" | "error", "name": name, "fields": fields}:
            found[name] = schema
            for field in fields:
                found |= named_types(field["type"])
        case {"type": "enum" | "fixed", "name": name}:
            found[name] = schema
        case {"items": inner} | {"values": inner} | {"type": dict() | list() as inner}:
            found |= named_types(inner)
    return found
