"""Reads Avro values with the schema that they were written with, resolved to the declared one.

fastavro reads a value, and takes more than the value says: the last of a key that a map has twice, the last symbol or
type for the number -1, any byte but 0 for true, and the lower bits of a number of more than 64. It ignores how many
bytes a block says that it has, and rounds a decimal with more digits than its schema allows, and a whole number that
becomes a float of the declared schema. So the bytes are walked through once more, by the schema that they were written
with.

Sources: https://avro.apache.org/docs/1.12.0/specification/#schema-resolution and #binary-encoding
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fastavro import schemaless_reader
from fastavro.read import LOGICAL_READERS, SchemaResolutionError

from sluice.declarations.column_types import ColumnType
from sluice.declarations.schema_files import parsed_avro
from sluice.record_values.avro_columnar import ColumnarAvro
from sluice.record_values.avro_schema import (
    described,
    last_name,
    named_types,
    require_bounded,
    type_of,
    undeclared_in_schema,
)
from sluice.record_values.block_columns import NotColumnarError
from sluice.record_values.rejection import RejectedValueError, Rejection, RejectionKind
from sluice.record_values.schemas import SchemaText

_PLACE_IN_MEMORY = re.compile(r" from <_io\.BytesIO object at 0x[0-9a-f]+>")
"""What fastavro adds to a reason, which so differs each time."""


class AvroReading:
    """Reads values that were written with one schema. `undeclared` are the fields of this schema that no column takes,
    and `of_schema` as well; `columnar` reads blocks of values, unless this schema has what is read value by value.

    Parameters
    ----------
    writer: the schema that the values were written with.
    columns: those that take the fields, by name.
    reader: the schema that they are resolved to; None for no resolution.

    Raises
    ------
    ValueError: when one of the schemas is not the Avro schema of a record, or a value of the writer's schema can take
        more time or memory than its bytes suggest.
    """

    def __init__(
        self, *, writer: SchemaText, columns: Mapping[str, ColumnType], reader: SchemaText | None = None
    ) -> None:
        self._writer = parsed_avro(writer.text, writer.imports)
        require_bounded(self._writer)
        self._reader = parsed_avro(reader.text, reader.imports) if reader is not None and reader != writer else None
        self._require_strict = _strict_walk(self._writer, self._reader)
        self.undeclared = self.of_schema = undeclared_in_schema(self._writer, self._reader, columns)
        try:
            self.columnar: ColumnarAvro | None = ColumnarAvro(writer=self._writer, reader=self._reader, columns=columns)
        except NotColumnarError:
            self.columnar = None

    def read(self, content: bytes) -> Mapping[str, Any]:
        """Return the fields of a value.

        Raises
        ------
        RejectedValueError: when the value was not written with the schema, when the two schemas are incompatible, or
            when fastavro has read something else than it says.
        """
        stream = io.BytesIO(content)
        try:
            fields: Any = schemaless_reader(stream, self._writer, self._reader)
        except SchemaResolutionError as error:
            raise RejectedValueError(_rejection(RejectionKind.UNRESOLVED, error)) from error
        except Exception as error:  # whatever a codec raises over invalid bytes: EOFError, IndexError …
            raise RejectedValueError(_rejection(RejectionKind.INVALID_AVRO, error)) from error
        if left := len(content) - stream.tell():
            detail = f"{left} bytes are left over"
            raise RejectedValueError(Rejection(kind=RejectionKind.INVALID_AVRO, detail=detail, quotes_data=False))
        self._require_strict(content)
        record: Mapping[str, Any] = fields
        return record


def _rejection(kind: RejectionKind, error: Exception) -> Rejection:
    """With the words of fastavro, which may be of a symbol or a text in the value."""
    lines = _PLACE_IN_MEMORY.sub("", str(error)).strip().splitlines()
    detail = f"{type(error).__name__}{f': {lines[0][:200]}' if lines else ''}"
    return Rejection(kind=kind, detail=detail, quotes_data=bool(lines))


Step = Callable[[bytes, int], int]
"""Walks from the place where a value of a type begins to the one behind it; raises `RejectedValueError`."""

_FLOATS = ("float", "double")
_PLACE_OF_SIGN = 63


def _strict_walk(writer: Any, reader: Any) -> Callable[[bytes], None]:
    """Create the function that raises `RejectedValueError` for a value of which fastavro makes another one.

    Parameters
    ----------
    writer, reader: the schemas as fastavro has parsed them, without a type that contains itself; no reader for no
        resolution.
    """
    walk = _Walk(named_types(writer), named_types(reader)).step(writer, reader, "")

    def check(content: bytes) -> None:
        walk(content, 0)

    return check


class _Walk:
    """Makes the steps of the types of a schema. writers, readers: the types that the two schemas name."""

    def __init__(self, writers: Mapping[str, Any], readers: Mapping[str, Any]) -> None:
        self._writers = writers
        self._readers = readers

    def step(self, writer: Any, reader: Any, path: str) -> Step:
        """The step of one type. reader: the type that it is resolved to, if that is known. path: of the field."""
        writer, reader = described(writer, self._writers), described(reader, self._readers)
        if isinstance(writer, list):
            return _union([self.step(branch, reader, path) for branch in writer], path)
        kind, target = type_of(writer), self._target(writer, reader)
        match kind:
            case "record" | "error":
                return self._record(writer, target, path)
            case "array":
                return _blocks(self.step(writer["items"], _part(target, "items"), f"{path}[]"), path)
            case "map":
                return _map(self.step(writer["values"], _part(target, "values"), f"{path}{{}}"), path)
            case "enum":
                return _enum(len(writer["symbols"]), path)
            case "int" | "long":
                return _whole(_floats_of(writer, kind, target), path)
            case "bytes" | "string" | "fixed":
                return _octets(writer, kind, path)
        return {"boolean": _boolean(path), "null": _fixed(0), "float": _fixed(4), "double": _fixed(8)}[kind]

    def _record(self, writer: Any, reader: Any, path: str) -> Step:
        of_reader: dict[str, Any] = {}
        for field in _part(reader, "fields") or ():
            of_reader |= dict.fromkeys(field.get("aliases", ()), field["type"])
        of_reader |= {field["name"]: field["type"] for field in _part(reader, "fields") or ()}
        before = f"{path}." if path else ""
        steps = [
            self.step(field["type"], of_reader.get(field["name"]), f"{before}{field['name']}")
            for field in writer["fields"]
        ]

        def walk(content: bytes, at: int) -> int:
            for step in steps:
                at = step(content, at)
            return at

        return walk

    def _target(self, writer: Any, reader: Any) -> Any:
        """What a type becomes: of a union the first type that takes it, as fastavro chooses."""
        if not isinstance(reader, list):
            return reader
        branches = [described(branch, self._readers) for branch in reader]
        return next((branch for branch in branches if _takes(writer, branch)), None)


def _takes(writer: Any, reader: Any) -> bool:
    kind, other = type_of(writer), type_of(reader)
    if kind in ("int", "long") and other in ("long", *_FLOATS):
        return True
    if kind != other or kind not in ("record", "error"):
        return kind == other
    names = {last_name(reader), *reader.get("aliases", ())}
    return not names.isdisjoint((writer["name"], last_name(writer)))


def _part(schema: Any, name: str) -> Any:
    return schema.get(name) if isinstance(schema, dict) else None


def _floats_of(writer: Any, kind: str, target: Any) -> str | None:
    """The floating type that a whole number is resolved to, if it is. A number that means a time is not."""
    is_other = f"{kind}-{_part(writer, 'logicalType')}" in LOGICAL_READERS
    other = type_of(target)
    return other if other in _FLOATS and not is_other else None


def _number(content: bytes, at: int, path: str) -> tuple[int, int]:
    """A number of variable length, and the place behind it."""
    found = shift = 0
    while True:
        octet = content[at]
        at += 1
        if shift == _PLACE_OF_SIGN and octet > 1:
            raise _rejected("the number has more than 64 bits", path, quotes_data=False)
        found |= (octet & 0x7F) << shift
        if octet < 0x80:
            return (found >> 1) ^ -(found & 1), at
        shift += 7


def _rejected(what: str, path: str, *, quotes_data: bool = True) -> RejectedValueError:
    return RejectedValueError(
        Rejection(kind=RejectionKind.INVALID_AVRO, path=path, detail=what, quotes_data=quotes_data)
    )


def _fixed(size: int) -> Step:
    return lambda content, at: at + size


def _boolean(path: str) -> Step:
    def walk(content: bytes, at: int) -> int:
        if content[at] > 1:
            raise _rejected(f"the byte {content[at]} is no boolean", path)
        return at + 1

    return walk


def _whole(floating: str | None, path: str) -> Step:
    def walk(content: bytes, at: int) -> int:
        number, at = _number(content, at, path)
        if floating is not None and not _is_exact(number, floating):
            detail = f"the whole number {number} is no {floating}"
            raise RejectedValueError(Rejection(kind=RejectionKind.MISMATCH, path=path, detail=detail, quotes_data=True))
        return at

    return walk


def _is_exact(number: int, floating: str) -> bool:
    form = "<f" if floating == "float" else "<d"
    return bool(struct.unpack(form, struct.pack(form, number))[0] == number)


def _octets(writer: Any, kind: str, path: str) -> Step:
    size = writer["size"] if kind == "fixed" else None
    is_decimal = kind != "string" and _part(writer, "logicalType") == "decimal"
    limit = 10 ** writer["precision"] if is_decimal else None

    def walk(content: bytes, at: int) -> int:
        length, at = (size, at) if size is not None else _number(content, at, path)
        end: int = at + length
        if limit is not None and abs(int.from_bytes(content[at:end], "big", signed=True)) >= limit:
            raise _rejected(f"the decimal has more than {writer['precision']} digits", path, quotes_data=False)
        return end

    return walk


def _enum(symbols: int, path: str) -> Step:
    def walk(content: bytes, at: int) -> int:
        index, at = _number(content, at, path)
        if not 0 <= index < symbols:
            raise _rejected(f"the number {index} stands for none of {symbols} symbols", path)
        return at

    return walk


def _union(branches: Sequence[Step], path: str) -> Step:
    def walk(content: bytes, at: int) -> int:
        index, at = _number(content, at, path)
        if not 0 <= index < len(branches):
            raise _rejected(f"the number {index} stands for none of {len(branches)} types", path)
        return branches[index](content, at)

    return walk


def _blocks(element: Step, path: str) -> Step:
    """The step of an array: blocks of elements, each with their number; a negative one is followed by a size."""

    def walk(content: bytes, at: int) -> int:
        count, at = _number(content, at, path)
        while count:
            size = None
            if count < 0:
                size, at = _number(content, at, path)
            begin = at
            for _ in range(abs(count)):
                at = element(content, at)
            if size not in (None, at - begin):
                raise _rejected(f"a block has {at - begin} bytes, not {size}", path)
            count, at = _number(content, at, path)
        return at

    return walk


def _map(value: Step, path: str) -> Step:
    def walk(content: bytes, at: int) -> int:
        keys: set[bytes] = set()

        def entry(content: bytes, at: int) -> int:
            length, at = _number(content, at, path)
            end = at + length
            key = content[at:end]
            if key in keys:
                raise _rejected(f"the map has the key {key.decode()} twice", path)
            keys.add(key)
            return value(content, end)

        return _blocks(entry, path)(content, at)

    return walk
