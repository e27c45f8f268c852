"""Keeps in the ledger which schema each input of a run was seen with, whenever it is another one than the last."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.declarations.source_declarations import FilesSource, IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import LedgerError, RegistryError
from sluice.ledger.connection import Ledger
from sluice.ledger.source_schemas import SeenSchema, record_seen_schema
from sluice.record_values.block_facts import WrittenAs, WrittenValues
from sluice.record_values.registry import described_schema
from sluice.settings import SchemaRegistryConnection, Settings
from sluice.sources.file_types import answer_to, described_columns
from sluice.sources.source_fields import PLANNED, SourceFields, described_fields, fields_of
from sluice.tables.declared_tables import load_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_log = logging.getLogger(__name__)


class SchemaSightings:
    """What one run sees of the schemas of its inputs.

    Parameters
    ----------
    ledger: unset for a run whose inputs another stream reads, as the shadow of a refresh: it keeps nothing.
    """

    def __init__(self, declaration: StreamDeclaration, settings: Settings, ledger: Ledger | None) -> None:
        self._declaration = declaration
        self._settings = settings
        self._ledger = ledger
        self._last: dict[str, SeenSchema] = {}
        self._tables: dict[str, SourceFields] = {}
        self._files: dict[str, pa.Schema] = {}
        self._written: dict[str, set[str]] = {}

    def see_table(self, table: str, fields: SourceFields, *, answer: str) -> None:
        """Take the fields of an Iceberg table, for each input that reads it as it is."""
        if self._tables.get(table) == fields:
            return
        self._tables[table] = fields
        described = described_fields(fields)
        for name, declared in self._declaration.inputs.items():
            source = declared.declared_source.source
            if isinstance(source, IcebergSource) and source.table == table and not source.is_fixed:
                self.see(SeenSchema(input=name, source=f"table {table}", fields=described, answer=answer))

    def see_columns(self, name: str, source: str, columns: Mapping[str, str], *, answer: str) -> None:
        """Take the columns of an input whose source has one schema at a time."""
        self.see(SeenSchema(input=name, source=source, fields=columns, answer=answer))

    def see_file(self, name: str, source: FilesSource, columns: pa.Schema, is_fit: bool) -> None:
        """Take the columns of a file of an input. is_fit: whether they are what is declared."""
        if self._files.get(name) == columns:
            return
        self._files[name] = columns
        answer = answer_to(source.columns, columns, is_fit=is_fit)
        described = described_columns(columns)
        self.see(SeenSchema(input=name, source=_files_of(source), fields=described, answer=answer, is_one_of_many=True))

    def see_written(self, written: Mapping[str, WrittenAs], batch: str) -> None:
        """Take what the values of a batch were written as, by input: schemas of a registry, or first lines of files. Of
        several that are known, only the last by its id is the one that was seen last."""
        for name, by_schema in written.items():
            known = self._written.setdefault(name, set())
            order = sorted(by_schema, key=lambda one: (len(one), one))
            for schema in order:
                if schema not in known or schema == order[-1]:
                    try:
                        self._see_written(name, schema, by_schema[schema], batch)
                    except RegistryError as error:
                        _log.warning("the schema %s of the input %s could not be kept: %s", schema, name, error)
                        continue
                known.add(schema)

    def _see_written(self, name: str, schema: str, found: WrittenValues, batch: str) -> None:
        place, fields = self._written_as(name, schema)
        if isinstance(self._declaration.inputs[name].declared_source.source, IcebergSource):
            name = f"{name}, its values"  # the table has a schema of its own
        decoded, rest = found.values - found.rejected, ", the others are rejected" if found.rejected else ""
        answer = f"{decoded:,} of the {found.values:,} values with it in batch {batch} are decoded{rest}."
        self.see(SeenSchema(input=name, source=place, fields=fields, answer=answer, is_one_of_many=True))

    def _written_as(self, name: str, schema: str) -> tuple[str, Mapping[str, str]]:
        """What has the schema, and its fields."""
        source = self._declaration.inputs[name].declared_source
        if (files := source.files) is not None:
            return _files_of(files), dict.fromkeys(json.loads(schema), "text")
        if source.value is None or source.value.registry is None:
            raise LookupError(f"input {name} has a schema {schema} and no registry")
        registry = self._settings.connection(source.value.registry, SchemaRegistryConnection)
        fields = described_schema(registry, int(schema), message=source.value.message)
        return f"schema {schema} of {source.value.registry}", fields

    def see(self, seen: SeenSchema) -> None:
        """Take a schema. A ledger that is away stops no batch: the next sight of the schema is kept."""
        last = self._last.get(seen.input)
        if self._ledger is None or (last is not None and last.fields == seen.fields):
            return
        try:
            record_seen_schema(self._ledger, self._declaration.stream, seen)
        except LedgerError as error:
            _log.warning("the schema of the input %s could not be kept: %s", seen.input, error)
            self._tables.clear()
            self._files.clear()
            return
        self._last[seen.input] = seen


def _files_of(source: FilesSource) -> str:
    return f"{source.format} files in {source.path or 'the folder of ' + source.connection}"


def see_tables(sightings: SchemaSightings, declaration: StreamDeclaration, catalog: Catalog) -> None:
    """Take the fields of the Iceberg tables that a stream reads as they are, before a run plans with them.

    Raises
    ------
    LakehouseError: when the catalog does not answer, or refuses.
    """
    sources = (declared.declared_source.source for declared in declaration.inputs.values())
    for name in dict.fromkeys(one.table for one in sources if isinstance(one, IcebergSource) and not one.is_fixed):
        if (table := load_table(catalog, name)) is not None:
            sightings.see_table(name, fields_of(table.schema()), answer=PLANNED)
