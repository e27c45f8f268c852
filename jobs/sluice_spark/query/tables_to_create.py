"""Lets Spark plan a stream whose tables are declared and not created yet: a session whose catalog has them all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import SluiceError
from sluice.tables.declared_tables import load_table
from sluice.tables.table_schemas import schema_of
from sluice_spark.session.columns import quoted
from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_IN_MEMORY_CATALOG = "org.apache.iceberg.inmemory.InMemoryCatalog"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOfStream:
    """The tables that a stream reads and writes. existing: as they are. to_create: those that are only declared."""

    existing: tuple[Table, ...]
    to_create: tuple[TableDeclaration, ...]

    @property
    def names_to_create(self) -> tuple[str, ...]:
        """The names of those that are only declared, in their order."""
        return tuple(declaration.table for declaration in self.to_create)


def tables_of_stream(
    catalog: Catalog, declaration: StreamDeclaration, declared: Mapping[str, TableDeclaration]
) -> TablesOfStream:
    """Look up the tables that a stream names, its quarantine among them. One that is neither there nor declared is left
    to Spark, which says so.

    Parameters
    ----------
    declared: every valid table by name.

    Raises
    ------
    LakehouseError: when the catalog cannot be asked.
    """
    quarantine = (declaration.quarantine_table,) if declaration.quarantine else ()
    found = {name: load_table(catalog, name) for name in sorted({*declaration.tables_named, *quarantine})}
    return TablesOfStream(
        existing=tuple(table for table in found.values() if table is not None),
        to_create=tuple(declared[name] for name, table in found.items() if table is None and name in declared),
    )


def session_with_all(spark: SparkSession, catalog: str, tables: TablesOfStream) -> SparkSession:
    """A session in which the catalog has a stream's existing tables, and those that are to be created as empty ones.
    The deployment's own catalog gets none of them.

    Parameters
    ----------
    catalog: its name in Spark.

    Source: https://iceberg.apache.org/docs/latest/spark-configuration/#catalogs, and Iceberg's `InMemoryCatalog`, which
    reads the metadata of tables from the memory alone.

    Raises
    ------
    SluiceError: when Spark has opened another catalog.
    """
    session = spark.newSession()
    prefix = f"spark.sql.catalog.{catalog}"
    session.conf.unset(f"{prefix}.type")
    session.conf.unset(f"{prefix}.io-impl")
    session.conf.set(f"{prefix}.catalog-impl", _IN_MEMORY_CATALOG)
    session.conf.set(f"{prefix}.warehouse", f"memory://{uuid4().hex}")
    _fill(session, catalog, tables)
    return session


def _fill(session: SparkSession, catalog: str, tables: TablesOfStream) -> None:
    iceberg = jvm_of(session).org.apache.iceberg
    # Spark opens a catalog with the settings of the active session, which a query makes its own.
    session.sql(f"SHOW NAMESPACES IN {quoted(catalog)}")
    in_memory = session._jsparkSession.sessionState().catalogManager().catalog(catalog).icebergCatalog()
    if in_memory.getClass().getName() != _IN_MEMORY_CATALOG:
        raise SluiceError(
            f"Spark opened the deployment's catalog {catalog} instead of one in memory; nothing was created."
        )

    def identifier_of(name: str) -> JavaObject:
        identifier = iceberg.catalog.TableIdentifier.parse(name)
        if not in_memory.namespaceExists(identifier.namespace()):
            in_memory.createNamespace(identifier.namespace())
        return identifier

    files = iceberg.inmemory.InMemoryFileIO()  # all of them have the same files
    for table in tables.existing:
        files.addFile(table.metadata_location, table.metadata.model_dump_json().encode())
        in_memory.registerTable(identifier_of(".".join(table.name())), table.metadata_location)
    for declaration in tables.to_create:
        schema = iceberg.SchemaParser.fromJson(schema_of(declaration).model_dump_json())
        in_memory.createTable(identifier_of(declaration.table), schema)
