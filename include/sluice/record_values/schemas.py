"""The schemas of values: as text, as a registry has them, and all that a decoder needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from sluice.declarations.value_declaration import Column
from sluice.settings import SchemaRegistryConnection

ValueFormat = Literal["json", "avro", "protobuf"]

FORMATS_OF_REGISTRY: Mapping[str, ValueFormat] = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
"""What a registry calls them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaText:
    """A schema, and the schemas that it refers to by the names it has for them, each after those that it needs."""

    text: str
    imports: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema of a registry."""

    format: ValueFormat
    schema: SchemaText


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """How values are read. It travels to Spark's workers pickled, so that no secret is part of a plan.

    columns: what they become. reader: the schema that the columns were taken from, where that is one of the format.
    message: of a Protobuf schema; unset: its first. registry: where the schemas are that values name by their ids.
    """

    format: ValueFormat
    columns: tuple[Column, ...]
    reader: SchemaText | None = None
    message: str | None = None
    registry: SchemaRegistryConnection | None = None
