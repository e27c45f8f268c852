"""Resolves a value declaration before a run: the columns, and the schema that they are derived from."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from sluice.declarations.schemas.avro_schemas import avro_columns
from sluice.declarations.schemas.schema_files import columns_of_json
from sluice.declarations.value_declaration import RECORD_COLUMN, Column, ValueDeclaration
from sluice.errors import RegistryError, UsageError
from sluice.record_values.registry import schema_of_subject
from sluice.record_values.rejection import DecodingLimits
from sluice.record_values.schemas import SchemaText, ValueSchema
from sluice.settings import SchemaRegistryConnection, Settings


def resolve_values(value: ValueDeclaration, *, folder: Path, settings: Settings) -> ValueSchema:
    """Resolve how the values of an input are read. The schema of a subject is requested from the registry.

    Parameters
    ----------
    value: the declaration.
    folder: the folder of the declaration file, which schema files are relative to.
    settings: the connections of the deployment.

    Raises
    ------
    RegistryError: when the subject has no usable schema, or the registry rejects the request.
    RegistryUnreachableError: when the registry does not answer.
    SettingsError: when the deployment does not have the connection.
    UsageError: when the schema file cannot be read any more.
    """
    registry = settings.connection(value.registry, SchemaRegistryConnection) if value.registry is not None else None
    columns: tuple[Column, ...] = value.columns
    reader = _of_file(value, folder)
    if value.subject is not None and registry is not None:
        columns, reader = _of_subject(value, value.subject, registry)
    limits = DecodingLimits(seconds=value.decoding_timeout.total_seconds(), tries=value.decoding_tries)
    return ValueSchema(
        format=value.format,
        columns=columns,
        reader=reader,
        message=value.message,
        registry=registry,
        limits=limits,
        on_unknown_field=value.on_unknown_field,
    )


def _of_file(value: ValueDeclaration, folder: Path) -> SchemaText | None:
    """The text of a schema file in the format of the values; None for another format, which only gives the columns."""
    file = value.schema_file
    is_same_format = file is not None and (
        value.format == "protobuf" or (value.format == "avro" and _may_be_avro(value, file))
    )
    if file is None or not is_same_format:
        return None
    try:
        return SchemaText(text=(folder / file).read_text())
    except OSError as error:
        raise UsageError(f"The schema file {folder / file} cannot be read: {error.strerror}.") from error


def _may_be_avro(value: ValueDeclaration, file: str) -> bool:
    return value.registry is None or file.endswith(".avsc")


def _of_subject(
    value: ValueDeclaration, subject: str, registry: SchemaRegistryConnection
) -> tuple[tuple[Column, ...], SchemaText]:
    found = schema_of_subject(registry, subject, version=value.version)
    place = f"The subject {subject} of the schema registry {registry.url}"
    if found.format != value.format:
        raise RegistryError(f"{place} has the format {found.format}, and the values are declared as {value.format}.")
    try:
        columns = _columns(value, found.schema)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise RegistryError(f"{place} cannot be used: {first['input']!r} is refused: {first['msg']}.") from error
    except ValueError as error:
        raise RegistryError(f"{place} cannot be used: {error}.", next_step="Declare `columns` or a file.") from error
    return columns, found.schema


def _columns(value: ValueDeclaration, schema: SchemaText) -> tuple[Column, ...]:
    if value.format == "protobuf":
        from sluice.declarations.schemas.protobuf_schemas import (  # few need protoc
            compiled,
            message_columns,
            message_of,
        )

        columns = message_columns(message_of(compiled(schema.text, schema.imports), value.message))
    else:
        columns = avro_columns(schema.text, schema.imports) if value.format == "avro" else columns_of_json(schema.text)
    if RECORD_COLUMN in (column.name for column in columns):
        raise ValueError(f"it has a field `{RECORD_COLUMN}`, the name of the column of the record itself")
    return columns
