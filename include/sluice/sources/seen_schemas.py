"""Keeps in the ledger which schemas the inputs of a run were seen with, and which their values were written with.

A registry that does not answer takes half a minute for each schema, and protoc takes a second: schemas of values are
read beside the batches.
"""

from __future__ import annotations

import json
import logging
import queue
import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import TYPE_CHECKING

import pyarrow as pa

from sluice.declarations.source_declarations import FilesSource, IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import LedgerError, RegistryError, RegistryUnreachableError
from sluice.ledger.connection import Ledger
from sluice.ledger.source_schemas import SeenSchema, name_of_values, record_seen_schema
from sluice.record_values.block_facts import WrittenAs, WrittenValues
from sluice.record_values.registry import described_schema
from sluice.settings import SchemaRegistryConnection, Settings
from sluice.sources.source_identities import PLANNED, SourceFields, described_fields, fields_of
from sluice.sources.source_types import answer_to, described_columns
from sluice.tables.declared_tables import load_table

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_log = logging.getLogger(__name__)

AWAY_SECONDS = 60.0
"""How long what was away is left alone: a try takes up to half a minute, and a batch may be there each second."""

_MOST_KEPT = 200
"""Schemas of one input that a run knows again; more are a write each."""


class KeptSchemas:
    """The schemas that one thread of a run has seen of its inputs.

    Parameters
    ----------
    ledger: unset for a run that keeps nothing.
    clock: in seconds.
    """

    def __init__(self, stream: str, ledger: Ledger | None, *, clock: Callable[[], float] = monotonic) -> None:
        self._stream = stream
        self._ledger = ledger
        self._clock = clock
        self._away_until = clock()
        self._last: dict[str, SeenSchema] = {}
        self._kept: dict[str, dict[frozenset[tuple[str, str]], None]] = {}
        self._newest: dict[str, SeenSchema] = {}

    def see(self, seen: SeenSchema) -> bool:
        """Take a schema. One of many that the run has kept before waits for `keep_newest`.

        Returns
        -------
        Whether it is kept. A ledger that is away stops no batch: the schema is kept at its next sight after a pause.
        """
        if self._ledger is None:
            return True
        if seen.is_one_of_many and frozenset(seen.fields.items()) in self._kept.get(seen.input, {}):
            self._newest[seen.input] = seen
            return True
        return self._keep(self._ledger, seen)

    def keep_newest(self) -> None:
        """Keep which of the many schemas of each input was the last one in a batch: a write at most, and none when it
        is the last one that is kept."""
        if self._ledger is not None:
            for seen in self._newest.values():
                self._keep(self._ledger, seen)
        self._newest.clear()

    def _keep(self, ledger: Ledger, seen: SeenSchema) -> bool:
        last = self._last.get(seen.input)
        if last is not None and last.fields == seen.fields:
            return True
        if self._clock() < self._away_until:
            return False
        try:
            record_seen_schema(ledger, self._stream, seen)
        except LedgerError as error:
            _log.warning("the schema of the input %s could not be kept: %s", seen.input, error)
            self._away_until = self._clock() + AWAY_SECONDS
            return False
        self._last[seen.input] = seen
        kept = self._kept.setdefault(seen.input, {})
        kept[frozenset(seen.fields.items())] = None
        if len(kept) > _MOST_KEPT:
            del kept[next(iter(kept))]
        return True


_MOST_WAITING = 16
"""Batches that wait to be looked at. Values with the same schemas come again, so one that is left out loses little."""

_MOST_LOOKED_AT = 1_000
"""Schemas of one input that a run knows again. Bytes that only look like an id have as many as there are numbers."""

_END_SECONDS = 10.0
"""How long the end of a run waits for what is handed over."""


class WrittenSchemas:
    """What the values of one run's inputs were written as: schemas of a registry, or the first lines of files. A thread
    looks at them, which begins with the first of them and ends with the run.

    Parameters
    ----------
    ledger: unset for a run that keeps nothing: it has no thread and asks no registry.
    clock: in seconds.
    """

    def __init__(
        self,
        declaration: StreamDeclaration,
        settings: Settings,
        ledger: Ledger | None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._declaration = declaration
        self._settings = settings
        self._keeps_nothing = ledger is None
        self._kept = KeptSchemas(declaration.stream, ledger, clock=clock)
        self._clock = clock
        self._silent_until: dict[str, float] = {}
        self._is_usable: dict[str, dict[str, bool]] = {}
        self._waiting: queue.Queue[tuple[Mapping[str, WrittenAs], str] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._is_over = threading.Event()

    def hand_over(self, written: Mapping[str, WrittenAs], batch: str) -> None:
        """Take what the values of a batch were written as, by input. It never waits: a batch for which there is no room
        is left out."""
        if self._keeps_nothing or not written:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._look_until_over, name="written-schemas", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait((written, batch))
        except queue.Full:
            _log.warning("the schemas of batch %s are not looked at: those of %d batches wait", batch, _MOST_WAITING)

    def close(self) -> None:
        """End the thread when it has looked at what is handed over, or after a while."""
        if self._thread is not None:
            until = monotonic() + _END_SECONDS
            try:
                self._waiting.put(None, timeout=_END_SECONDS)
                self._thread.join(max(0.0, until - monotonic()))
            except queue.Full:
                pass  # the last look is under way, and the next one does not begin
            if self._thread.is_alive():
                _log.warning("the schemas of the last batches are not kept: the registry or the ledger does not answer")
        self._is_over.set()

    def look_at(self, written: Mapping[str, WrittenAs], batch: str) -> None:
        """Keep what the values of a batch were written as, in this thread. Of several schemas that are known, only the
        last by its id is the one that was seen last."""
        for name, by_schema in written.items():
            if self._clock() >= self._silent_until.get(name, 0.0):
                self._look_at_input(name, by_schema, batch)
        self._kept.keep_newest()

    def _look_until_over(self) -> None:
        while not self._is_over.is_set() and (next_one := self._waiting.get()) is not None:
            try:
                self.look_at(*next_one)
            except Exception:  # noqa: BLE001  # a defect here must not end the look at later batches; the data is safe
                _log.exception("the schemas of batch %s could not be looked at", next_one[1])

    def _look_at_input(self, name: str, by_schema: WrittenAs, batch: str) -> None:
        known = self._is_usable.setdefault(name, {})
        order = sorted(by_schema, key=lambda one: (len(one), one))
        for schema in order:
            if self._is_over.is_set():
                return
            if not _is_due(known, schema, by_schema[schema], is_last=schema == order[-1]):
                continue
            try:
                is_kept = self._see(name, schema, by_schema[schema], batch)
            except RegistryError as error:
                _log.warning("the schema %s of the input %s could not be kept: %s", schema, name, error)
                if isinstance(error, RegistryUnreachableError):
                    self._silent_until[name] = self._clock() + AWAY_SECONDS
                    return
                _remember(known, schema, is_usable=False)
            else:
                if is_kept:
                    _remember(known, schema, is_usable=True)

    def _see(self, name: str, schema: str, found: WrittenValues, batch: str) -> bool:
        place, fields = self._written_as(name, schema)
        if isinstance(self._declaration.inputs[name].declared_source.source, IcebergSource):
            name = name_of_values(name)
        decoded, rest = found.values - found.rejected, ", the others are rejected" if found.rejected else ""
        answer = f"{decoded:,} of the {found.values:,} values with it in batch {batch} are decoded{rest}."
        return self._kept.see(SeenSchema(input=name, source=place, fields=fields, answer=answer, is_one_of_many=True))

    def _written_as(self, name: str, schema: str) -> tuple[str, Mapping[str, str]]:
        """What has the schema, and its fields."""
        source = self._declaration.inputs[name].declared_source
        if (files := source.files) is not None:
            return place_of_files(files), dict.fromkeys(json.loads(schema), "text")
        if source.value is None or source.value.registry is None:
            raise LookupError(f"input {name} has a schema {schema} and no registry")
        registry = self._settings.connection(source.value.registry, SchemaRegistryConnection)
        fields = described_schema(registry, int(schema), message=source.value.message)
        return f"schema {schema} of {source.value.registry}", fields


def place_of_files(source: FilesSource) -> str:
    """What has the schemas of an input of files, in words."""
    return f"{source.format} files in {source.path or 'the folder of ' + source.connection}"


def _is_due(known: Mapping[str, bool], schema: str, found: WrittenValues, *, is_last: bool) -> bool:
    """Whether to look at a schema: a new one, or the last one of a batch. Without room, one with which no value was
    decoded is not worth the question."""
    if schema in known:
        return is_last and known[schema]
    return len(known) < _MOST_LOOKED_AT or found.rejected < found.values


def _remember(known: dict[str, bool], schema: str, *, is_usable: bool) -> None:
    known[schema] = is_usable
    if len(known) > _MOST_LOOKED_AT:
        del known[next(iter(known))]


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
