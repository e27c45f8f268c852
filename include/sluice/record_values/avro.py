"""Reads Avro values with the schema that they were written with, resolved to the declared one.

Source: https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from typing import Any

from fastavro import schemaless_reader
from fastavro.read import SchemaResolutionError

from sluice.declarations.column_types import ColumnType
from sluice.declarations.schemas.avro_schemas import parsed_avro
from sluice.record_values.avro_columnar import ColumnarAvro
from sluice.record_values.avro_fields import undeclared_in_schema
from sluice.record_values.avro_limits import require_bounded
from sluice.record_values.avro_strict import strict_walk
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
        self._require_strict = strict_walk(self._writer, self._reader)
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
