"""A schema registry that speaks Confluent's API: the schema of an id, and the schemas of a subject.

A schema that has an id never changes, so that each is asked for once by a process.

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
from typing import Any
from urllib.error import HTTPError
from urllib.parse import quote
from urllib.request import Request, urlopen

from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_exponential

from sluice.errors import RegistryError, RegistryUnreachableError
from sluice.record_values.schemas import FORMATS_OF_REGISTRY, RegisteredSchema, SchemaText
from sluice.settings import SchemaRegistryConnection

_ANSWER_SECONDS = 10.0
_TRIES = 3
"""A registry that restarts behind a balancer is back at once; after that the stream's own restart policy is asked."""

_MOST_IMPORTS = 100
_BUSY = frozenset((408, 429, 500, 502, 503, 504))
_SCHEMAS_KEPT = 1024


@lru_cache(maxsize=_SCHEMAS_KEPT)
def schema_of_id(connection: SchemaRegistryConnection, schema_id: int) -> RegisteredSchema | None:
    """The schema that has an id; none when the registry does not know it.

    Raises
    ------
    RegistryError: when it refuses to answer, or the schema is of a form that nobody knows.
    RegistryUnreachableError: when it does not answer.
    """
    answer = _asked(connection, f"schemas/ids/{schema_id}")
    return _schema(connection, answer, place=f"The schema {schema_id}") if answer is not None else None


def schema_of_subject(
    connection: SchemaRegistryConnection, subject: str, *, version: int | None = None
) -> RegisteredSchema:
    """A version of a subject's schema; the newest when none is named.

    Raises
    ------
    RegistryError: when there is none, or it is of a form that nobody knows.
    RegistryUnreachableError: when it does not answer.
    """
    place = f"The version {version or 'latest'} of the subject {subject}"
    answer = _asked(connection, f"subjects/{quote(subject, safe='')}/versions/{version or 'latest'}")
    if answer is None:
        raise RegistryError(
            f"{place} is not in the schema registry {connection.url}.",
            next_step="Correct `subject` and `version`, or register the schema.",
        )
    return _schema(connection, answer, place=place)


def _schema(connection: SchemaRegistryConnection, answer: Mapping[str, Any], *, place: str) -> RegisteredSchema:
    kind = FORMATS_OF_REGISTRY.get(str(answer.get("schemaType", "AVRO")))
    text = answer.get("schema")
    if kind is None or not isinstance(text, str):
        raise RegistryError(f"{place} in {connection.url} is neither Avro, nor JSON Schema, nor Protobuf.")
    imports: dict[str, str] = {}
    _collect_imports(connection, answer, imports)
    return RegisteredSchema(format=kind, schema=SchemaText(text=text, imports=tuple(imports.items())))


def _collect_imports(connection: SchemaRegistryConnection, answer: Mapping[str, Any], imports: dict[str, str]) -> None:
    """The schemas that a schema refers to, by the name it has for them, each after those that it needs itself."""
    for reference in answer.get("references") or ():
        name, subject, version = reference["name"], reference["subject"], reference["version"]
        if name in imports:
            continue
        if len(imports) >= _MOST_IMPORTS:
            raise RegistryError(f"A schema of {connection.url} refers to more than {_MOST_IMPORTS} others.")
        found = _asked(connection, f"subjects/{quote(subject, safe='')}/versions/{version}")
        if found is None:
            raise RegistryError(f"The schema {subject} {version}, which another one needs, is not in {connection.url}.")
        _collect_imports(connection, found, imports)
        imports[name] = str(found["schema"])


@retry(
    retry=retry_if_exception_type(RegistryUnreachableError),
    stop=stop_after_attempt(_TRIES),
    wait=wait_exponential(multiplier=0.2),
    reraise=True,
)
def _asked(connection: SchemaRegistryConnection, path: str) -> dict[str, Any] | None:
    """The answer to a question; none for what is not there."""
    request = Request(f"{connection.url.rstrip('/')}/{path}", headers=_headers(connection))  # noqa: S310  # http(s) only, by its model
    context = ssl.create_default_context(cafile=connection.ca_file) if connection.url.startswith("https:") else None
    try:
        with urlopen(request, timeout=_ANSWER_SECONDS, context=context) as response:  # noqa: S310  # as above
            answer = json.load(response)
    except HTTPError as error:
        with error:
            _require_absent(connection, error)
        return None
    except (OSError, HTTPException) as error:
        raise RegistryUnreachableError(
            f"The schema registry {connection.url} does not answer: {error}.", next_step="See that it runs."
        ) from error
    except ValueError as error:
        raise RegistryError(f"The schema registry {connection.url} answers no JSON; see its address.") from error
    if not isinstance(answer, dict):
        raise RegistryError(f"The schema registry {connection.url} answers no JSON object; see its address.")
    return answer


def _require_absent(connection: SchemaRegistryConnection, error: HTTPError) -> None:
    """See that an answer says no more than that something is not there.

    Raises
    ------
    RegistryError: for any other answer.
    """
    status = f"{error.code} {error.reason}"
    if error.code == 404:
        if _is_answer_of_registry(error):
            return
        raise RegistryError(f"At {connection.url} is no schema registry: it answers {status}.") from error
    if error.code in _BUSY:
        raise RegistryUnreachableError(f"The schema registry {connection.url} answers {status}.") from error
    raise RegistryError(
        f"The schema registry {connection.url} answers {status}.", next_step="See the connection's user and password."
    ) from error


def _is_answer_of_registry(error: HTTPError) -> bool:
    """Whether a registry says that something is not there, and not some server that knows nothing of schemas."""
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
class SchemasOfValues:
    """The schemas that values were written with, asked for by their ids. connection: to the registry."""

    connection: SchemaRegistryConnection

    def __call__(self, schema_id: int) -> RegisteredSchema | None:
        """See `schema_of_id`."""
        return schema_of_id(self.connection, schema_id)
