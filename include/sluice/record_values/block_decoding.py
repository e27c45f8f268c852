"""Decodes blocks of Avro and Protobuf values: column by column, and value by value what is doubtful.

The values of a block are decoded schema by schema, and schemas are looked up and parsed once. Why a value is rejected
is found where it is decoded alone: by its format (`avro`, `protobuf`) or by the types of its columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from sluice.declarations.column_types import ColumnType
from sluice.declarations.protobuf_schemas import incompatible_fields
from sluice.record_values.arrow_columns import Column, DecodedBlock, arrow_type, lacking_values
from sluice.record_values.avro import AvroReading
from sluice.record_values.block_columns import nulls, numbers_of, with_nulls
from sluice.record_values.block_cursor import BlockCursor, Flags, Numbers, cursor_of
from sluice.record_values.block_facts import undeclared_rejection
from sluice.record_values.column_validation import record_validation
from sluice.record_values.protobuf import ProtobufReading, message_at, unusable_schema
from sluice.record_values.rejection import LARGEST_VALUE_BYTES, NO_VALUE, RejectedValueError, Rejection, too_large
from sluice.record_values.schemas import (
    PREFIX_BYTES,
    RegisteredSchema,
    ValueSchema,
    read_message_indexes,
    read_schema_id,
)

SchemaLookup = Callable[[int], RegisteredSchema | None]
"""Returns the schema of an id; None when the registry does not have it. Raises RegistryError when it cannot answer."""

_WrittenAs = tuple[int, tuple[int, ...]]
"""What a value was written with: the id of a schema and, for Protobuf, the indexes of the message in it."""

Reading = AvroReading | ProtobufReading
"""What reads the values that were written with one schema."""


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


_Values = Sequence[bytes | None]

_MOST_SCHEMAS = 8
"""Of a block, as many are read column by column; there are more only where a sender makes a new one for each value."""

_LONGEST_PREFIX = 8
"""Bytes before a value that are compared at once: the prefix of a registry, and three for the message in its schema."""

_PREFIX = np.uint64(2 ** (8 * PREFIX_BYTES) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnarBlock:
    """A block of which most values are decoded.

    columns: of the whole block; doubtful values have anything there. doubtful: the values that are to be decoded one by
    one. undeclared: how often the others have each field that no column takes.
    """

    columns: Sequence[Column]
    doubtful: Numbers
    undeclared: Mapping[str, int] = field(default_factory=dict)


class BinaryBlockDecoder:
    """Decodes blocks of Avro or Protobuf values.

    Parameters
    ----------
    schema, lookup: as `ValueDecoder` takes them.

    Raises
    ------
    ValueError: when the declared schema cannot be used.
    """

    def __init__(self, schema: ValueSchema, *, lookup: SchemaLookup | None = None) -> None:
        self._schema = schema
        self._is_framed = lookup is not None
        self._decoder = ValueDecoder(schema, lookup=lookup)
        self._types = [(column.name, arrow_type(column.column_type)) for column in schema.columns]
        self._required = [column.name for column in schema.columns if column.required]

    def columnar(self, block: Any) -> ColumnarBlock:
        """Read a block column by column.

        Raises
        ------
        RegistryError: see `ValueDecoder.decode`.
        """
        self._decoder.begin_block()
        return self._columnar(block)

    def completed(
        self, found: ColumnarBlock, block: Any, decode_values: Callable[[_Values], DecodedBlock]
    ) -> DecodedBlock:
        """A block with its doubtful values decoded one by one, and its required columns checked.

        Parameters
        ----------
        decode_values: the method of this name, which a caller may have bounded.
        """
        if not found.doubtful.size:
            return self._checked(DecodedBlock(columns=found.columns, undeclared=found.undeclared))
        values = block.take(numbers_of(found.doubtful)).to_pylist()
        return self._checked(_completed(found, decode_values(values)))

    def decode(self, values: _Values) -> DecodedBlock:
        """Decode a block of values one by one.

        Raises
        ------
        RegistryError: see `ValueDecoder.decode`.
        """
        self._decoder.begin_block()
        return self.decode_values(values)

    def decode_values(self, values: _Values) -> DecodedBlock:
        """Decode values of the current block one by one.

        Raises
        ------
        RegistryError: see `ValueDecoder.decode`.
        """
        decoded = [self._decoder.decode(value) if value is not None else None for value in values]
        rows = [(value.fields if value is not None else None) or {} for value in decoded]
        columns = [pa.array([row.get(name) for row in rows], kind) for name, kind in self._types]
        found = ((index, NO_VALUE if value is None else value.rejection) for index, value in enumerate(decoded))
        rejections = {index: rejection for index, rejection in found if rejection is not None}
        undeclared = Counter(chain.from_iterable(value.undeclared for value in decoded if value is not None))
        return self._checked(DecodedBlock(columns=columns, rejections=rejections, undeclared=undeclared))

    def _columnar(self, block: Any) -> ColumnarBlock:
        if block.nbytes > LARGEST_VALUE_BYTES:
            if len(block) == 1:
                return ColumnarBlock(columns=self._nulls(1), doubtful=np.zeros(1, np.int64))
            half = len(block) // 2
            return _joined(self._columnar(block[:half]), self._columnar(block[half:]), begin=half)
        cursor = cursor_of(block)
        present = np.flatnonzero(block.is_valid().to_numpy(zero_copy_only=False))
        groups: list[tuple[Numbers, list[Column]]] = []
        by_schema: list[tuple[Numbers, Sequence[str]]] = []
        for reading, part in self._groups(block, cursor, present):
            groups.append((part.rows, self._columns(reading, part)))
            by_schema.append((part.rows, reading.of_schema))
        is_doubtful = cursor.content.is_doubtful
        if self._schema.rejects_undeclared:
            for _, rows in cursor.content.undeclared:
                is_doubtful[rows] = True
        is_doubtful |= _left_out(groups, len(block))
        undeclared = _counted([*cursor.content.undeclared, *_named(by_schema)], is_doubtful)
        columns = _of_groups(groups, len(block)) if groups else self._nulls(len(block))
        return ColumnarBlock(columns=columns, doubtful=np.flatnonzero(is_doubtful), undeclared=undeclared)

    def _columns(self, reading: Reading, part: BlockCursor) -> list[Column]:
        found = reading.columnar.columns(part) if reading.columnar is not None else {}
        return [found[name] if name in found else nulls(len(part), kind) for name, kind in self._types]

    def _nulls(self, length: int) -> list[Column]:
        return [nulls(length, kind) for _, kind in self._types]

    def _groups(self, block: Any, cursor: BlockCursor, present: Numbers) -> Iterator[tuple[Reading, BlockCursor]]:
        """The values that were written with the same schema and are read column by column, and what reads them."""
        if not self._is_framed:
            if present.size:
                yield from self._readable(b"", cursor.part(present))
            return
        present = present[(cursor.end - cursor.at)[present] >= PREFIX_BYTES]
        heads = cursor.content.words_at(cursor.at) & _PREFIX
        found, counts = np.unique(heads[present], return_counts=True)
        for head in found[np.argsort(-counts)][:_MOST_SCHEMAS].tolist():
            places = present[heads[present] == head]
            yield from self._readable(block[int(places[0])].as_py(), cursor.part(places))

    def _readable(self, first: bytes, part: BlockCursor) -> Iterator[tuple[Reading, BlockCursor]]:
        """What reads the values column by column, if anything does. first: the first of them."""
        try:
            reading, size = self._decoder.reading_of(first)
        except RejectedValueError:
            return
        is_rejected = self._schema.rejects_undeclared and bool(reading.of_schema)
        if reading.columnar is None or is_rejected or size > _LONGEST_PREFIX:
            return
        mask = np.uint64(2 ** (8 * size) - 1)
        heads = part.content.words_at(part.at) & mask
        begins = np.uint64(int.from_bytes(first[:size], "little"))
        same = part.part(np.flatnonzero(heads == begins))
        same.at = same.at + size
        yield reading, same

    def _checked(self, block: DecodedBlock) -> DecodedBlock:
        """The same block; values that have no value for a required column are rejected."""
        columns = {name: column for (name, _), column in zip(self._types, block.columns, strict=True)}
        rejections = lacking_values(columns, self._required)
        if rejections.keys() <= block.rejections.keys():
            return block
        kept = np.array([index for index in range(len(block.columns[0])) if index not in rejections], np.int64)
        length = len(block.columns[0])
        taken = [with_nulls(column.take(numbers_of(kept)), kept, length) for column in block.columns]
        return DecodedBlock(columns=taken, rejections=rejections | block.rejections, undeclared=block.undeclared)


def _completed(found: ColumnarBlock, decoded: DecodedBlock) -> DecodedBlock:
    """A block with those of its values that were decoded one by one."""
    places = found.doubtful.tolist()
    rejections = {places[index]: rejection for index, rejection in decoded.rejections.items()}
    undeclared = Counter(found.undeclared) + Counter(decoded.undeclared)
    columns = decoded.columns
    if len(places) < len(found.columns[0]):
        order = np.arange(len(found.columns[0]))
        order[found.doubtful] = len(order) + np.arange(len(places))
        index = numbers_of(order)
        columns = [
            pa.concat_arrays([one, other]).take(index)
            for one, other in zip(found.columns, decoded.columns, strict=True)
        ]
    return DecodedBlock(columns=columns, rejections=rejections, undeclared=undeclared)


def _joined(first: ColumnarBlock, second: ColumnarBlock, *, begin: int) -> ColumnarBlock:
    """Two parts of a block. begin: where the second one begins."""
    return ColumnarBlock(
        columns=[pa.concat_arrays(list(both)) for both in zip(first.columns, second.columns, strict=True)],
        doubtful=np.concatenate([first.doubtful, second.doubtful + begin]),
        undeclared=Counter(first.undeclared) + Counter(second.undeclared),
    )


def _left_out(groups: Sequence[tuple[Numbers, list[Column]]], length: int) -> Flags:
    are_left_out = np.ones(length, np.bool_)
    for rows, _ in groups:
        are_left_out[rows] = False
    return are_left_out


def _of_groups(groups: Sequence[tuple[Numbers, list[Column]]], length: int) -> list[Column]:
    """The columns of all groups, each value at its place; nulls where a value is in none."""
    rows = np.concatenate([of for of, _ in groups])
    joined = [pa.concat_arrays(list(parts)) for parts in zip(*(columns for _, columns in groups), strict=True)]
    if len(rows) == length and len(groups) == 1:
        return joined
    return [with_nulls(column, rows, length) for column in joined]


def _named(by_schema: Sequence[tuple[Numbers, Sequence[str]]]) -> Iterator[tuple[str, Numbers]]:
    for rows, names in by_schema:
        for name in names:
            yield name, rows


def _counted(found: Sequence[tuple[str, Numbers]], is_doubtful: Flags) -> Counter[str]:
    """How often each field is there in values that are not doubtful."""
    counts: Counter[str] = Counter()
    for name, rows in found:
        counts[name] += int(np.count_nonzero(~is_doubtful[rows]))
    return +counts
