"""Opening the catalog: what a person reads when it is not there, does not answer, or does not let us in."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from hashlib import md5
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from uuid import uuid4

import pytest
from pydantic import SecretStr
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import PyArrowFileIO

from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import LakehouseError
from sluice.settings import Settings
from sluice.stack.credentials import read_credentials
from sluice.tables import catalog as catalog_module
from sluice.tables.catalog import catalog_properties, open_catalog
from sluice.tables.declared_tables import create_or_evolve_table, load_table
from sluice.tables.whole_files import WholeWrites

if TYPE_CHECKING:
    from tests.fixtures.stack import Stack

COLUMNS: list[dict[str, Any]] = [{"name": "id", "type": "int"}]
SECRET = "a-planted-secret"  # noqa: S105  # planted, to see that no message repeats it


@pytest.fixture
def settings(services_stack: Stack) -> Settings:
    """The settings of a running stack."""
    return services_stack.settings()


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def with_catalog(settings: Settings, **changes: object) -> Settings:
    """The settings with another catalog."""
    return settings.model_copy(update={"catalog": settings.catalog.model_copy(update=changes)})


def with_address(settings: Settings, port: int) -> Settings:
    """The settings with the catalog at another port."""
    uri = f"http://127.0.0.1:{port}"
    return with_catalog(settings, uri=uri, oauth2_server_uri=f"{uri}/v1/oauth/tokens")


def test_a_catalog_that_runs_is_opened(settings: Settings) -> None:
    assert load_table(open_catalog(settings), "no_such.table") is None


@pytest.mark.parametrize("keeps_manifests", [False, True])
def test_a_small_file_is_written_with_one_request(settings: Settings, keeps_manifests: bool) -> None:
    """S3 marks what was uploaded in parts by a dash in its ETag. Before it is closed, nothing of the file is there."""
    catalog = open_catalog(settings, keeps_manifests=keeps_manifests)
    declaration = TableDeclaration.model_validate(
        {"table": f"n{uuid4().hex[:8]}.small", "description": "d", "owner": "o", "columns": COLUMNS}
    )
    create_or_evolve_table(catalog, declaration)
    table = catalog.load_table(declaration.table)
    location = f"{table.location()}/data/small.parquet"
    store, (_, bucket, key, *_) = s3_client(settings.object_store), urlsplit(location)

    with table.io.new_output(location).create() as stream:
        stream.write(b"small")
        assert not table.io.new_input(location).exists()

    found = store.get_object(Bucket=bucket, Key=key.lstrip("/"))
    assert (found["Body"].read(), found["ETag"]) == (b"small", f'"{md5(b"small", usedforsecurity=False).hexdigest()}"')


def test_the_server_may_name_another_access_to_files(settings: Settings) -> None:
    catalog = open_catalog(settings)
    declaration = TableDeclaration.model_validate(
        {"table": f"n{uuid4().hex[:8]}.other", "description": "d", "owner": "o", "columns": COLUMNS}
    )
    create_or_evolve_table(catalog, declaration)
    catalog.properties[PY_IO_IMPL] = f"{PyArrowFileIO.__module__}.PyArrowFileIO"
    assert type(catalog.load_table(declaration.table).io) is PyArrowFileIO


@pytest.mark.parametrize("in_parts", [False, True])
def test_a_file_that_cannot_be_written_is_an_error(settings: Settings, services_stack: Stack, in_parts: bool) -> None:
    """Who may only read is refused when the file is closed, or with its first part."""
    key_id, secret = (SecretStr(word) for word in read_credentials(services_stack.data / "credentials.json").reader)
    reading = settings.object_store.model_copy(update={"access_key_id": key_id, "secret_access_key": secret})
    properties = catalog_properties(settings.model_copy(update={"object_store": reading}))
    file = WholeWrites(properties).new_output("s3://landing/any/file")

    with pytest.raises(OSError, match="ACCESS_DENIED"), file.create() as stream:
        stream.write(b"-" * (20_000_000 if in_parts else 10))


def test_a_catalog_that_is_not_there(settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free_port = server.getsockname()[1]
    with pytest.raises(LakehouseError) as refused:
        open_catalog(with_address(settings, free_port))
    assert str(refused.value) == (
        f"Cannot open the catalog at http://127.0.0.1:{free_port}: Connection refused. "
        "Check that the catalog runs (`sluice stack status`) and that SLUICE_CATALOG__URI is its address."
    )


def test_a_catalog_that_never_answers_is_not_waited_for_without_end(
    settings: Settings, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog_module, "ANSWER_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(LakehouseError, match=r"Cannot open the catalog at .*: no answer \(ReadTimeout\)"):
        open_catalog(with_address(settings, silent_port))
    assert time.monotonic() - began < 10


def test_a_catalog_that_does_not_let_us_in(settings: Settings) -> None:
    with pytest.raises(LakehouseError, match="access denied") as refused:
        open_catalog(with_catalog(settings, credential=SecretStr(f"someone:{SECRET}")))
    assert SECRET not in str(refused.value)
    assert refused.value.next_step == "Check that SLUICE_CATALOG__CREDENTIAL is a credential of the catalog."


def test_a_warehouse_that_is_not_there(settings: Settings) -> None:
    elsewhere = open_catalog(with_catalog(settings, warehouse="s3://elsewhere"))
    declaration = TableDeclaration.model_validate(
        {"table": "a.b", "description": "d", "owner": "o", "columns": [{"name": "id", "type": "int"}]}
    )
    with pytest.raises(LakehouseError, match=r"Cannot create the table a\.b: .*elsewhere"):
        create_or_evolve_table(elsewhere, declaration)
