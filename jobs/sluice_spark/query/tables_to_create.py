"""Lets Spark plan a stream whose tables are declared and not created yet: a session whose catalog has them all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.tables.declared_tables import load_table
from sluice.tables.table_schemas import schema_of
from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject


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


@contextmanager
def session_with_all(spark: SparkSession, catalog: str, tables: TablesOfStream) -> Iterator[SparkSession]:
    """A session in which the catalog has a stream's existing tables, and those that are to be created as empty ones.
    The deployment's own catalog gets none of them.

    Parameters
    ----------
    catalog: its name in Spark.

    Source: https://iceberg.apache.org/docs/latest/spark-configuration/#catalogs, `InMemoryCatalog` of Iceberg.
    """
    session = spark.newSession()
    with TemporaryDirectory() as folder:
        prefix = f"spark.sql.catalog.{catalog}"
        session.conf.unset(f"{prefix}.type")
        session.conf.set(f"{prefix}.catalog-impl", "org.apache.iceberg.inmemory.InMemoryCatalog")
        session.conf.set(f"{prefix}.io-impl", "org.apache.iceberg.io.ResolvingFileIO")
        session.conf.set(f"{prefix}.warehouse", Path(folder).as_uri())
        _fill(session, catalog, tables)
        yield session


def _fill(session: SparkSession, catalog: str, tables: TablesOfStream) -> None:
    iceberg = jvm_of(session).org.apache.iceberg
    in_memory = session._jsparkSession.sessionState().catalogManager().catalog(catalog).icebergCatalog()

    def identifier_of(name: str) -> JavaObject:
        identifier = iceberg.catalog.TableIdentifier.parse(name)
        if not in_memory.namespaceExists(identifier.namespace()):
            in_memory.createNamespace(identifier.namespace())
        return identifier

    for table in tables.existing:
        in_memory.registerTable(identifier_of(".".join(table.name())), table.metadata_location)
    for declaration in tables.to_create:
        schema = iceberg.SchemaParser.fromJson(schema_of(declaration).model_dump_json())
        in_memory.createTable(identifier_of(declaration.table), schema)
