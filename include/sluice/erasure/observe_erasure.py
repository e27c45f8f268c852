"""Observes everything that is kept for a table, and everybody who needs it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.source_declarations import IcebergSource
from sluice.erasure.cut_history import HistoryLook, has_erasures, live_files
from sluice.erasure.erasure_plan import ErasedReader, ErasureSeen, MeantFile, Place
from sluice.erasure.file_columns import key_of
from sluice.erasure.searched_files import FileSearch, Found, PlacedFile, folders_of, is_within
from sluice.erasure.stale_metadata import stale_metadata
from sluice.errors import SluiceError
from sluice.ledger.backfill_attempts import running_attempts
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.held_batches import find_held
from sluice.ledger.next_generation import require_at_rest
from sluice.ledger.refreshes import OPEN_STATES, kept_shadows, newest_refresh
from sluice.ledger.runs import live_streams
from sluice.maintenance.direct_writers import observe_direct_writers
from sluice.maintenance.maintained_tables import named_pins, named_tags, unreadable_streams
from sluice.maintenance.needed_files import has_lost_states, other_tables
from sluice.maintenance.observed_retention import outdated_runs
from sluice.maintenance.row_retention import stands_at
from sluice.maintenance.table_readers import observe_readers, streamed_tables
from sluice.operations import Refusal, RefusalReason
from sluice.publication.write_folders import data_folder
from sluice.settings import Settings
from sluice.stored_keys import STAGING_TARGET
from sluice.tables.declared_tables import require_table
from sluice.tables.inspection import observe_table
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation, TableObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureLook:
    """What was seen, with what carrying it out needs. staging: the staging tables of the table."""

    seen: ErasureSeen
    found: Found
    table: Table
    staging: tuple[Table, ...]

    def staging_now(self, catalog: Catalog) -> tuple[Table, ...]:
        """The staging tables, freshly loaded."""
        return tuple(require_table(catalog, ".".join(one.name())) for one in self.staging)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureObserver:
    """Observes tables of a deployment. Nothing is changed."""

    settings: Settings
    ledger: Ledger
    declarations: Declarations
    catalog: Catalog

    def look(
        self,
        name: str,
        search: FileSearch,
        *,
        every_row: bool,
        searched_quarantines: Collection[str] = (),
    ) -> ErasureLook:
        """Observe a table.

        Parameters
        ----------
        every_row: whether a person has agreed that all rows may go.
        searched_quarantines: those that are erased from beside it.

        Raises
        ------
        LakehouseError, LedgerError: when something cannot be read.
        """
        table = require_table(self.catalog, name)
        staging = tuple(self._staging(name))
        found = search.look(table, staging)
        writers, readers = tuple(self._writers(name)), tuple(self._readers(name, table))
        others = tuple(self._others(name, table, found))
        table = require_table(self.catalog, name)
        now = observe_table(table, name=name, small_file_bytes=1, now=database_time(self.ledger))
        history = HistoryLook(table, found.names, found.harmless)
        kept = history.kept()
        doomed = [one for one in now.references if one.snapshot_id not in kept and one.name != "main"]
        seen = ErasureSeen(
            table=name,
            digest=search.test.digest,
            rows=now.rows,
            searched=found.searched,
            meant=tuple(_placed(table, found)),
            unread=tuple((one.path, why) for one, why in found.unread),
            delete_files=now.delete_files,
            limits=tuple(_limits(table, found)),
            kept=kept,
            gone=len(now.snapshots) - len(kept),
            references=tuple(sorted(one.name for one in doomed)),
            forked=tuple(one.name for one in doomed if _is_forked(one, now)),
            named_by=tuple(self._named_by(now, kept)),
            has_begun=has_erasures(table),
            stale=len(stale_metadata((table, *staging), found.metadata)),
            staged=tuple(".".join(one.name()) for one in staging if _has_live_files(one)),
            to_cut=tuple(".".join(one.name()) for one in staging if not is_settled(one)),
            writers=tuple(self._blocking(writers, name, table)),
            readers=readers,
            waiting=tuple(self._waiting(now, readers)),
            others=others,
            lost=has_lost_states(table),
            feeds=_distinct(one for reader in readers for one in self._written_by(reader.reader.stream)),
            sources=_distinct(one for writer in writers for one in _sources_of(writer)),
            checkpoints=_distinct([*(one.name for one in writers), *(one.reader.stream for one in readers)]),
            quarantines=tuple(self._unsearched(writers, {name, *searched_quarantines})),
            takes_every_row=every_row,
        )
        return ErasureLook(seen=seen, found=found, table=table, staging=staging)

    def readers_of(self, name: str, table: Table) -> tuple[ErasedReader, ...]:
        """The inputs that read a table, freshly observed."""
        return tuple(self._readers(name, table))

    def _staging(self, name: str) -> Iterator[Table]:
        for one in other_tables(self.catalog, (), target=name):
            if one.table.properties.get(STAGING_TARGET) == name:
                yield one.table

    def _others(self, name: str, table: Table, found: Found) -> Iterator[str]:
        """The tables that list a file with such rows in a newest state that stays, or lie in a folder of this one."""
        folders = [one.location for one in folders_of(table)]
        for one in other_tables(self.catalog, found.names, target=name):
            if one.table.properties.get(STAGING_TARGET) == name:
                continue
            places = (one.table.location().rstrip("/"), data_folder(one.table.metadata))
            if one.listed or any(is_within(place, folder) for place in places for folder in folders):
                yield ".".join(one.table.name())

    def _writers(self, name: str) -> Iterator[LoadedStream]:
        for _, loaded in sorted(self.declarations.streams.items()):
            stream = loaded.declaration
            if name in stream.tables_written or (stream.quarantine and stream.quarantine_table == name):
                yield loaded

    def _readers(self, name: str, table: Table) -> Iterator[ErasedReader]:
        listed = tuple(one.snapshot_id for one in table.snapshots())
        store = self.settings.object_store
        for one in observe_readers(self.ledger, self.declarations, name, listed=listed, object_store=store):
            sources = dict(streamed_tables(self.declarations.streams[one.stream].declaration))
            yield ErasedReader(reader=one, stops=sources[one.input].on_overwrite == "fail")

    def _waiting(self, now: TableObservation, readers: Collection[ErasedReader]) -> Iterator[str]:
        """Streams that may need an earlier snapshot, and are not known: they run without a declaration or by an earlier
        one, are refreshed, or their declaration cannot be read."""
        live, streams = live_streams(self.ledger), {one.reader.stream for one in readers}
        yield from sorted(unreadable_streams(self.declarations))
        yield from sorted(one for one in streams if self._is_refreshed(one))
        yield from sorted(outdated_runs(self.ledger, self.declarations, streams))
        unknown = (live | kept_shadows(self.ledger)) - set(self.declarations.streams)
        yield from sorted({stream for stream, _ in stands_at(now.references, unknown)})

    def _named_by(self, now: TableObservation, kept: Collection[int]) -> Iterator[str]:
        named = {one.stream for one in named_pins(self.declarations, now) if one.snapshot_id not in kept}
        yield from sorted(named)
        tags = named_tags(self.declarations, now.table) or frozenset()
        for one in now.references:
            if one.name in tags and one.snapshot_id not in kept:
                yield f"A stream that names the tag {one.name}"

    def _blocking(self, writers: Collection[LoadedStream], name: str, table: Table) -> Iterator[Refusal]:
        """What keeps the writers from being left as they are."""
        running = {one.key.stream for one in running_attempts(self.ledger)}
        for one in writers:
            try:
                require_at_rest(self.ledger, one.name)
            except SluiceError as error:
                yield Refusal(reason=RefusalReason.NOT_AT_REST, sentence=error.message, next_step=error.next_step)
            if find_held(self.ledger, one.name) is not None:
                yield Refusal(
                    reason=RefusalReason.BATCH_HELD,
                    sentence=f"A staged batch of {one.name} waits for a person, and may hold such rows.",
                    next_step=f"Decide about it first: `sluice batch list {one.name}`.",
                )
            if one.name in running or self._is_refreshed(one.name):
                yield Refusal(
                    reason=RefusalReason.NOT_AT_REST,
                    sentence=f"A backfill or a refresh of {one.name} is under way.",
                    next_step=f"Let it end first: `sluice work list`, `sluice stream status {one.name}`.",
                )
        store, live = self.settings.object_store, live_streams(self.ledger)
        for sink in observe_direct_writers(
            self.ledger, self.declarations, table, name, live_streams=live, object_store=store
        ):
            yield Refusal(
                reason=RefusalReason.NOT_AT_REST,
                sentence=f"{sink.stream} may write a batch again, and knows it by a snapshot that would go.",
                next_step=f"Start it, let it commit a batch, and stop it: `sluice stream start {sink.stream}`.",
            )

    def _is_refreshed(self, stream: str) -> bool:
        newest = newest_refresh(self.ledger, stream)
        return newest is not None and newest.state in OPEN_STATES

    @staticmethod
    def _unsearched(writers: Collection[LoadedStream], searched: Collection[str]) -> Iterator[str]:
        tables = {one.declaration.quarantine_table for one in writers if one.declaration.quarantine}
        yield from sorted(tables - set(searched))

    def _written_by(self, stream: str) -> Collection[str]:
        return self.declarations.streams[stream].declaration.tables_written


def _limits(table: Table, found: Found) -> Iterator[str]:
    """What keeps the files of the newest snapshot with such rows from being written again."""
    version = table.metadata.format_version
    if version != 2:
        yield f"format version {version}"
    live = {key_of(one.file_path) for one in live_files(table)}
    for one, why in found.unwritable:
        if one.name in found.names and key_of(one.path) in live:
            yield f"the file {one.name} with {why}"


def _is_forked(one: ReferenceObservation, now: TableObservation) -> bool:
    """Whether a branch has commits that main does not have."""
    return one.kind is ReferenceKind.BRANCH and one.snapshot_id not in {seen.snapshot_id for seen in now.main_line}


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def is_settled(staging: Table) -> bool:
    """Whether a staging table has one snapshot alone, of which no manifest lists a removed file."""
    return not staging.snapshots() or (len(staging.snapshots()) == 1 and bool(HistoryLook(staging).kept()))


def _has_live_files(staging: Table) -> bool:
    return bool(live_files(staging))


def _placed(table: Table, found: Found) -> Iterator[MeantFile]:
    live = {one.file_path.rpartition("/")[2] for one in live_files(table)}

    def place_of(one: PlacedFile) -> Place:
        if one.is_in_trash:
            return Place.TRASH
        return Place.LIVE if one.name in live else Place.OTHER

    for one, rows in found.meant:
        yield MeantFile(path=one.path, place=place_of(one), rows=rows)


def _sources_of(stream: LoadedStream) -> Iterator[str]:
    """What a stream reads that is no table of the catalog."""
    for name, declared in stream.declaration.inputs.items():
        if not isinstance(declared.declared_source.source, IcebergSource):
            yield f"the {declared.declared_source.kind} input {name} of {stream.name}"
