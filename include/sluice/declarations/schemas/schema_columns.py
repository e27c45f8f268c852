"""Puts the columns of schema files into the declarations that name them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ValidationError

from sluice.declarations.bounded_files import read_bounded
from sluice.declarations.error_messages import key_text
from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.schemas.schema_files import LARGEST_SCHEMA_BYTES, read_columns, read_schema
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.value_declaration import RECORD_COLUMN, Column
from sluice.declarations.yaml_document import Document, KeyPath
from sluice.errors import DeclarationError


def with_columns_of_files(
    declaration: StreamDeclaration, document: Document, *, folder: Path, digest: Callable[[bytes], None]
) -> tuple[StreamDeclaration, tuple[DeclarationError, ...]]:
    """The declaration with columns in place of each `schema_file`, and what is wrong with those files.

    Parameters
    ----------
    document: the declaration's file, for places. folder: where it lies; schema files lie in it.
    digest: takes the bytes of every schema file: a change of it is a change of the stream.
    """
    inputs, errors = dict(declaration.inputs), []
    for name, declared in declaration.inputs.items():
        path, file = _schema_file(declared)
        if file is None:
            continue
        path = ("inputs", name, *path)
        try:
            columns = _columns(folder / file, declared)
            digest(read_bounded(folder / file, most_bytes=LARGEST_SCHEMA_BYTES))
        except ValueError as error:
            sentence = f"`{key_text(path)}`: {file} cannot be used: {_reason(error)}."
            errors.append(DeclarationError(sentence, location=document.location(path)))
        else:
            inputs[name] = _with_columns(declared, columns)
    return declaration.model_copy(update={"inputs": inputs}), tuple(errors)


def _schema_file(declared: InputDeclaration) -> tuple[KeyPath, str | None]:
    """Where in an input a schema file is named, and which; none for most."""
    way, source = "stream" if declared.is_stream else "static", declared.declared_source
    if source.value is not None:
        return (way, source.kind, "value", "schema_file"), source.value.schema_file
    return (way, "files", "schema_file"), source.files.schema_file if source.files is not None else None


def _columns(file: Path, declared: InputDeclaration) -> tuple[Column, ...]:
    """The columns of a schema file, once it is one by which the input's values can be read."""
    value = declared.declared_source.value
    if value is not None and value.format == "avro" and (value.registry is None or file.suffix == ".avsc"):
        from sluice.declarations.schemas.avro_schemas import avro_columns  # few need fastavro

        columns = avro_columns(read_schema(file))
    else:
        columns = read_columns(file, message=value.message if value is not None else None)
    if value is not None and RECORD_COLUMN in (column.name for column in columns):
        raise ValueError(f"it has a field `{RECORD_COLUMN}`, which is where the record itself lies")
    return columns


def _with_columns(declared: InputDeclaration, columns: tuple[Column, ...]) -> InputDeclaration:
    way = "stream" if declared.is_stream else "static"
    source = declared.declared_source
    update: dict[str, BaseModel] = {}
    if source.value is not None:
        value = source.value.model_copy(update={"columns": columns})
        update[source.kind] = source.source.model_copy(update={"value": value})
    elif source.files is not None:
        update["files"] = source.files.model_copy(update={"columns": columns})
    return declared.model_copy(update={way: source.model_copy(update=update)})


def _reason(error: ValueError) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"the column's {first['loc'][-1]} {first['input']!r} is refused: {first['msg']}"
    return str(error)
