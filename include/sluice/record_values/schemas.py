"""The schemas of values: the text, the schema in a registry, and what a decoder needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from sluice.declarations.value_declaration import Column, UnknownFieldPolicy
from sluice.record_values.rejection import DecodingLimits
from sluice.settings import SchemaRegistryConnection

ValueFormat = Literal["json", "avro", "protobuf"]

FORMATS_OF_REGISTRY: Mapping[str, ValueFormat] = {"AVRO": "avro", "JSON": "json", "PROTOBUF": "protobuf"}
"""The formats by the names that a registry uses for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaText:
    """A schema and the schemas that it imports, by their names in the imports, each after its own imports."""

    text: str
    imports: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredSchema:
    """A schema in a registry."""

    format: ValueFormat
    schema: SchemaText


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueSchema:
    """How the values of an input are read. It is sent to Spark's workers pickled, so that no secret is part of a plan.

    columns: the columns that the values become.
    reader: the schema that the columns were derived from; None when it is not of the same format.
    message: the name of a Protobuf message; None for the first of the schema.
    registry: the registry of the schemas that values name by id; None when values carry no id.
    limits: what the decoding of a value may cost.
    on_unknown_field: what becomes of a value that has a field without a column.
    """

    format: ValueFormat
    columns: tuple[Column, ...]
    reader: SchemaText | None = None
    message: str | None = None
    registry: SchemaRegistryConnection | None = None
    limits: DecodingLimits = field(default_factory=DecodingLimits)
    on_unknown_field: UnknownFieldPolicy = "ignore"

    @property
    def rejects_undeclared(self) -> bool:
        """Whether a value is rejected for such a field, by which a stream may also be stopped."""
        return self.on_unknown_field != "ignore"
