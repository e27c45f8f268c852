"""Avro values: read with the schema that they were written with, resolved to the one that is declared.

Source: https://avro.apache.org/docs/1.12.0/specification/#schema-resolution
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from fastavro import schemaless_reader
from fastavro.read import SchemaResolutionError

from sluice.declarations.schemas.avro_schemas import parsed_avro
from sluice.record_values.schemas import SchemaText
from sluice.record_values.unfit import UnfitError


class AvroReading:
    """Reads values that were written with one schema.

    Parameters
    ----------
    writer: the schema that they were written with. reader: the one that they are resolved to; unset: none.

    Raises
    ------
    ValueError: when one of the two is no Avro schema of a record.
    """

    def __init__(self, *, writer: SchemaText, reader: SchemaText | None = None) -> None:
        self._writer = parsed_avro(writer.text, writer.imports)
        self._reader = parsed_avro(reader.text, reader.imports) if reader is not None and reader != writer else None

    def read(self, content: bytes) -> Mapping[str, Any]:
        """The fields of a value.

        Raises
        ------
        UnfitError: when it was not written with the schema, or the two schemas cannot be brought together.
        """
        stream = io.BytesIO(content)
        try:
            fields: Any = schemaless_reader(stream, self._writer, self._reader)
        except SchemaResolutionError as error:
            raise UnfitError(f"its schema does not resolve to the declared one: {_line(error)}") from error
        except Exception as error:  # whatever a codec raises over bytes that are no Avro: EOFError, IndexError …
            raise UnfitError(f"the value is no Avro of its schema: {_line(error)}") from error
        if left := len(content) - stream.tell():
            raise UnfitError(f"the value is no Avro of its schema: {left} bytes are left over")
        record: Mapping[str, Any] = fields
        return record


def _line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}{f': {lines[0][:200]}' if lines else ''}"
