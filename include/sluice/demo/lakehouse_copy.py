"""Reads the lakehouse's tables with an engine that did not write them: DuckDB and its Iceberg extension.

The tables are copied into memory, so that all checks see the same rows and do not wait for the object store.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from sluice.errors import SettingsError
from sluice.settings import Settings

if TYPE_CHECKING:
    import duckdb

SEEN = "seen"
"""The DuckDB catalog of the copies: `seen.bronze.flights` is a copy of the lakehouse's `bronze.flights`."""

_EXTENSIONS = ("httpfs", "avro", "iceberg")


def copy_lakehouse(settings: Settings, *, tables: Sequence[str]) -> duckdb.DuckDBPyConnection:
    """Copy tables of the lakehouse into a new database in memory, in which times are shown as UTC.

    Parameters
    ----------
    settings: the addresses and credentials of the catalog and the object store.
    tables: `<namespace>.<table>`; all of them exist.

    Raises
    ------
    SettingsError: when an extension of DuckDB is not installed, or the catalog has no credential.
    """
    database = open_database()
    attach_lakehouse(database, settings)
    for table in tables:
        create_schema_of(database, table)
        database.execute(f"create table {SEEN}.{table} as from lakehouse.{table}")
    database.execute("detach lakehouse")
    return database


def open_database() -> duckdb.DuckDBPyConnection:
    """A new database in memory with an empty catalog for the copies."""
    import duckdb  # of the `local` extra: a deployment, which does not install it, still shows `sluice demo --help`

    # The extensions come from PyPI as files; DuckDB checks signatures only against its own download site.
    database = duckdb.connect(config={"allow_unsigned_extensions": "true", "autoinstall_known_extensions": "false"})
    database.execute("set timezone = 'UTC'")
    database.execute(f"attach ':memory:' as {SEEN}")
    return database


def attach_lakehouse(database: duckdb.DuckDBPyConnection, settings: Settings) -> None:
    """Attach the catalog as `lakehouse`, for reading alone: `lakehouse.bronze.flights` is the table itself.

    Raises
    ------
    SettingsError: when an extension of DuckDB is not installed, or the catalog has no credential.
    """
    load_extensions(database)
    database.execute(_object_store_secret(settings))
    database.execute(_attach_catalog(settings))


def load_extensions(database: duckdb.DuckDBPyConnection) -> None:
    """Load the extensions with which a database reads Iceberg tables.

    Raises
    ------
    SettingsError: when an extension is not installed.
    """
    for extension in _EXTENSIONS:
        database.execute(f"load {_quoted(_extension_file(extension))}")


def create_schema_of(database: duckdb.DuckDBPyConnection, table: str) -> None:
    """Create the schema for the copy of a table, `<namespace>.<table>`."""
    database.execute(f"create schema if not exists {SEEN}.{table.partition('.')[0]}")


def _extension_file(name: str) -> str:
    package = f"duckdb-extension-{name}"
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == f"{name}.duckdb_extension":
            return str(file.locate())
    raise SettingsError(
        f"DuckDB's extension {name} of the package {package} is not installed.",
        next_step="Install Sluice with its `local` extra, as `make demo` does.",
    )


def _object_store_secret(settings: Settings) -> str:
    """Source: https://duckdb.org/docs/stable/core_extensions/httpfs/s3api"""
    store = settings.object_store
    options = [f"region {_quoted(store.region)}", "url_style 'path'"]
    if store.endpoint is not None:
        endpoint = urlparse(store.endpoint)
        options += [f"endpoint {_quoted(endpoint.netloc)}", f"use_ssl {str(endpoint.scheme == 'https').lower()}"]
    if store.access_key_id is not None and store.secret_access_key is not None:
        options += [
            f"key_id {_quoted(store.access_key_id.get_secret_value())}",
            f"secret {_quoted(store.secret_access_key.get_secret_value())}",
        ]
    return f"create secret (type s3, {', '.join(options)})"


def _attach_catalog(settings: Settings) -> str:
    """Source: https://duckdb.org/docs/stable/core_extensions/iceberg/iceberg_rest_catalogs"""
    catalog = settings.catalog
    if catalog.credential is None:
        raise SettingsError(
            "SLUICE_CATALOG__CREDENTIAL is not set; DuckDB reads the catalog with it.",
            next_step="Start the local stack with `sluice stack up`; it sets it.",
        )
    client_id, _, client_secret = catalog.credential.get_secret_value().partition(":")
    options = [
        "type iceberg",
        "read_only",
        f"endpoint {_quoted(catalog.uri)}",
        f"client_id {_quoted(client_id)}",
        f"client_secret {_quoted(client_secret)}",
    ]
    if catalog.oauth2_server_uri is not None:
        options.append(f"oauth2_server_uri {_quoted(catalog.oauth2_server_uri)}")
    return f"attach {_quoted(catalog.warehouse)} as lakehouse ({', '.join(options)})"


def _quoted(text: str) -> str:
    """An SQL string literal."""
    return "'" + text.replace("'", "''") + "'"
