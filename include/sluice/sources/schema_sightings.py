"""Keeps in the ledger which schema each input of a run was seen with, whenever it is another one than the last."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.declarations.source_declarations import FilesSource, IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.connection import Ledger
from sluice.ledger.source_schemas import SeenSchema
from sluice.record_values.block_facts import WrittenAs
from sluice.settings import Settings
from sluice.sources.file_types import answer_to, described_columns
from sluice.sources.kept_schemas import KeptSchemas
from sluice.sources.source_fields import PLANNED, SourceFields, described_fields, fields_of
from sluice.sources.written_schemas import WrittenSchemas, place_of_files
from sluice.tables.declared_tables import load_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class SchemaSightings:
    """What one run sees of the schemas of its inputs.

    Parameters
    ----------
    ledger: unset for a run whose inputs another stream reads, as the shadow of a refresh: it keeps nothing.
    """

    def __init__(self, declaration: StreamDeclaration, settings: Settings, ledger: Ledger | None) -> None:
        self._declaration = declaration
        self._kept = KeptSchemas(declaration.stream, ledger)
        self._written = WrittenSchemas(declaration, settings, ledger)
        self._tables: dict[str, SourceFields] = {}
        self._files: dict[str, pa.Schema] = {}

    def see_table(self, table: str, fields: SourceFields, *, answer: str) -> None:
        """Take the fields of an Iceberg table, for each input that reads it as it is."""
        if self._tables.get(table) == fields:
            return
        described, is_kept = described_fields(fields), True
        for name, declared in self._declaration.inputs.items():
            source = declared.declared_source.source
            if isinstance(source, IcebergSource) and source.table == table and not source.is_fixed:
                seen = SeenSchema(input=name, source=f"table {table}", fields=described, answer=answer)
                is_kept = self._kept.see(seen) and is_kept
        if is_kept:
            self._tables[table] = fields

    def see_columns(self, name: str, source: str, columns: Mapping[str, str], *, answer: str) -> None:
        """Take the columns of an input whose source has one schema at a time."""
        self._kept.see(SeenSchema(input=name, source=source, fields=columns, answer=answer))

    def see_file(self, name: str, source: FilesSource, columns: pa.Schema, is_fit: bool) -> None:
        """Take the columns of a file of an input. is_fit: whether they are what is declared."""
        if self._files.get(name) == columns:
            return
        answer = answer_to(source.columns, columns, is_fit=is_fit)
        fields = described_columns(columns)
        seen = SeenSchema(input=name, source=place_of_files(source), fields=fields, answer=answer, is_one_of_many=True)
        if self._kept.see(seen):
            self._files[name] = columns

    def end_files(self) -> None:
        """Note that all files of a batch are seen: the last one of each input is the one that was seen last."""
        self._kept.keep_newest()

    def see_written(self, written: Mapping[str, WrittenAs], batch: str) -> None:
        """Take what the values of a batch were written as, by input. It never waits; see `WrittenSchemas`."""
        self._written.hand_over(written, batch)

    def close(self) -> None:
        """Wait a while for what is seen and not yet kept, at the end of the run."""
        self._written.close()


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
