"""Avro schemas: parsed, and the columns that a record becomes, named types included.

Source: https://avro.apache.org/docs/1.12.0/specification/
"""

from __future__ import annotations

import json
from typing import Any

from fastavro import parse_schema
from fastavro.schema import SchemaParseException, UnknownType

from sluice.declarations.schemas.schema_files import columns_of_json
from sluice.declarations.value_declaration import Column

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
    names: dict[str, Any] = {}
    parsed_avro(text, imports, names)
    return columns_of_json(json.dumps(parse_schema(json.loads(text), named_schemas=names, expand=True)))
