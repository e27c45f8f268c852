"""Reads schemas from a schema registry that speaks Confluent's API, by id and by subject, and resolves the declaration
of an input's values before a run: the columns, and the schema that they are derived from.

The schema of an id never changes, so each is requested once per process. confluent-kafka's own client is not used: it
takes more than a second to import in each of Spark's Python workers, brings an OAuth library and a second HTTP client,
and trusts certifi's authorities in place of the system's.

Source: https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import json
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from pydantic import ValidationError
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential

from sluice.declarations.column_types import described_type
from sluice.declarations.schema_files import avro_columns, columns_of_json
from sluice.declarations.value_declaration import RECORD_COLUMN, Column, ValueDeclaration
from sluice.errors import RegistryError, RegistryUnreachableError, UsageError
from sluice.record_values.schemas import FORMATS_OF_REGISTRY, DecodingLimits, RegisteredSchema, SchemaText, ValueSchema
from sluice.settings import SchemaRegistryConnection, Settings

_ANSWER_SECONDS = 10.0
_ATTEMPTS = 3
"""A registry that restarts behind a load balancer is back at once. A longer outage fails the run, and the stream's
restart policy decides."""

_MOST_IMPORTS = 100
_TRANSIENT = frozenset((408, 429, 500, 502, 503, 504))
_SCHEMAS_KEPT = 1024

_WHOLE = "(schema)"
"""Stands for the fields of a schema that has no columns."""


@lru_cache(maxsize=_SCHEMAS_KEPT)
def schema_of_id(connection: SchemaRegistryConnection, schema_id: int) -> RegisteredSchema | None:
    """Return the schema of an id; None when the registry does not have it.

    Raises
    ------
    RegistryError: when the registry rejects the request, or the schema is of an unknown format.
    RegistryUnreachableError: when the registry does not answer.
    """
    answer = _get(connection, f"schemas/ids/{schema_id}")
    return _schema(connection, answer, name=f"The schema {schema_id}") if answer is not None else None


def schema_of_subject(
    connection: SchemaRegistryConnection, subject: str, *, version: int | None = None
) -> RegisteredSchema:
    """Return a version of a subject's schema; the newest when `version` is None.

    Raises
    ------
    RegistryError: when there is no such version, the registry rejects the request, or the format is unknown.
    RegistryUnreachableError: when the registry does not answer.
    """
    name = f"The version {version or 'latest'} of the subject {subject}"
    answer = _get(connection, _path_of_version(subject, version or "latest"))
    if answer is None:
        raise RegistryError(
            f"{name} is not in the schema registry {connection.url}.",
            next_step="Correct `subject` and `version`, or register the schema.",
        )
    return _schema(connection, answer, name=name)


def described_schema(connection: SchemaRegistryConnection, schema_id: int, *, message: str | None) -> dict[str, str]:
    """The type of each field of a schema in words, by its path; of one that has no columns, why.

    Parameters
    ----------
    message: of a schema of Protobuf; unset: its first.

    Raises
    ------
    RegistryError, RegistryUnreachableError: as `schema_of_id` raises them.
    """
    found = schema_of_id(connection, schema_id)
    if found is None:
        return {_WHOLE: "the registry does not have it"}
    try:
        columns = _columns_of(found, message)
    except ValueError as error:
        return {_WHOLE: f"{found.format}, {str(error).splitlines()[0]}"}
    described = {path: kind for one in columns for path, kind in described_type(one.name, one.column_type)}
    return described | {
        one.name: f"{'required' if one.required else 'optional'} {described[one.name]}" for one in columns
    }


def _path_of_version(subject: str, version: int | str) -> str:
    return f"subjects/{quote(subject, safe='')}/versions/{version}"


def _schema(connection: SchemaRegistryConnection, answer: Mapping[str, Any], *, name: str) -> RegisteredSchema:
    schema_format = FORMATS_OF_REGISTRY.get(str(answer.get("schemaType", "AVRO")))
    text = answer.get("schema")
    if schema_format is None or not isinstance(text, str):
        raise RegistryError(f"{name} in {connection.url} is neither Avro, nor JSON Schema, nor Protobuf.")
    imports: dict[str, str] = {}
    _collect_imports(connection, answer, imports)
    return RegisteredSchema(format=schema_format, schema=SchemaText(text=text, imports=tuple(imports.items())))


def _collect_imports(connection: SchemaRegistryConnection, answer: Mapping[str, Any], imports: dict[str, str]) -> None:
    """Add the schemas that a schema refers to, by the name of the reference, each after its own references."""
    for reference in answer.get("references") or ():
        name, subject, version = reference["name"], reference["subject"], reference["version"]
        if name in imports:
            continue
        if len(imports) >= _MOST_IMPORTS:
            raise RegistryError(f"A schema of {connection.url} refers to more than {_MOST_IMPORTS} others.")
        found = _get(connection, _path_of_version(subject, version))
        if found is None:
            raise RegistryError(
                f"The schema {subject} {version}, to which another one refers, is not in {connection.url}."
            )
        _collect_imports(connection, found, imports)
        imports[name] = str(found["schema"])


@retry(
    retry=retry_if_exception_type(RegistryUnreachableError),
    stop=stop_after_attempt(_ATTEMPTS),
    wait=wait_exponential(multiplier=0.2),
    reraise=True,
)
def _get(connection: SchemaRegistryConnection, path: str) -> dict[str, Any] | None:
    """The JSON object at a path; None when the registry does not have it."""
    request = Request(f"{connection.url.rstrip('/')}/{path}", headers=_headers(connection))  # noqa: S310  # http(s) only, by its model
    context = ssl.create_default_context(cafile=connection.ca_file) if connection.url.startswith("https:") else None
    try:
        with urlopen(request, timeout=_ANSWER_SECONDS, context=context) as response:  # noqa: S310  # as above
            answer = json.load(response)
    except HTTPError as error:
        with error:
            _require_not_found(connection, error)
        return None
    except (OSError, HTTPException) as error:
        raise RegistryUnreachableError(
            f"The schema registry {connection.url} does not answer: {error}.", next_step="Check that it is running."
        ) from error
    except ValueError as error:
        raise RegistryError(
            f"The answer of the schema registry {connection.url} is not JSON; check its URL."
        ) from error
    if not isinstance(answer, dict):
        raise RegistryError(f"The answer of the schema registry {connection.url} is not a JSON object; check its URL.")
    return answer


def _require_not_found(connection: SchemaRegistryConnection, error: HTTPError) -> None:
    """Return when a registry answered that something does not exist.

    Raises
    ------
    RegistryError: for any other answer.
    RegistryUnreachableError: for an answer after which the request may be repeated.
    """
    status = f"{error.code} {error.reason}"
    if error.code == 404:
        if _is_answer_of_registry(error):
            return
        raise RegistryError(f"There is no schema registry at {connection.url}: it answers {status}.") from error
    if error.code in _TRANSIENT:
        raise RegistryUnreachableError(f"The schema registry {connection.url} answers {status}.") from error
    raise RegistryError(
        f"The schema registry {connection.url} answers {status}.",
        next_step="Check the user and password of the connection.",
    ) from error


def _is_answer_of_registry(error: HTTPError) -> bool:
    """Whether a registry answered, and not another server at a wrong URL."""
    try:
        answer = json.load(error)
    except ValueError:
        return False
    return isinstance(answer, dict) and "error_code" in answer


def _headers(connection: SchemaRegistryConnection) -> dict[str, str]:
    accept = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
    if connection.username is None or connection.password is None:
        return accept
    user = f"{connection.username}:{connection.password.get_secret_value()}".encode()
    return accept | {"Authorization": f"Basic {b64encode(user).decode()}"}


@dataclass(frozen=True, slots=True)
class RegistryLookup:
    """Looks up schemas by id in a registry; see `schema_of_id`. It can be pickled.

    connection: the connection to the registry.
    """

    connection: SchemaRegistryConnection

    def __call__(self, schema_id: int) -> RegisteredSchema | None:
        """Return the schema of an id; None when the registry does not have it."""
        return schema_of_id(self.connection, schema_id)


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
    columns = _columns_of(RegisteredSchema(format=value.format, schema=schema), value.message)
    if RECORD_COLUMN in (column.name for column in columns):
        raise ValueError(f"it has a field `{RECORD_COLUMN}`, the name of the column of the record itself")
    return columns


def _columns_of(registered: RegisteredSchema, message: str | None) -> tuple[Column, ...]:
    schema = registered.schema
    if registered.format == "protobuf":
        from sluice.declarations.protobuf_schemas import (  # few need protoc
            compiled,
            message_columns,
            message_of,
        )

        return message_columns(message_of(compiled(schema.text, schema.imports), message))
    return avro_columns(schema.text, schema.imports) if registered.format == "avro" else columns_of_json(schema.text)
