"""Reads blocks of Avro values column by column: a step of a cursor for each field of the writer's schema.

A value becomes what `avro` and `decoding` make of it, or it is doubtful and is left to them. Schemas for which
that is not certain are not read here: those with unions of other than one type and null, with defaults that are not
null, and those whose numbers are converted by the resolution of schemas.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.declarations.column_types import (
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from sluice.declarations.schema_files import AvroSchema
from sluice.record_values.arrow_columns import PATTERNS, Column, arrow_type
from sluice.record_values.avro_schema import described, last_name, named_types, type_of
from sluice.record_values.block_columns import (
    Arrays,
    Build,
    Kind,
    Leaf,
    Nested,
    NotColumnarError,
    Read,
    builder_of,
    in_order,
    lists_of,
    lower_uuid,
    map_of,
    matching_text,
    octets,
    struct_of,
    text,
    time,
    whole,
    word_of,
)
from sluice.record_values.block_cursor import BlockCursor, Numbers

_Fields = list[tuple[str | None, Kind]]


class ColumnarAvro:
    """Reads blocks of values that were written with one schema.

    Parameters
    ----------
    writer, reader: the schemas as `avro` parsed them; no reader for no resolution.
    columns: the declared columns.

    Raises
    ------
    NotColumnarError: when values of these schemas are decoded one by one.
    """

    def __init__(self, *, writer: AvroSchema, reader: AvroSchema | None, columns: Mapping[str, ColumnType]) -> None:
        if reader is not None and not _is_same("record", writer, reader):
            raise NotColumnarError("a record of another name")
        compiling = _Compiling(writers=named_types(writer), readers=named_types(reader))
        self._fields = compiling.fields(writer, reader, columns)

    def columns(self, cursor: BlockCursor) -> dict[str, Column]:
        """The columns of the fields that have one; the cursor is at the values' beginnings."""
        columns = _columns(self._fields, cursor)
        cursor.doubt(cursor.at != cursor.end)
        return columns


def _columns(fields: _Fields, cursor: BlockCursor) -> dict[str, Column]:
    read = [(name, kind.column(cursor)) for name, kind in fields]
    return {name: column for name, column in read if name is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compiling:
    """Makes readers of schemas. writers, readers: the types that the two schemas name."""

    writers: Mapping[str, Any]
    readers: Mapping[str, Any]

    def fields(self, writer: Any, reader: Any, columns: Mapping[str, ColumnType]) -> _Fields:
        """The fields of a record in the order in which they were written, those that no column takes without a name."""
        expected = {field["name"]: field for field in reader["fields"]} if reader is not None else None
        if any("aliases" in field for field in (expected or {}).values()):
            raise NotColumnarError("a field has another name")
        found: _Fields = []
        for field in writer["fields"]:
            name = field["name"]
            is_left_out = name not in columns or (expected is not None and name not in expected)
            of_reader = expected[name]["type"] if expected is not None and name in expected else None
            kind = self.kind(field["type"], of_reader, None if is_left_out else columns[name])
            found.append((None if is_left_out else name, kind))
        written = {field["name"] for field in writer["fields"]}
        for name, field in (expected or {}).items():
            if name not in written and field.get("default", "") is not None:
                raise NotColumnarError(f"{name} has a default or none")
        return found

    def kind(self, writer: Any, reader: Any, column: ColumnType | None) -> Kind:
        """The reader of one type. column: its column's type; None for a field that no column takes."""
        writer, reader = described(writer, self.writers), described(reader, self.readers)
        if isinstance(writer, list):
            return self._optional(writer, reader, column)
        if isinstance(reader, list):
            _require_optional(reader)
            reader = described(reader[1 - reader.index("null")], self.readers)
        name = type_of(writer)
        if reader is not None and not _is_same(name, writer, reader):
            raise NotColumnarError("the types are not the same")
        match name:
            case "record" | "error":
                return self._record(writer, reader, column)
            case "array":
                return self._array(writer, reader, column)
            case "map":
                return self._map(writer, reader, column)
        return Leaf(*_leaf(name, writer, column))

    def _optional(self, writer: list[Any], reader: Any, column: ColumnType | None) -> Kind:
        _require_optional(writer)
        if reader is not None:
            _require_optional(reader)
        null = writer.index("null")
        inner = self.kind(writer[1 - null], reader, column)

        def read(cursor: BlockCursor) -> Column:
            branches = cursor.zigzags()
            are_there = branches == 1 - null
            cursor.doubt(~are_there & (branches != null))
            return inner.column(cursor, None if are_there.all() else np.flatnonzero(are_there))

        return Nested(read)

    def _record(self, writer: Any, reader: Any, column: ColumnType | None) -> Kind:
        if column is not None and not isinstance(column, StructType):
            raise NotColumnarError("a record in another column")
        fields = self.fields(writer, reader, dict(column.fields) if column is not None else {})

        def read(cursor: BlockCursor) -> Column:
            columns = _columns(fields, cursor)
            return struct_of(columns, column.fields, len(cursor)) if column is not None else pa.nulls(len(cursor))

        return Nested(read)

    def _array(self, writer: Any, reader: Any, column: ColumnType | None) -> Kind:
        if column is not None and not isinstance(column, ListType):
            raise NotColumnarError("an array in another column")
        of_reader = reader["items"] if reader is not None else None
        element = self.kind(writer["items"], of_reader, column.element if column is not None else None)
        nothing = pa.array([], arrow_type(column.element) if column is not None else pa.null())
        return Nested(lambda cursor: _lists(element, cursor, nothing))

    def _map(self, writer: Any, reader: Any, column: ColumnType | None) -> Kind:
        if column is not None and not (isinstance(column, MapType) and column.key == PrimitiveType("string")):
            raise NotColumnarError("a map in another column")
        kind = column.value if isinstance(column, MapType) else None
        value = self.kind(writer["values"], reader["values"] if reader is not None else None, kind)
        nothing = _pairs(pa.array([], pa.string()), pa.array([], arrow_type(kind) if kind is not None else pa.null()))
        pair = Nested(lambda cursor: _pairs(_KEY.column(cursor), value.column(cursor)))
        return Nested(lambda cursor: map_of(cursor, _lists(pair, cursor, nothing)))


def _pairs(keys: Column, values: Column) -> Column:
    return pa.StructArray.from_arrays([keys, values], names=["key", "value"])


def _lists(element: Kind, cursor: BlockCursor, nothing: Column) -> Any:
    """Read arrays of one block each, as senders write them: the number of the elements, they themselves, and a zero."""
    counts = cursor.bounded(cursor.zigzags()).copy()
    parts: list[Column] = []
    owners: list[Numbers] = []
    open_lists = np.flatnonzero(counts)
    while open_lists.size:
        if not cursor.content.takes_step(open_lists.size, element=len(parts)):
            cursor.doubt_at(open_lists)
            counts[open_lists] = len(parts)
            break
        part = cursor.part(open_lists)
        parts.append(element.column(part))
        owners.append(open_lists)
        cursor.follow(open_lists, part)
        open_lists = open_lists[counts[open_lists] > len(parts)]
    some = np.flatnonzero(counts)
    ends = cursor.part(some)
    ends.doubt(ends.zigzags() != 0)
    cursor.follow(some, ends)
    elements = in_order(parts, owners, counts) if parts else nothing
    return lists_of(counts, elements)


def _require_optional(schema: Any) -> None:
    if not isinstance(schema, list) or len(schema) != 2 or schema.count("null") != 1:
        raise NotColumnarError("a union of other types than one and null, or only in one of two schemas")


def _is_same(name: str, writer: Any, reader: Any) -> bool:
    """Whether a value of the writer's type is one of the reader's, without a conversion."""
    other = type_of(reader)
    if name != other:
        return (name, other) == ("int", "long")
    match name:
        case "record" | "error":
            return last_name(writer) == last_name(reader)
        case "fixed":
            return last_name(writer) == last_name(reader) and writer["size"] == reader["size"]
        case "enum":
            return last_name(writer) == last_name(reader) and set(writer["symbols"]) <= set(reader["symbols"])
    return True


def _leaf(name: str, schema: Any, column: ColumnType | None) -> tuple[Read, Build]:
    """How a type without types of its own is read, and what its column is built by."""
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    canonical, build = _meaning(name, logical, schema)
    if column is not None and column != canonical:
        build = _OTHERS.get((f"{name}-{logical}" if logical else name, str(getattr(column, "name", ""))))
    if build is None:
        raise NotColumnarError(f"{name} in another column")
    return (_fixed(schema["size"]) if name == "fixed" else _READS[name]), build


def _meaning(name: str, logical: str | None, schema: Any) -> tuple[ColumnType, Build | None]:
    """The column type that a type has by itself, and the builder of the column."""
    match name, logical:
        case (("bytes" | "fixed"), "decimal"):
            precision, scale = schema["precision"], schema.get("scale", 0)
            if precision > 38:
                raise NotColumnarError("no column has so many digits")
            kind: ColumnType = DecimalType(precision=precision, scale=scale)
            return kind, builder_of(kind)
        case "fixed", _:
            return FixedType(schema["size"]), octets
        case "enum", _ if schema["symbols"]:
            return PrimitiveType("string"), word_of(dict(enumerate(schema["symbols"])))
    if name == "enum" or name not in _READS:
        raise NotColumnarError(f"a value of type {name}")
    if (found := _LOGICAL.get((name, logical or ""))) is not None:
        return PrimitiveType(found[0]), found[1]
    if logical in ("time-millis", "time-micros"):
        raise NotColumnarError("a time of no day")
    plain = PrimitiveType({"bytes": "binary"}.get(name, name))
    return plain, builder_of(plain)


_LOGICAL: Mapping[tuple[str, str], tuple[str, Build | None]] = {
    ("int", "date"): ("date", builder_of(PrimitiveType("date"))),
    ("long", "timestamp-millis"): ("timestamptz", time("timestamptz", microseconds=1000)),
    ("long", "timestamp-micros"): ("timestamptz", time("timestamptz", microseconds=1)),
    ("long", "local-timestamp-millis"): ("timestamp", time("timestamp", microseconds=1000)),
    ("long", "local-timestamp-micros"): ("timestamp", time("timestamp", microseconds=1)),
    ("string", "uuid"): ("uuid", lower_uuid),
}
_OTHERS: Mapping[tuple[str, str], Build] = {
    ("int", "long"): whole(64),
    ("string", "uuid"): matching_text(PATTERNS["uuid"][0]),
    ("string-uuid", "string"): lower_uuid,
}
"""Builders for columns that may also take a type, by type and column."""


def _number(cursor: BlockCursor) -> Arrays:
    return (cursor.zigzags(),)


def _places(cursor: BlockCursor) -> Arrays:
    lengths = cursor.bounded(cursor.zigzags())
    starts, cursor.at = cursor.at, cursor.at + lengths
    return starts, lengths


def _fixed(size: int) -> Read:
    def read(cursor: BlockCursor) -> Arrays:
        lengths = cursor.bounded(np.full(len(cursor), size))
        starts, cursor.at = cursor.at, cursor.at + lengths
        return starts, lengths

    return read


_KEY = Leaf(_places, text)

_READS: Mapping[str, Read] = {
    "boolean": lambda cursor: (cursor.word(1) & np.uint64(0xFF),),
    "int": _number,
    "long": _number,
    "float": lambda cursor: (cursor.word(4),),
    "double": lambda cursor: (cursor.word(8),),
    "string": _places,
    "bytes": _places,
    "enum": _number,
}
