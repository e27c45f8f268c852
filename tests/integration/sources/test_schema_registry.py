"""A real registry: schemas by their ids and subjects, what is not there, and a registry that does not answer."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from uuid import uuid4

import pytest
from pydantic import SecretStr
from tests.fixtures.deployment import PLANTED_SECRET
from tests.fixtures.ports import free_port
from tests.fixtures.registry import Registry

from sluice.declarations.value_declaration import ValueDeclaration
from sluice.errors import RegistryError, RegistryUnreachableError
from sluice.failure_reasons import FailureClass, FailureReason
from sluice.failures.classification import classify
from sluice.failures.error_chains import chain_of
from sluice.record_values.registry import resolve_values, schema_of_id, schema_of_subject
from sluice.record_values.schemas import RegisteredSchema, SchemaText
from sluice.settings import SchemaRegistryConnection, Settings

AVRO = json.dumps({"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}]})
NEWER = json.dumps(
    {"type": "record", "name": "order", "fields": [{"name": "id", "type": "long"}, {"name": "w", "type": "string"}]}
)
PROTO = 'syntax = "proto3"; package shop; message Line { int32 n = 1; }'


def test_schemas_are_found_by_id_and_by_subject(registry: Registry) -> None:
    subject = f"s{uuid4().hex}"
    first, second = registry.register(subject, AVRO), registry.register(subject, NEWER)
    connection = registry.connection
    assert schema_of_id(connection, first) == RegisteredSchema(format="avro", schema=SchemaText(text=AVRO))
    assert schema_of_id(connection, second) == schema_of_subject(connection, subject)
    assert schema_of_subject(connection, subject, version=1).schema.text == AVRO


def test_what_is_missing_is_reported(registry: Registry) -> None:
    assert schema_of_id(registry.connection, 2**31 - 1) is None
    with pytest.raises(RegistryError, match=r"The version latest of the subject nothing is not in the schema registry"):
        schema_of_subject(registry.connection, "nothing")


def test_a_schema_comes_with_those_that_it_refers_to(registry: Registry) -> None:
    lines, orders = f"l{uuid4().hex}", f"o{uuid4().hex}"
    registry.register(lines, PROTO, kind="PROTOBUF")
    text = 'syntax = "proto3"; package shop; import "line.proto"; message Order { Line line = 1; }'
    reference = {"name": "line.proto", "subject": lines, "version": 1}
    schema_id = registry.register(orders, text, kind="PROTOBUF", references=[reference])
    found = schema_of_id(registry.connection, schema_id)
    assert found == RegisteredSchema(format="protobuf", schema=SchemaText(text=text, imports=(("line.proto", PROTO),)))


def settings_with(connection: SchemaRegistryConnection, folder: Path) -> Settings:
    """A deployment that has nothing but a registry."""
    places = {"pipelines": folder, "jars": folder, "logs": folder, "reports": folder}
    stores = {"catalog": {"uri": "u", "warehouse": "w"}, "object_store": {}}
    ledger = SecretStr("postgresql+psycopg://")
    more = {"checkpoints": "file:///c", "ledger_url": ledger, "connections": {"registry": connection}}
    return Settings(**places, **stores, **more)  # type: ignore[arg-type]  # as the environment would hold them


@pytest.mark.parametrize(
    ("kind", "text", "columns"),
    [("AVRO", NEWER, [("id", "long"), ("w", "string")]), ("PROTOBUF", PROTO, [("n", "int")])],
)
def test_the_columns_are_those_of_a_subject(
    registry: Registry, tmp_path: Path, kind: str, text: str, columns: list[tuple[str, str]]
) -> None:
    subject = f"s{uuid4().hex}"
    registry.register(subject, text, kind=kind)
    declared = ValueDeclaration.model_validate({"format": kind.lower(), "registry": "registry", "subject": subject})
    schema = resolve_values(declared, folder=tmp_path, settings=settings_with(registry.connection, tmp_path))
    assert [(column.name, column.type) for column in schema.columns] == columns
    assert schema.reader == SchemaText(text=text)
    with pytest.raises(RegistryError, match="and the values are declared as json"):
        resolve_values(
            declared.model_copy(update={"format": "json"}),
            folder=tmp_path,
            settings=settings_with(registry.connection, tmp_path),
        )


def test_a_registry_that_does_not_answer_is_a_failure_of_its_own_kind() -> None:
    away = SchemaRegistryConnection(kind="schema_registry", url=f"http://127.0.0.1:{free_port()}")
    with pytest.raises(RegistryUnreachableError) as raised:
        schema_of_id(away, 1)
    failure = classify(chain_of(raised.value))
    assert (failure.failure_class, failure.reason) == (
        FailureClass.INFRASTRUCTURE,
        FailureReason.REGISTRY_UNREACHABLE,
    )


class _Refusing(BaseHTTPRequestHandler):
    """Wants a user, and is busy when it has one."""

    def do_GET(self) -> None:  # the library's name
        self.send_response(503 if self.headers.get("Authorization") else 401)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # the library's name
        """Nothing is logged."""


def test_refusals_are_distinguished_and_show_no_password() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        anonymous = SchemaRegistryConnection(kind="schema_registry", url=url)
        named = anonymous.model_copy(update={"username": "reader", "password": SecretStr(PLANTED_SECRET)})
        with pytest.raises(RegistryError, match="401 Unauthorized") as refused:
            schema_of_id(anonymous, 1)
        with pytest.raises(RegistryUnreachableError, match="503 Service Unavailable") as busy:
            schema_of_id(named, 1)
        server.shutdown()
    assert classify(chain_of(refused.value)).reason is FailureReason.ACCESS_REFUSED
    assert classify(chain_of(busy.value)).reason is FailureReason.REGISTRY_UNREACHABLE
    assert PLANTED_SECRET not in repr(chain_of(busy.value)) + repr(named)
