"""Reads the lakehouse's tables with an engine that did not write them, DuckDB, and compares sets of rows as multisets.

The tables are copied into memory, so that all checks see the same rows and do not wait for the object store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import TYPE_CHECKING
from urllib.parse import urlparse

from sluice.errors import SettingsError, VerificationError
from sluice.settings import Settings

if TYPE_CHECKING:
    import duckdb

SEEN = "seen"
"""The DuckDB catalog of the copies: `seen.bronze.flights` is a copy of the lakehouse's `bronze.flights`."""

_EXTENSIONS = ("httpfs", "avro", "iceberg")

_SAMPLE_ROWS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The result of one check.

    statement: what must be true.
    expected_rows, seen_rows: how many rows were compared.
    missing_rows: expected rows that were not seen, each counted as often as it is missing.
    surplus_rows: the reverse.
    samples: a few of the rows that differ.
    """

    name: str
    statement: str
    expected_rows: int
    seen_rows: int
    missing_rows: int
    surplus_rows: int
    samples: tuple[str, ...] = ()

    @property
    def is_true(self) -> bool:
        """Whether the statement holds."""
        return self.missing_rows == 0 and self.surplus_rows == 0

    @property
    def explanation(self) -> str:
        """The result as a sentence, with the rows that differ."""
        if self.is_true:
            return f"{self.name}: {self.statement} ({self.expected_rows:,} rows)"
        found = (
            f"{self.name}: it is not true that {self.statement}. Expected {self.expected_rows:,} rows, "
            f"got {self.seen_rows:,}: {self.missing_rows:,} are missing and {self.surplus_rows:,} should not be there."
        )
        return "\n    ".join([found, *self.samples])

    def as_json(self) -> dict[str, object]:
        """The result for a program."""
        return asdict(self) | {"is_true": self.is_true}


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


def compare(database: duckdb.DuckDBPyConnection, *, name: str, statement: str, expected: str, seen: str) -> CheckResult:
    """Compare the rows of two queries, which name their columns in the same order.

    Parameters
    ----------
    database: holds both sides.
    name: the name of the check.
    statement: what must be true, as the second half of "it is true that …".
    expected, seen: SELECT statements.
    """
    database.execute(f"create or replace temp table expected_rows as {expected}")  # the caller's own constant
    database.execute(f"create or replace temp table seen_rows as {seen}")  # the caller's own constant
    missing = "(from expected_rows except all from seen_rows)"
    surplus = "(from seen_rows except all from expected_rows)"
    return CheckResult(
        name=name,
        statement=statement,
        expected_rows=_count(database, "expected_rows"),
        seen_rows=_count(database, "seen_rows"),
        missing_rows=_count(database, missing),
        surplus_rows=_count(database, surplus),
        samples=(*_samples(database, "missing", missing), *_samples(database, "surplus", surplus)),
    )


def compare_number(*, name: str, statement: str, expected: int, seen: int) -> CheckResult:
    """Compare two counts of rows."""
    return CheckResult(
        name=name,
        statement=statement,
        expected_rows=expected,
        seen_rows=seen,
        missing_rows=max(0, expected - seen),
        surplus_rows=max(0, seen - expected),
    )


def require_truth(results: Sequence[CheckResult]) -> None:
    """Check that every result is true.

    Raises
    ------
    VerificationError: when one is false; it names each failed check with the expected and seen rows and samples.
    """
    failed = [result for result in results if not result.is_true]
    if failed:
        raise VerificationError(
            f"{len(failed)} of {len(results)} checks of the tables failed.\n"
            + "\n".join(f"  {result.explanation}" for result in failed),
            next_step="The stack still runs and the tables are untouched: look at them before `sluice stack down`.",
        )


def _count(database: duckdb.DuckDBPyConnection, relation: str) -> int:
    row = database.execute(f"from {relation} select count(*)").fetchone()
    assert row is not None  # noqa: S101  # count(*) always gives one row
    return int(row[0])


def _samples(database: duckdb.DuckDBPyConnection, word: str, relation: str) -> Iterable[str]:
    found = database.execute(f"from {relation} order by all limit {_SAMPLE_ROWS}")
    columns = [column[0] for column in found.description or ()]
    for row in found.fetchall():
        yield f"{word}: " + ", ".join(f"{column}={value}" for column, value in zip(columns, row, strict=True))
