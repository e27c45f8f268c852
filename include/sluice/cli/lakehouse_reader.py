"""The lakehouse for whoever only reads: its identity in the local stack, and DuckDB on the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import SecretStr

from sluice.demo.lakehouse_copy import attach_lakehouse, open_database
from sluice.errors import LakehouseError
from sluice.settings import Settings
from sluice.stack.credentials import read_credentials
from sluice.stack.folder import stack_folder

if TYPE_CHECKING:
    import duckdb


def as_reader(settings: Settings) -> Settings:
    """The settings with the identity of the local stack that only reads; of another deployment as they are."""
    path = stack_folder().credentials
    key = settings.object_store.access_key_id
    if not path.exists() or key is None:
        return settings
    credentials = read_credentials(path)
    if key.get_secret_value() != credentials.access_key_id:
        return settings
    reader_id, secret = credentials.reader
    keys = {"access_key_id": SecretStr(reader_id), "secret_access_key": SecretStr(secret)}
    return settings.model_copy(
        update={
            "object_store": settings.object_store.model_copy(update=keys),
            "catalog": settings.catalog.model_copy(update={"credential": SecretStr(f"{reader_id}:{secret}")}),
        }
    )


def open_lakehouse(settings: Settings) -> duckdb.DuckDBPyConnection:
    """A database in memory on the tables of a deployment.

    Raises
    ------
    SettingsError: when an extension of DuckDB is not installed, or the catalog has no credential.
    LakehouseError: when the catalog does not answer.
    """
    import duckdb

    database = open_database()
    try:
        attach_lakehouse(database, settings)
        # `bronze.flights` is looked for in the catalog of the schema in use. An Iceberg catalog has no default schema.
        listed = "select schema_name from duckdb_schemas() where database_name = 'lakehouse' order by schema_name"
        if schemas := database.execute(listed).fetchall():
            database.execute(f'use lakehouse."{schemas[0][0]}"')
    except duckdb.Error as error:
        raise LakehouseError(
            f"The catalog {settings.catalog.uri} cannot be opened: {error}", next_step="See `sluice stack status`."
        ) from error
    return database
