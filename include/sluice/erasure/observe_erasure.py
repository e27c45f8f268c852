"""Observes everything that is kept for a table, and everybody who needs it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations, LoadedStream, lookups_of
from sluice.declarations.source_declarations import IcebergSource, SnapshotStart
from sluice.erasure.blocking_writers import is_refreshed, refusals_of_writers, require_no_driver
from sluice.erasure.cut_history import live_files, staged_snapshots
from sluice.erasure.erasure_plan import ErasedReader, ErasureSeen, MeantFile, Place
from sluice.erasure.file_columns import key_of
from sluice.erasure.judged_metadata import (
    DroppedStaging,
    JudgedMetadata,
    dropped_staging,
    judge_metadata,
    needed_of_unread,
    referring_tables,
    unsearched_files,
    unwritable_files,
)
from sluice.erasure.searched_files import (
    FileSearch,
    Found,
    PlacedFile,
    keys_of_ended_commits,
    keys_of_ended_runs,
    listed_keys,
    names_of,
    spoken,
    with_origins,
)
from sluice.ledger.backfill_attempts import running_attempts
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.refreshes import all_refreshes, kept_shadows
from sluice.ledger.runs import live_streams
from sluice.ledger.table_writers import LONGEST_WRITE
from sluice.maintenance.maintained_tables import named_pins, named_tags, unreadable_streams
from sluice.maintenance.needed_files import OtherTable, other_tables, was_set_back
from sluice.maintenance.pin_plan import Knowledge
from sluice.maintenance.row_retention import stands_at
from sluice.maintenance.table_readers import observe_readers, outdated_runs, streamed_tables
from sluice.operations import Refusal
from sluice.settings import Settings
from sluice.stored_keys import STAGING_TARGET
from sluice.tables.declared_tables import load_table, require_table
from sluice.tables.inspection import observe_table
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation, TableObservation


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureLook:
    """What was seen, with what carrying it out needs. staging: the staging tables of the table. dropped: what others
    have left that were dropped. listed: the keys of the files that a state of the table or its staging tables lists."""

    seen: ErasureSeen
    found: Found
    table: Table
    staging: tuple[Table, ...]
    dropped: tuple[DroppedStaging, ...]
    listed: frozenset[str]

    def staging_now(self, catalog: Catalog) -> tuple[Table, ...]:
        """The staging tables that are still there, freshly loaded."""
        found = (load_table(catalog, one.name()) for one in self.staging)
        return tuple(one for one in found if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErasureObserver:
    """Observes tables of a deployment. Nothing is changed.

    longest_commit: so long a program may need from writing a file to the commit that lists it.
    """

    settings: Settings
    ledger: Ledger
    declarations: Declarations
    catalog: Catalog
    longest_commit: timedelta = LONGEST_WRITE

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
        before = require_table(self.catalog, name)
        found = search.look(before, staging := self._staging(name))
        writers, readers = tuple(self._writers(name)), self.readers_of(name, before)
        around, table = self._around(name, before, found), require_table(self.catalog, name)
        states = (before, table, *staging, *(staged := _staging_among(around, name)))  # these as after the search
        listed, needed = self._listed(name, found, states), needed_of_unread(found, states, around)
        now = observe_table(table, name=name, small_file_bytes=1, now=database_time(self.ledger))
        judged = judge_metadata(before, staging, found, after=table)
        dropped = self.dropped(before, found)
        seen = ErasureSeen(
            table=name,
            digest=search.test.digest,
            rows=now.rows,
            searched=found.searched,
            meant=tuple(_placed(table, found)),
            unread=tuple((one.spoken, why) for one, why in found.unread if one.key not in needed),
            unread_listed=tuple((one.spoken, why) for one, why in found.unread if one.key in needed),
            unsearched=tuple(map(spoken, unsearched_files(before, found))),
            outside=tuple(map(spoken, judged.outside)),
            unwritable=tuple(unwritable_files(table, found)),
            delete_files=now.delete_files,
            limits=_limits(table),
            kept=judged.kept,
            gone=len(now.snapshots) - len(judged.kept),
            **self._holding(table, now, judged.kept, readers),
            doubtful=judged.doubtful + sum(one.is_doubtful for one in dropped),
            **self._of_dropped(dropped),
            unlisted=tuple(self._unlisted(table, found, judged, listed)),
            staged=tuple(".".join(one.name()) for one in staged if live_files(one)),
            to_cut=judged.to_cut,
            writers=self.refusals_of_writers(name, table),
            readers=readers,
            backfilled=tuple(self._backfilled(one.reader.stream for one in readers)),
            waiting=tuple(self._waiting(now, readers)),
            shadows=tuple(self._shadows(now)),
            others=tuple(referring_tables(name, before, staging, found, around)),
            lost=tuple(".".join(one.name()) for one in (table, *staging) if was_set_back(self.catalog, one.name())),
            takes_every_row=every_row,
            **self._named_along(name, writers, readers, searched_quarantines),
        )
        return ErasureLook(seen=seen, found=found, table=table, staging=staging, dropped=dropped, listed=listed)

    def held_since(self, look: ErasureLook, table: Table, kept: Collection[int]) -> tuple[str, ...]:
        """What has come since a look and needs a snapshot that is to go: tags, branches, streams and refreshes.

        Parameters
        ----------
        table: freshly loaded. kept: the snapshots of it that stay.

        Raises
        ------
        LakehouseError, LedgerError: when something cannot be read.
        """
        now = observe_table(table, name=look.seen.table, small_file_bytes=1, now=database_time(self.ledger))
        readers = self.readers_of(look.seen.table, table)
        agreed = look.table.metadata.refs
        new = (
            one.name
            for one in _doomed(now, kept)
            if one.name not in look.seen.references or agreed[one.name].snapshot_id != one.snapshot_id
        )
        staged = (f"snapshot {one.snapshot_id}" for one in staged_snapshots(table, kept))
        return (*new, *staged, *self._waiting(now, readers), *self._shadows(now))

    def settled_before(self) -> datetime:
        """What was written before, and is not listed, is of no commit that may still land."""
        return database_time(self.ledger) - self.longest_commit

    def _listed(self, name: str, found: Found, states: Collection[Table]) -> frozenset[str]:
        return listed_keys(states) | keys_of_ended_commits(self.ledger, name, found.metadata)

    def _unlisted(self, table: Table, found: Found, judged: JudgedMetadata, listed: Collection[str]) -> Iterator[str]:
        before, rows = self.settled_before(), [one for one, _ in found.meant if not one.is_in_trash]
        known = {*listed, *keys_of_ended_runs(self.ledger, table, rows)}
        for one in (*rows, *judged.unneeded):
            if one.key not in known and one.file.modified_at >= before:
                yield one.spoken

    def _holding(
        self, table: Table, now: TableObservation, kept: Collection[int], readers: Collection[ErasedReader]
    ) -> dict[str, tuple[str, ...]]:
        """What names snapshots that go, for the plan."""
        doomed = _doomed(now, kept)
        return {
            "references": tuple(sorted(one.name for one in doomed)),
            "forked": (
                *(f"The branch {one.name}" for one in doomed if _is_forked(one, now)),
                *(f"Snapshot {one.snapshot_id}, which is staged," for one in staged_snapshots(table, kept)),
            ),
            "named_by": (*self._named_by(now, kept), *self._beginning_before(now, kept, readers)),
        }

    def _of_dropped(self, dropped: Collection[DroppedStaging]) -> dict[str, tuple[str, ...]]:
        """What blocks of the folders of dropped staging tables, and what is not searched, for the plan."""
        now = database_time(self.ledger)
        return {
            "young": tuple(one.place for one in dropped if not one.is_foreign and one.is_young(now)),
            "denied": tuple(one.place for one in dropped if one.is_denied),
            "foreign": tuple(one.place for one in dropped if one.is_foreign and one.is_doubtful),
        }

    def dropped(self, table: Table, found: Found) -> tuple[DroppedStaging, ...]:
        """What dropped staging tables of a table have left."""
        return dropped_staging(self.catalog, table, found.harmless, warehouse=self.settings.catalog.warehouse)

    def readers_of(self, name: str, table: Table) -> tuple[ErasedReader, ...]:
        """The inputs that read a table, freshly observed."""
        live = live_streams(self.ledger)
        found = tuple(self._readers(name, table))
        live |= live_streams(self.ledger)  # a run that begins or ends meanwhile may have chosen a snapshot
        return tuple(replace(one, runs=one.reader.stream in live) for one in found)

    def require_writers_at_rest(self, name: str) -> None:
        """Require that no stream that writes a table runs, or is to run, and that no driver of one is left.

        Raises
        ------
        RunAlreadyLiveError, UsageError: as `require_no_driver` does.
        """
        for one in self._writers(name):
            require_no_driver(self.ledger, one.name)

    def backfills_of(self, name: str) -> tuple[str, ...]:
        """The streams that read a table, and of which a backfill has not reported an end."""
        streams = self.declarations.streams.items()
        reading = (
            one for one, it in streams if any(source.table == name for _, source in streamed_tables(it.declaration))
        )
        return tuple(self._backfilled(reading))

    def _backfilled(self, streams: Iterable[str]) -> Iterator[str]:
        running = {one.key.stream for one in running_attempts(self.ledger)}
        yield from sorted(running.intersection(streams))

    def _named_along(
        self,
        name: str,
        writers: Collection[LoadedStream],
        readers: Collection[ErasedReader],
        searched: Collection[str],
    ) -> dict[str, tuple[str, ...]]:
        """What is not searched, for the plan."""
        using = {one.reader.stream for one in readers} | {*lookups_of(self.declarations, name)}
        shadows = {one.shadow for one in all_refreshes(self.ledger) if one.stream in {two.name for two in writers}}
        theirs = {f"quarantine.{one}" for one in shadows}
        return {
            "feeds": _distinct(one for stream in using for one in self._written_by(stream)),
            "sources": _distinct(one for writer in writers for one in _sources_of(writer)),
            "checkpoints": _distinct([*(one.name for one in writers), *using]),
            "quarantines": (
                *self._unsearched(writers, {name, *searched}),
                *sorted(one for one in theirs if load_table(self.catalog, one) is not None),
            ),
        }

    def _staging(self, name: str) -> tuple[Table, ...]:
        return _staging_among(other_tables(self.catalog, (), target=name), name)

    def _around(self, name: str, table: Table, found: Found) -> tuple[OtherTable, ...]:
        """The other tables, each with the files of these that it may list: with such rows, or not to be searched."""
        names = names_of(with_origins(table, found).union(one.key for one, _ in found.unread))
        return tuple(other_tables(self.catalog, names, target=name))

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
        yield from sorted(one for one in streams if is_refreshed(self.ledger, one))
        yield from sorted(outdated_runs(self.ledger, self.declarations, streams))
        unknown = live - kept_shadows(self.ledger) - set(self.declarations.streams)
        yield from sorted({stream for stream, _ in stands_at(now.references, unknown)})

    def _shadows(self, now: TableObservation) -> Iterator[str]:
        """The shadows of refreshes that stand in a table, and until when they are kept."""
        kept = kept_shadows(self.ledger)
        refreshes = {one.shadow: one for one in all_refreshes(self.ledger) if one.shadow in kept}
        for shadow in sorted({stream for stream, _ in stands_at(now.references, kept)}):
            one = refreshes[shadow]
            until = f"until {one.keeps_until:%Y-%m-%d %H:%M} UTC" if one.keeps_until is not None else "until it ends"
            yield f"Refresh {one.number} of {one.stream}, {until}"

    def _named_by(self, now: TableObservation, kept: Collection[int]) -> Iterator[str]:
        named = {one.stream for one in named_pins(self.declarations, now) if one.snapshot_id not in kept}
        yield from sorted(named)
        tags = named_tags(self.declarations, now.table) or frozenset()
        for one in now.references:
            if one.name in tags and one.snapshot_id not in kept:
                yield f"A stream that names the tag {one.name}"

    def _beginning_before(
        self, now: TableObservation, kept: Collection[int], readers: Collection[ErasedReader]
    ) -> Iterator[str]:
        """The readers that have not started, and are to begin behind a snapshot, or at a time, of which history goes.
        Those that read the whole table begin with what is left."""
        gone = {one.snapshot_id: one.committed_at for one in now.snapshots if one.snapshot_id not in kept}
        for one in readers:
            sources = dict(streamed_tables(self.declarations.streams[one.reader.stream].declaration))
            match sources[one.reader.input].starting:
                case SnapshotStart(snapshot_id=wanted):
                    is_lost = wanted in gone
                case datetime() as since:
                    is_lost = any(at.timestamp() >= since.timestamp() for at in gone.values())
                case _:
                    is_lost = False
            if is_lost and one.reader.knowledge is Knowledge.NOT_STARTED:
                yield str(one)

    def refusals_of_writers(self, name: str, table: Table) -> tuple[Refusal, ...]:
        """What of the streams that write a table blocks an erasure. table: freshly loaded."""
        store, streams = self.settings.object_store, [one.name for one in self._writers(name)]
        return tuple(refusals_of_writers(self.ledger, self.declarations, streams, table, object_store=store))

    @staticmethod
    def _unsearched(writers: Collection[LoadedStream], searched: Collection[str]) -> Iterator[str]:
        tables = {one.declaration.quarantine_table for one in writers if one.declaration.quarantine}
        yield from sorted(tables - set(searched))

    def _written_by(self, stream: str) -> Collection[str]:
        return self.declarations.streams[stream].declaration.tables_written


def _doomed(now: TableObservation, kept: Collection[int]) -> list[ReferenceObservation]:
    """The tags and branches that go with snapshots."""
    return [one for one in now.references if one.snapshot_id not in kept and one.name != "main"]


def _staging_among(tables: Iterable[OtherTable], name: str) -> tuple[Table, ...]:
    return tuple(one.table for one in tables if one.table.properties.get(STAGING_TARGET) == name)


def _limits(table: Table) -> tuple[str, ...]:
    version = table.metadata.format_version
    return () if version == 2 else (f"format version {version}",)


def _is_forked(one: ReferenceObservation, now: TableObservation) -> bool:
    """Whether a branch has commits that main does not have."""
    return one.kind is ReferenceKind.BRANCH and one.snapshot_id not in {seen.snapshot_id for seen in now.main_line}


def _distinct(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _placed(table: Table, found: Found) -> Iterator[MeantFile]:
    live = {key_of(one.file_path) for one in live_files(table)}

    def place_of(one: PlacedFile) -> Place:
        if one.is_in_trash:
            return Place.TRASH
        return Place.LIVE if one.key in live else Place.OTHER

    for one, rows in found.meant:
        yield MeantFile(path=one.path, place=place_of(one), rows=rows)


def _sources_of(stream: LoadedStream) -> Iterator[str]:
    """What a stream reads: tables, and what is not Sluice's."""
    for name, declared in stream.declaration.inputs.items():
        source = declared.declared_source.source
        if isinstance(source, IcebergSource):
            yield f"the table {source.table}"
        else:
            yield f"the {declared.declared_source.kind} input {name} of {stream.name}"
