"""Decodes values one by one: a value becomes its columns, or a reason why it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sluice.record_values.avro import AvroReading
from sluice.record_values.fitting import Fit, fit_of
from sluice.record_values.frames import read_frame, read_message_indexes
from sluice.record_values.protobuf import ProtobufReading, message_at, misfits
from sluice.record_values.schemas import RegisteredSchema, ValueSchema
from sluice.record_values.unfit import UnfitError

SchemaLookup = Callable[[int], RegisteredSchema | None]
"""The schema that has an id; none when nobody knows it. Raises RegistryError when it cannot be told."""

_Place = tuple[int, tuple[int, ...]]
"""A schema's id, and for Protobuf the way to the message."""


class Reading(Protocol):
    """Reads the values of one schema."""

    def read(self, content: bytes) -> Mapping[str, Any]:
        """The fields of a value; raises UnfitError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """What came of a value: its columns, or the reason why there are none."""

    fields: Mapping[str, Any] | None = None
    unfit: str | None = None


class ValueDecoder:
    """Decodes the values of one input, and remembers what it learned of schemas.

    Parameters
    ----------
    schema: how the values are read. lookup: the schemas of a registry; unset where values carry no ids.

    Raises
    ------
    ValueError: when the declared schema cannot be used.
    """

    def __init__(self, schema: ValueSchema, *, lookup: SchemaLookup | None = None) -> None:
        self._schema = schema
        self._lookup = lookup
        self._fits = {column.name: fit_of(column.column_type) for column in schema.columns}
        self._readings: dict[_Place, Reading] = {}
        self._unreadable: dict[_Place, str] = {}
        self._declared = _declared_reading(schema) if lookup is None or schema.format == "protobuf" else None

    def decode_all(self, values: Iterable[bytes | None]) -> list[Decoded]:
        """Decode a block of values; one that is null has neither columns nor a reason.

        A schema that could not be had is asked for once in a block, however many values name it, and anew in the next:
        it may be registered meanwhile.

        Raises
        ------
        RegistryError: as `decode`.
        """
        self._unreadable.clear()
        return [self.decode(value) if value is not None else Decoded() for value in values]

    def decode(self, value: bytes) -> Decoded:
        """Decode a value.

        Raises
        ------
        RegistryError: when the registry does not tell its schema: then nobody knows whether the value is sound.
        """
        try:
            fields = self._read(value)
            return Decoded(fields={name: _fitted(name, fit, fields.get(name)) for name, fit in self._fits.items()})
        except UnfitError as error:
            return Decoded(unfit=str(error))

    def _read(self, value: bytes) -> Mapping[str, Any]:
        if self._lookup is None:
            if self._declared is None:
                raise UnfitError("no schema is declared")
            return self._declared.read(value)
        frame = read_frame(value)
        indexes: tuple[int, ...] = (0,)
        content = frame.content
        if self._schema.format == "protobuf":
            indexes, content = read_message_indexes(frame.content)
        try:
            return self._reading(frame.schema_id, indexes).read(content)
        except UnfitError as error:
            raise UnfitError(f"schema {frame.schema_id}: {error}") from error

    def _reading(self, schema_id: int, indexes: tuple[int, ...]) -> Reading:
        place = (schema_id, indexes)
        if place in self._unreadable:
            raise UnfitError(self._unreadable[place])
        if place not in self._readings:
            try:
                self._readings[place] = self._new_reading(schema_id, indexes)
            except ValueError as error:  # UnfitError is one
                self._unreadable[place] = str(error)
                raise UnfitError(str(error)) from error
        return self._readings[place]

    def _new_reading(self, schema_id: int, indexes: tuple[int, ...]) -> Reading:
        registered = self._lookup(schema_id) if self._lookup is not None else None
        if registered is None:
            raise UnfitError("the registry has no such schema")
        if registered.format != self._schema.format:
            raise UnfitError(f"it is of {registered.format}, not of {self._schema.format}")
        if isinstance(self._declared, ProtobufReading):
            return _require_alike(self._declared, registered, indexes)
        return AvroReading(writer=registered.schema, reader=self._schema.reader)


def _declared_reading(schema: ValueSchema) -> Reading:
    if schema.reader is None:
        raise ValueError(f"values of {schema.format} need a schema")
    if schema.format == "protobuf":
        return ProtobufReading(reader=schema.reader, message=schema.message)
    return AvroReading(writer=schema.reader)


def _require_alike(declared: ProtobufReading, registered: RegisteredSchema, indexes: tuple[int, ...]) -> Reading:
    written = message_at(registered.schema, indexes)
    if written.full_name != declared.message.full_name:
        raise UnfitError(f"the value is a {written.full_name}, not a {declared.message.full_name}")
    if found := misfits(written, declared.message):
        raise UnfitError(f"it does not fit the declared one: {'; '.join(found)}")
    return declared


def _fitted(name: str, fit: Fit, value: Any) -> Any:
    if value is None:
        return None
    try:
        return fit(value)
    except UnfitError as error:
        raise UnfitError(f"{name}: {error}") from error
