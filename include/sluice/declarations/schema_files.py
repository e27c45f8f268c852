"""Reads the columns of a schema file beside a declaration: an Avro schema, also one that refers to others, a JSON
Schema, an Iceberg schema or a Protobuf one.

The content shows which form a file has; Protobuf has its own file name. Required values and documentation are kept. A
type without a counterpart among the column types is rejected with its place in the schema.

Sources: https://avro.apache.org/docs/1.12.0/specification/, https://json-schema.org/draft/2020-12 and
https://iceberg.apache.org/spec/#appendix-c-json-serialization
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from sluice.declarations.declaration_files import read_bounded
from sluice.declarations.value_declaration import Column, repeated_column, repetition

LARGEST_SCHEMA_BYTES = 1024**2
"""A schema is a page or ten; something larger is a mistake."""

_AVRO_PRIMITIVES = {
    "boolean": "boolean",
    "int": "int",
    "long": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
    "enum": "string",
}
_AVRO_LOGICAL = {
    "date": "date",
    "timestamp-millis": "timestamptz",
    "timestamp-micros": "timestamptz",
    "local-timestamp-millis": "timestamp",
    "local-timestamp-micros": "timestamp",
    "uuid": "uuid",
}
_AVRO_UNREADABLE = ("time-millis", "time-micros")
_JSON_PRIMITIVES = {"boolean": "boolean", "integer": "long", "number": "double", "string": "string"}
_JSON_FORMATS = {"date": "date", "date-time": "timestamptz", "uuid": "uuid"}


def read_columns(file: Path, *, message: str | None = None) -> tuple[Column, ...]:
    """The columns that a schema file describes.

    Parameters
    ----------
    message: of a Protobuf schema; unset: its first.

    Raises
    ------
    ValueError: when it cannot be read, is no schema of a known form, or holds a type that no column can have; says
        where.
    """
    text = read_schema(file)
    if file.suffix == ".proto":
        from sluice.declarations.protobuf_schemas import (  # few need protoc
            compiled,
            message_columns,
            message_of,
        )

        return _distinct(message_columns(message_of(compiled(text, name=file.name), message)))
    return columns_of_json(text)


def _distinct(columns: tuple[Column, ...]) -> tuple[Column, ...]:
    if (again := repeated_column(columns)) is not None:
        raise ValueError(repetition(columns, again))
    return columns


def read_schema(file: Path) -> str:
    """The text of a schema file.

    Raises
    ------
    ValueError: when it cannot be read, is too large for a schema, or no UTF-8.
    """
    return read_bounded(file, most_bytes=LARGEST_SCHEMA_BYTES).decode()


def columns_of_json(text: str) -> tuple[Column, ...]:
    """The columns that a schema in JSON describes.

    Raises
    ------
    ValueError: as `read_columns`.
    """
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from error
    try:
        return _distinct(_columns(schema))
    except RecursionError as error:
        raise ValueError("its types are nested too deep") from error


def _columns(schema: Any) -> tuple[Column, ...]:
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "record":
        fields = _listed(schema, "fields")
        return tuple(_column(field, *_avro_optional(field.get("type"), _name(field))) for field in fields)
    if kind == "struct":
        fields = _listed(schema, "fields")
        return tuple(
            _column(field, _iceberg_type(field.get("type"), _name(field)), field.get("required") is not True)
            for field in fields
        )
    if kind == "object" and isinstance(schema.get("properties"), Mapping):
        required = _names_in(schema.get("required"))
        return tuple(
            _column(
                {"name": name, "doc": of.get("description", "") if isinstance(of, Mapping) else ""},
                _json_type(of, name),
                name not in required or _allows_null(of),
            )
            for name, of in schema["properties"].items()
        )
    raise ValueError(
        "it is neither an Avro record (`type: record`), nor a JSON Schema of an object (`type: object` with "
        "`properties`), nor an Iceberg schema (`type: struct`)"
    )


def _column(field: Mapping[str, Any], type_: str, is_optional: bool) -> Column:
    return Column(name=_name(field), type=type_, required=not is_optional, doc=str(field.get("doc", "")))


def _avro_optional(type_: Any, place: str) -> tuple[str, bool]:
    """The column type of an Avro type, and whether it may be null."""
    if not isinstance(type_, list):
        return _avro_type(type_, place), False
    others = [choice for choice in type_ if choice != "null"]
    if len(others) != 1:
        raise ValueError(f"{place} is a union of {len(others)} types; a column has one, which may be null")
    return _avro_type(others[0], place), "null" in type_


def _avro_type(type_: Any, place: str) -> str:
    if isinstance(type_, list):
        return _avro_optional(type_, place)[0]
    if not isinstance(type_, Mapping):
        return _known(_AVRO_PRIMITIVES, type_, place)
    kind, logical = type_.get("type"), type_.get("logicalType")
    if logical == "decimal":
        return f"decimal({type_.get('precision')}, {type_.get('scale', 0)})"
    if logical in _AVRO_LOGICAL:
        return _AVRO_LOGICAL[logical]
    if logical in _AVRO_UNREADABLE:
        raise ValueError(f"{place} has the logical type {logical}, which no column can have: Spark has no time of day")
    match kind:
        case "fixed":
            return f"fixed[{type_.get('size')}]"
        case "array":
            return f"list<{_avro_type(type_.get('items'), f'{place}[]')}>"
        case "map":
            return f"map<string, {_avro_type(type_.get('values'), f'{place}[]')}>"
        case "record":
            return _struct(_listed(type_, "fields"), _avro_type, place)
    return _known(_AVRO_PRIMITIVES, kind, place)


def _json_type(of: Any, place: str) -> str:
    if not isinstance(of, Mapping):
        raise ValueError(f"{place} has no type")
    kind = of.get("type")
    kinds = [one for one in kind if one != "null"] if isinstance(kind, list) else [kind]
    if len(kinds) != 1:
        raise ValueError(f"{place} has {len(kinds)} types; a column has one, which may be null")
    match kinds[0]:
        case "array":
            return f"list<{_json_type(of.get('items'), f'{place}[]')}>"
        case "object" if isinstance(of.get("properties"), Mapping):
            fields: list[Mapping[str, Any]] = [
                {"name": name, "type": inner} for name, inner in of["properties"].items()
            ]
            return _struct(fields, _json_type, place)
        case "object" if isinstance(of.get("additionalProperties"), Mapping):
            return f"map<string, {_json_type(of['additionalProperties'], f'{place}[]')}>"
        case "string" if of.get("format") in _JSON_FORMATS:
            return _JSON_FORMATS[of["format"]]
    return _known(_JSON_PRIMITIVES, kinds[0], place)


def _allows_null(of: Any) -> bool:
    return isinstance(of, Mapping) and isinstance(of.get("type"), list) and "null" in of["type"]


def _iceberg_type(type_: Any, place: str) -> str:
    if isinstance(type_, str):
        return type_  # the names are the columns' own; `Column` checks them
    kind = type_.get("type") if isinstance(type_, Mapping) else None
    match kind:
        case "list":
            return f"list<{_iceberg_type(type_.get('element'), f'{place}[]')}>"
        case "map":
            key, value = (_iceberg_type(type_.get(part), f"{place}[]") for part in ("key", "value"))
            return f"map<{key}, {value}>"
        case "struct":
            return _struct(_listed(type_, "fields"), _iceberg_type, place)
    raise ValueError(f"{place} has the type {kind!r}, which no column can have")


def _struct(fields: list[Mapping[str, Any]], of: Callable[[Any, str], str], place: str) -> str:
    inner = (f"{_name(field)}: {of(field.get('type'), f'{place}.{_name(field)}')}" for field in fields)
    return f"struct<{', '.join(inner)}>"


def _listed(schema: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    found = schema.get(key)
    if not isinstance(found, list) or not found or not all(isinstance(one, Mapping) for one in found):
        raise ValueError(f"`{key}` is not a list of fields")
    return found


def _names_in(names: Any) -> frozenset[str]:
    return frozenset(name for name in names if isinstance(name, str)) if isinstance(names, list) else frozenset()


def _name(field: Mapping[str, Any]) -> str:
    return str(field.get("name"))


def _known(types: Mapping[str, str], name: Any, place: str) -> str:
    if not isinstance(name, str) or name not in types:
        raise ValueError(f"{place} has the type {name!r}, which no column can have")
    return types[name]


AvroSchema = Any
"""A schema as fastavro has parsed it."""


def parsed_avro(
    text: str, imports: tuple[tuple[str, str], ...] = (), named: dict[str, Any] | None = None
) -> AvroSchema:
    """A schema, with the named types of others that it refers to.

    Parameters
    ----------
    named: takes the named types of the imports.

    Raises
    ------
    ValueError: when it is not an Avro schema of a record.
    """
    from fastavro import parse_schema  # few need it
    from fastavro.schema import SchemaParseException, UnknownType

    names = {} if named is None else named
    try:
        for _, imported in imports:
            parse_schema(json.loads(imported), named_schemas=names)
        schema = parse_schema(json.loads(text), named_schemas=dict(names))
    except UnknownType as error:
        raise ValueError(f"it knows no type {error.name}") from error
    except (SchemaParseException, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"it is not an Avro schema: {type(error).__name__}: {error}") from error
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ValueError("it is not an Avro schema of a record")
    return schema


def avro_columns(text: str, imports: tuple[tuple[str, str], ...] = ()) -> tuple[Column, ...]:
    """The columns that a schema describes, types that are named and referred to included.

    Raises
    ------
    ValueError: when it is not an Avro schema of a record, or holds a type that no column can have.
    """
    from fastavro import parse_schema  # few need it

    names: dict[str, Any] = {}
    parsed_avro(text, imports, names)
    return columns_of_json(json.dumps(parse_schema(json.loads(text), named_schemas=names, expand=True)))
