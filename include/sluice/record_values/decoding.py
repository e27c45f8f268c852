"""Decodes values one by one: a value becomes the values of its columns, or it is rejected.

What was read is validated against the types of the columns: nothing is rounded, cut or coerced. pydantic validates in
strict mode. Three conversions that lose nothing are added: a whole number for a decimal, a UUID for its text, a mapping
for its entries. One that pydantic's strict mode allows is removed: a decimal for a float. Casts of pyarrow are no
alternative: they take 1.5 for the whole number 1, and a number for a time.

Source: https://docs.pydantic.dev/latest/concepts/strict_mode/
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any, Protocol
from uuid import UUID

from pydantic_core import CoreSchema, PydanticCustomError, SchemaValidator, ValidationError, core_schema

from sluice.declarations.column_types import (
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from sluice.declarations.value_declaration import Column
from sluice.record_values.arrow_columns import LARGEST_FLOAT
from sluice.record_values.arrow_columns import Column as ArrowColumn
from sluice.record_values.avro import AvroReading
from sluice.record_values.block_cursor import BlockCursor
from sluice.record_values.protobuf import ProtobufReading, incompatible_fields, message_at, unusable_schema
from sluice.record_values.rejection import LARGEST_VALUE_BYTES, RejectedValueError, Rejection, mismatch, too_large
from sluice.record_values.schemas import RegisteredSchema, ValueSchema, read_message_indexes, read_schema_id
from sluice.record_values.unknown_fields import undeclared_rejection

SchemaLookup = Callable[[int], RegisteredSchema | None]
"""Returns the schema of an id; None when the registry does not have it. Raises RegistryError when it cannot answer."""

_WrittenAs = tuple[int, tuple[int, ...]]
"""What a value was written with: the id of a schema and, for Protobuf, the indexes of the message in it."""


class ColumnarReading(Protocol):
    """Reads a block of values that were written with one schema."""

    def columns(self, cursor: BlockCursor) -> Mapping[str, ArrowColumn]:
        """The columns by their names; what cannot be decided at once is doubtful."""


class Reading(Protocol):
    """Reads the values that were written with one schema.

    undeclared: the fields of the value that was read last which no column takes. of_schema: those of every value.
    columnar: reads blocks of values; None when they are read one by one.
    """

    @property
    def undeclared(self) -> Sequence[str]:
        """The fields that no column takes."""

    @property
    def of_schema(self) -> Sequence[str]:
        """Those that every value has."""

    @property
    def columnar(self) -> ColumnarReading | None:
        """Reads blocks of values."""

    def read(self, content: bytes) -> Mapping[str, Any]:
        """Return the fields of a value; raises RejectedValueError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedValue:
    """The values of the columns, or why there are none. undeclared: the fields that no column takes."""

    fields: Mapping[str, Any] | None = None
    rejection: Rejection | None = None
    undeclared: Sequence[str] = ()


class ValueDecoder:
    """Decodes the values of one input. Schemas are looked up and parsed once.

    Parameters
    ----------
    schema: how the values are read.
    lookup: the schemas of a registry; None when values do not begin with the id of a schema.

    Raises
    ------
    ValueError: when the declared schema cannot be used.
    """

    def __init__(self, schema: ValueSchema, *, lookup: SchemaLookup | None = None) -> None:
        self._schema = schema
        self._lookup = lookup
        self._validate = record_validation(schema.columns)
        self._readings: dict[_WrittenAs, Reading] = {}
        self._unreadable: dict[_WrittenAs, Rejection] = {}
        self._declared = _declared_reading(schema) if lookup is None or schema.format == "protobuf" else None

    def begin_block(self) -> None:
        """Ask again for schemas that could not be used in the block before: they may be registered in the meantime. A
        schema is looked up once per block."""
        self._unreadable.clear()

    def reading_of(self, value: bytes) -> tuple[Reading, int]:
        """What reads a value, and how many bytes stand before the content.

        Raises
        ------
        RejectedValueError: when nothing does.
        RegistryError: see `decode`.
        """
        if self._lookup is None:
            return self._require_declared(), 0
        schema_id, indexes, content = self._split(value)
        return self._reading((schema_id, indexes)), len(value) - len(content)

    def decode(self, value: bytes) -> DecodedValue:
        """Decode a value.

        Raises
        ------
        RegistryError: when the registry does not return the value's schema. Whether the value is valid is then unknown.
        """
        if len(value) > LARGEST_VALUE_BYTES:
            return DecodedValue(rejection=too_large(len(value)))
        try:
            read, undeclared = self._read(value)
            if undeclared and self._schema.rejects_undeclared:
                return DecodedValue(rejection=undeclared_rejection(undeclared, are_data=False), undeclared=undeclared)
            return DecodedValue(fields=self._validate(read), undeclared=undeclared)
        except RejectedValueError as error:
            return DecodedValue(rejection=error.rejection)

    def _read(self, value: bytes) -> tuple[Mapping[str, Any], Sequence[str]]:
        """The fields of a value, and those among them that no column takes."""
        if self._lookup is None:
            declared = self._require_declared()
            return declared.read(value), tuple(declared.undeclared)
        schema_id, indexes, content = self._split(value)
        try:
            reading = self._reading((schema_id, indexes))
            return reading.read(content), tuple(reading.undeclared)
        except RejectedValueError as error:
            raise RejectedValueError(replace(error.rejection, schema_id=schema_id)) from error

    def _require_declared(self) -> Reading:
        if self._declared is None:
            raise unusable_schema("none is declared")
        return self._declared

    def _split(self, value: bytes) -> tuple[int, tuple[int, ...], bytes]:
        """What a value was written with, and its content."""
        schema_id, content = read_schema_id(value)
        indexes: tuple[int, ...] = (0,)
        if self._schema.format == "protobuf":
            indexes, content = read_message_indexes(content)
        return schema_id, indexes, content

    def _reading(self, written_as: _WrittenAs) -> Reading:
        if written_as in self._unreadable:
            raise RejectedValueError(self._unreadable[written_as])
        if written_as not in self._readings:
            try:
                self._readings[written_as] = self._new_reading(*written_as)
            except ValueError as error:
                refused = error if isinstance(error, RejectedValueError) else unusable_schema(str(error))
                self._unreadable[written_as] = refused.rejection
                raise RejectedValueError(refused.rejection) from error
        return self._readings[written_as]

    def _new_reading(self, schema_id: int, indexes: tuple[int, ...]) -> Reading:
        registered = self._lookup(schema_id) if self._lookup is not None else None
        if registered is None:
            raise unusable_schema("the registry does not have it")
        if registered.format != self._schema.format:
            raise unusable_schema(f"its format is {registered.format}, not {self._schema.format}")
        if isinstance(self._declared, ProtobufReading):
            return _require_compatible(self._declared, registered, indexes)
        return AvroReading(writer=registered.schema, columns=_types(self._schema), reader=self._schema.reader)


def _declared_reading(schema: ValueSchema) -> Reading:
    if schema.reader is None:
        raise ValueError(f"values of format {schema.format} need a schema")
    if schema.format == "protobuf":
        return ProtobufReading(reader=schema.reader, message=schema.message, columns=_types(schema))
    return AvroReading(writer=schema.reader, columns=_types(schema))


def _types(schema: ValueSchema) -> dict[str, ColumnType]:
    return {column.name: column.column_type for column in schema.columns}


def _require_compatible(declared: ProtobufReading, registered: RegisteredSchema, indexes: tuple[int, ...]) -> Reading:
    written = message_at(registered.schema, indexes)
    if written.full_name != declared.message.full_name:
        raise unusable_schema(f"it is of a {written.full_name}, not of a {declared.message.full_name}")
    if found := incompatible_fields(written, declared.message):
        raise unusable_schema(f"it is incompatible with the declared one: {'; '.join(found)}")
    return declared


RecordValidation = Callable[[Mapping[str, Any]], dict[str, Any]]

_LARGEST_WHOLE = 2**53
"""Whole numbers up to this are floats of 64 bits; of larger ones only some are."""
_INFINITE = float("inf")
_CONTAINERS = {"list_type": "list", "dict_type": "struct", "tuple_type": "map"}
"""The declared types whose errors come from pydantic itself, by the type of the error."""


def record_validation(columns: Iterable[Column]) -> RecordValidation:
    """Create the function that validates the fields of a record against columns.

    It takes the fields by name and returns the values of all columns; fields without a column are left out, columns
    without a field are None. It raises RejectedValueError with the first column whose value is not of its type.
    """
    schema = _struct_schema((column.name, column.column_type) for column in columns)
    validator = SchemaValidator(schema)

    def validate(fields: Mapping[str, Any]) -> dict[str, Any]:
        try:
            values: dict[str, Any] = validator.validate_python(fields)
        except ValidationError as error:
            raise RejectedValueError(_rejection(error)) from error
        return values

    return validate


def _rejection(error: ValidationError) -> Rejection:
    """Which column, which kind of value, and which type is declared; the value itself is in the payload."""
    first = error.errors(include_url=False, include_context=False)[0]
    found, declared = type(first["input"]).__name__, _CONTAINERS.get(first["type"], first["msg"])
    return mismatch(str(first["loc"][0]), f"{declared}, got a Python {found}")


def _schema_of(column_type: ColumnType) -> CoreSchema:
    match column_type:
        case PrimitiveType(name):
            return _named(name, _PRIMITIVES[name])
        case DecimalType(precision=precision, scale=scale):
            return _named(f"decimal({precision}, {scale})", _decimal_schema(precision, scale))
        case FixedType(length):
            return _named(
                f"fixed[{length}]", core_schema.bytes_schema(strict=True, min_length=length, max_length=length)
            )
        case ListType(element):
            return core_schema.list_schema(core_schema.nullable_schema(_schema_of(element)), strict=True)
        case MapType(key=key, value=value):
            pair = core_schema.tuple_schema([_schema_of(key), core_schema.nullable_schema(_schema_of(value))])
            return core_schema.no_info_before_validator_function(_pairs, core_schema.list_schema(pair))
        case StructType(fields):
            return _struct_schema(fields)


def _struct_schema(fields: Iterable[tuple[str, ColumnType]]) -> CoreSchema:
    return core_schema.typed_dict_schema(
        {
            name: core_schema.typed_dict_field(
                core_schema.with_default_schema(core_schema.nullable_schema(_schema_of(inner)), default=None)
            )
            for name, inner in fields
        },
        strict=True,
    )


def _named(kind: str, schema: CoreSchema) -> CoreSchema:
    """The same schema; its errors name the declared type."""
    return core_schema.custom_error_schema(schema, custom_error_type="type", custom_error_message=kind)


def _whole_number(bits: int) -> CoreSchema:
    largest = 2 ** (bits - 1) - 1
    return core_schema.int_schema(strict=True, ge=-largest - 1, le=largest)


def _require_number(value: Any) -> Any:
    """Reject a decimal, which pydantic would round to a float, and a whole number that no float is."""
    is_rounded = isinstance(value, int) and abs(value) > _LARGEST_WHOLE and int(float(value)) != value
    if isinstance(value, Decimal) or is_rounded:
        raise PydanticCustomError("type", "number")
    return value


def _require_single_precision(value: float) -> float:
    if LARGEST_FLOAT < abs(value) < _INFINITE:
        raise PydanticCustomError("type", "float")
    return value


def _decimal_schema(precision: int, scale: int) -> CoreSchema:
    zero = Decimal((0, (0,), -scale))  # pydantic counts a digit before the point of any other zero

    def to_decimal(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, int | Decimal):
            return value
        return Decimal(value) if value else zero

    schema = core_schema.decimal_schema(strict=True, max_digits=precision, decimal_places=scale)
    return core_schema.no_info_before_validator_function(to_decimal, schema)


def _text_of_uuid(value: Any) -> Any:
    return str(value) if isinstance(value, UUID) else value


def _pairs(value: Any) -> Any:
    """The entries of a map, which decoders return as a mapping or as pairs."""
    if not isinstance(value, Mapping | list):
        raise PydanticCustomError("type", "map")
    return list(value.items()) if isinstance(value, Mapping) else value


_UUID = "^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$"
_TEXT = core_schema.no_info_before_validator_function(_text_of_uuid, core_schema.str_schema(strict=True))
_DOUBLE = core_schema.no_info_before_validator_function(_require_number, core_schema.float_schema(strict=True))

_PRIMITIVES: Mapping[str, CoreSchema] = {
    "boolean": core_schema.bool_schema(strict=True),
    "int": _whole_number(32),
    "long": _whole_number(64),
    "float": core_schema.no_info_after_validator_function(_require_single_precision, _DOUBLE),
    "double": _DOUBLE,
    "date": core_schema.date_schema(strict=True),
    "timestamp": core_schema.datetime_schema(strict=True, tz_constraint="naive"),
    "timestamptz": core_schema.datetime_schema(strict=True, tz_constraint="aware"),
    "string": _TEXT,
    "uuid": core_schema.no_info_before_validator_function(
        _text_of_uuid, core_schema.str_schema(strict=True, pattern=_UUID)
    ),
    "binary": core_schema.bytes_schema(strict=True),
}
