"""Validates what was read of a value: nothing is rounded, cut or coerced, and no marker is taken for a value.

pydantic validates in strict mode. Three conversions that lose nothing are added: a whole number for a decimal, a UUID
for its text, a mapping for its entries. One that pydantic's strict mode allows is removed: a decimal for a float. Casts
of pyarrow are no alternative: they take 1.5 for the whole number 1, and a number for a time.
Source: https://docs.pydantic.dev/latest/concepts/strict_mode/

PostgreSQL's log does not repeat a large value (TOAST) that an update has left as it was, and Debezium then sends a
marker in its place. Taken for a value, it would overwrite the value.
Source: https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-toasted-values and
`UnchangedToastedPlaceholder` of https://github.com/debezium/debezium
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from hashlib import md5
from struct import pack, unpack
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
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
from sluice.record_values.arrow_columns import LARGEST_FLOAT, DecodedBlock
from sluice.record_values.rejection import RejectedValueError, Rejection, RejectionKind, mismatch

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
    """Reject a number of 64 bits that would be rounded to one of 32."""
    is_finite = abs(value) < _INFINITE
    if is_finite and (abs(value) > LARGEST_FLOAT or unpack("<f", pack("<f", value))[0] != value):
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


MARKER = "__debezium_unavailable_value"
"""Debezium's default for `unavailable.value.placeholder`."""

_BYTES = MARKER.encode()
_TEXTS = (
    MARKER,
    b64encode(_BYTES).decode(),  # `binary.handling.mode: base64`, and `base64-url-safe`, which is the same here
    _BYTES.hex(),
    str(UUID(bytes=md5(_BYTES, usedforsecurity=False).digest(), version=3)),  # in an array of UUIDs
)
_BINARIES = (
    _BYTES,
    bytes.fromhex(
        "0101000020E6100000000000FC83D797C1000000FC83D797C1"
    ),  # as the WKB of a geometry: a point at -99999999
    bytes.fromhex("0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640"),  # of a geography: at 179.999999, 89.999999
)
"""In which other forms Debezium sends it: by how binary columns are sent, and for the types that take no text. An array
of numbers gets the bytes of the marker, each as a number."""

_DETAIL = "Debezium sent its marker of an unchanged large value; with REPLICA IDENTITY FULL it sends the value"


def without_unavailable(block: DecodedBlock, names: Sequence[str]) -> DecodedBlock:
    """The same block; values with the marker in any of its forms, also inside of other types, are rejected.

    Parameters
    ----------
    names: of the columns, as they were sent.
    """
    found: dict[int, Rejection] = {}
    for name, column in zip(names, block.columns, strict=True):
        for path, index in _marked(column, name):
            if index not in block.rejections:
                rejection = Rejection(kind=RejectionKind.UNAVAILABLE, path=path, detail=_DETAIL, quotes_data=False)
                found.setdefault(index, rejection)
    if not found:
        return block
    length = len(block.columns[0])
    kept = pa.array([None if index in found else index for index in range(length)], pa.int64())
    columns = [column.take(kept) for column in block.columns]
    return replace(block, columns=columns, rejections={**block.rejections, **found})


def _marked(column: Any, path: str) -> Iterator[tuple[str, int]]:
    """The path and the index of each marker in a column."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        markers: Any = pa.array(_TEXTS if pa.types.is_string(kind) else _BINARIES, kind)
        is_marked: Any = pc.is_in(column, value_set=markers)
        if pc.any(is_marked).as_py():
            for index in pc.indices_nonzero(pc.fill_null(is_marked, pa.scalar(value=False))).to_pylist():
                yield path, index
    elif pa.types.is_struct(kind):
        for field, inner in zip(kind, column.flatten(), strict=True):
            yield from _marked(inner, f"{path}.{field.name}")
    elif pa.types.is_list(kind) and pa.types.is_integer(kind.value_type):
        yield from ((path, index) for index in _marked_numbers(column))
    elif pa.types.is_list(kind):
        yield from _within(column, f"{path}.element")
    elif pa.types.is_map(kind):
        for part, suffix in ((column.keys, "key"), (column.items, "value")):
            yield from _within(pa.ListArray.from_arrays(column.offsets, part), f"{path}.{suffix}")


def _marked_numbers(lists: Any) -> Iterator[int]:
    is_as_long: Any = pc.equal(pc.list_value_length(lists), pa.scalar(len(_BYTES), pa.int32()))
    for index in pc.indices_nonzero(pc.fill_null(is_as_long, pa.scalar(value=False))).to_pylist():
        if lists[index].as_py() == list(_BYTES):
            yield index


def _within(lists: Any, path: str) -> Iterator[tuple[str, int]]:
    found = list(_marked(lists.flatten(), path))
    if found:
        parents = pc.list_parent_indices(lists).to_pylist()
        yield from ((inner, parents[index]) for inner, index in found)
