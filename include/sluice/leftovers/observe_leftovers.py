"""Looks for what is left of closed checkpoints, ended refreshes and given up backfills, in their storages."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import cached_property
from itertools import chain

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError

from sluice.backfill.intervals import Interval, of_name_part
from sluice.checkpoints.checkpoint_copies import copies_location, rehearsal_location
from sluice.checkpoints.checkpoint_files import open_checkpoint_files, require_below
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.declarations.stream_declaration import QUARANTINE_NAMESPACE
from sluice.errors import CheckpointError, CheckpointStorageError
from sluice.ledger.backfill_attempts import (
    BackfillAttemptObservation,
    BackfillState,
    newest_attempt,
    running_attempts,
)
from sluice.ledger.batches import BatchObservation, newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import GenerationObservation, all_generations
from sluice.ledger.refreshes import OPEN_STATES, RefreshObservation, all_refreshes, times_of_abandonment
from sluice.ledger.runs import live_generations
from sluice.leftovers.closed_checkpoints import (
    ClosedCheckpoint,
    KnownCheckpoints,
    closed_checkpoints,
    doubt_of,
    newest_generations,
)
from sluice.publication.staged_batch import STAGING_NAMESPACE
from sluice.publication.staging_layout import BACKFILL_NAMESPACE, REFRESH_NAMESPACE
from sluice.settings import Settings
from sluice.tables.catalog import catalog_refusals

_log = logging.getLogger(__name__)


class LeftoverKind(StrEnum):
    """What is left. CHECKPOINT: of a closed generation, or of the shadow of an abandoned refresh. COPIES: its copies.
    REHEARSAL: what a rehearsal of one has left that was killed. SHADOW: a table of a refresh that ended without being
    cleared. STAGING: that of an interval whose backfill died."""

    CHECKPOINT = "checkpoint"
    COPIES = "copies"
    REHEARSAL = "rehearsal"
    SHADOW = "shadow"
    STAGING = "staging"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    """One thing that is left.

    of: what of the stream it was. place: the URI of the folder, or the name of the table.
    path: of the folder, below the root of the checkpoints.
    since: since when it is not needed: nothing can go back to it, and nothing was written there any more.
    goes_at: when it may be removed. files, size_bytes: of a folder. The files of a table are not removed with it.
    problem: why it stays; empty otherwise. is_unanswered: whether its storage did not answer, and may another time.
    interval: of a table of a backfill.
    """

    kind: LeftoverKind
    stream: str
    of: str
    place: str
    since: datetime
    goes_at: datetime
    files: int | None = None
    size_bytes: int | None = None
    problem: str = ""
    is_unanswered: bool = False
    path: str = ""
    interval: Interval | None = None

    def is_due(self, now: datetime) -> bool:
        """Whether it may be removed at a time."""
        return not self.problem and now >= self.goes_at

    def is_missed(self, now: datetime) -> bool:
        """Whether it might be removed at a time, and its storage does not answer."""
        return self.is_unanswered and now >= self.goes_at


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What is left at one time, by the clock of the ledger. stream: of this one alone; empty for all."""

    catalog: Catalog
    ledger: Ledger
    settings: Settings
    now: datetime
    stream: str = ""

    @cached_property
    def found(self) -> tuple[Leftover, ...]:
        """All of them, by stream.

        Raises
        ------
        LakehouseError, LedgerError: when the catalog or the ledger does not answer.
        """
        found = (*self._of_checkpoints(), *self._of_refreshes(), *self._of_backfills())
        return tuple(sorted(found, key=lambda one: (one.stream, one.since, bool(one.path), one.place)))

    @property
    def due(self) -> tuple[Leftover, ...]:
        """Those that may be removed."""
        return tuple(one for one in self.found if one.is_due(self.now))

    @property
    def missed(self) -> tuple[Leftover, ...]:
        """Those that might be removed, and whose storage does not answer."""
        return tuple(one for one in self.found if one.is_missed(self.now))

    @property
    def held_back(self) -> tuple[Leftover, ...]:
        """Those of `doubtful` whose grace is over."""
        return tuple(one for one in self.doubtful if self.now >= one.goes_at)

    @property
    def _grace(self) -> timedelta:
        return timedelta(days=self.settings.leftovers_kept_days)

    def _is_asked(self, stream: str) -> bool:
        return self.stream in ("", stream)

    @cached_property
    def _refreshes(self) -> tuple[RefreshObservation, ...]:
        return all_refreshes(self.ledger)

    @cached_property
    def _abandoned_at(self) -> Mapping[int, datetime]:
        return times_of_abandonment(self.ledger)

    @cached_property
    def _live(self) -> frozenset[tuple[str, int]]:
        return live_generations(self.ledger)

    def again(self, one: Leftover) -> Leftover | None:
        """One of them as it is now, by the ledger, the tables and its storage; none when it is needed again, or gone.

        Raises
        ------
        LakehouseError, LedgerError: as `found`.
        """
        fresh = replace(self, stream=one.stream)
        if one.path:
            closed = (each for each in fresh._closed if f"/{one.path}".endswith(f"/{each.path}"))
            found = chain.from_iterable(map(fresh._left_of, closed))
        else:
            found = chain(fresh._of_refreshes(), fresh._of_backfills())
        return next((each for each in found if each.place == one.place), None)

    def is_there(self, one: Leftover) -> bool:
        """Whether there is a file of a folder, or the table, whatever it is needed for.

        Raises
        ------
        CheckpointError, LakehouseError: when its storage or the catalog does not answer.
        """
        if one.path:
            return any(True for _ in open_checkpoint_files(one.place, self.settings.object_store).list_files())
        with catalog_refusals(f"look for the table {one.place}"):
            return self.catalog.table_exists(one.place)

    def _of_checkpoints(self) -> Iterator[Leftover]:
        for closed in self._closed:
            yield from self._left_of(closed)

    @cached_property
    def _closed(self) -> tuple[ClosedCheckpoint, ...]:
        return self._closed_of(self._begun.keys() - self._doubts.keys())

    @cached_property
    def doubtful(self) -> tuple[Leftover, ...]:
        """What stays because it is not known whether the tables of its stream stand in its newest generation.

        Raises
        ------
        LakehouseError, LedgerError: as `found`.
        """
        closed = (one for one in self._closed_of(self._begun) if self._doubts and one not in self._closed)
        found = chain.from_iterable(map(self._left_of, closed))
        return tuple(replace(one, problem=self._doubts[one.stream], is_unanswered=False) for one in found)

    def _closed_of(self, begun: Collection[str]) -> tuple[ClosedCheckpoint, ...]:
        known = KnownCheckpoints(
            generations=self._generations,
            refreshes=self._refreshes,
            live=self._live,
            begun=begun,
            abandoned_at=self._abandoned_at,
        )
        closed = closed_checkpoints(known)
        return tuple(one for one in closed if self._is_asked(one.stream) and one.closed_at <= self.now)

    @cached_property
    def _generations(self) -> tuple[GenerationObservation, ...]:
        return all_generations(self.ledger)

    @cached_property
    def _begun(self) -> Mapping[str, tuple[GenerationObservation, BatchObservation]]:
        """The newest generation of each stream that has left one, with its newest batch in the ledger."""
        newest = newest_generations(self._generations)
        closable = {one.stream for one in self._generations if one.generation < newest[one.stream].generation}
        asked = [newest[name] for name in sorted(closable) if self._is_asked(name)]
        batches = ((one, newest_batch(self.ledger, one.stream, generation=one.generation)) for one in asked)
        return {one.stream: (one, batch) for one, batch in batches if batch is not None}

    @cached_property
    def _doubts(self) -> Mapping[str, str]:
        """By stream, why it is not known where its tables stand."""
        doubts = {stream: doubt_of(self.catalog, *begun) for stream, begun in self._begun.items()}
        for stream, doubt in doubts.items():
            if doubt:
                _log.warning("stream=%s nothing of it is removed: %s", stream, doubt)
        return {stream: doubt for stream, doubt in doubts.items() if doubt}

    def _left_of(self, closed: ClosedCheckpoint) -> Iterator[Leftover]:
        """The folder of a checkpoint and those of its copies. One that was written later was closed later, so that
        neither goes while the other one is not seen. Where the checkpoint is not, its rehearsals are not either."""
        folders = (
            (LeftoverKind.CHECKPOINT, closed.checkpoint, closed.path),
            (LeftoverKind.COPIES, copies_location(closed.checkpoint), f".copies/{closed.path}"),
            (LeftoverKind.REHEARSAL, rehearsal_location(closed.checkpoint), f".rehearsals/{closed.path}"),
        )
        listed = [(*folder, *self._listed(*folder[1:])) for folder in folders]
        since = max([closed.closed_at, *(seen.modified_at for *_, files, _ in listed for seen in files)])
        unseen = next((error for kind, *_, error in listed if error and kind is not LeftoverKind.REHEARSAL), None)
        for kind, place, path, files, error in listed:
            may_have_any = unseen is None and isinstance(error, CheckpointStorageError)
            if not files and (error is None or (kind is LeftoverKind.REHEARSAL and not may_have_any)):
                continue
            reason = error or unseen
            yield Leftover(
                kind=kind,
                stream=closed.stream,
                of=closed.of,
                place=place,
                path=path,
                since=since,
                goes_at=since + self._grace,
                files=len(files) if error is None else None,
                size_bytes=sum(seen.size_bytes for seen in files) if error is None else None,
                problem="" if reason is None else reason.message,
                is_unanswered=isinstance(reason, CheckpointStorageError),
            )

    def _listed(self, place: str, path: str) -> tuple[tuple[FileObservation, ...], CheckpointError | None]:
        """The files of a folder, and why it is not one of those that may be removed."""
        refused = None
        try:
            require_below(place, self.settings.checkpoints, path=path)
        except CheckpointError as error:  # it lies elsewhere
            refused = error
        try:
            return tuple(open_checkpoint_files(place, self.settings.object_store).list_files()), refused
        except CheckpointError as error:  # only Spark can look there, or its storage is away
            return (), refused or error

    def _of_refreshes(self) -> Iterator[Leftover]:
        """The tables of refreshes whose last step, which drops them, was never done, nor can be taken back."""
        for refresh, since in self._ended_refreshes():
            for place in self._tables_of(refresh.shadow):
                yield Leftover(
                    kind=LeftoverKind.SHADOW,
                    stream=refresh.stream,
                    of=f"refresh {refresh.number}, {refresh.state}",
                    place=place,
                    since=since,
                    goes_at=since + self._grace,
                )

    @cached_property
    def over(self) -> tuple[RefreshObservation, ...]:
        """The refreshes whose grace is over and whose end is not noted, as long as their tables may have been left."""
        return tuple(one for one, since in self._ended_refreshes() if self.now >= since + self._grace)

    @cached_property
    def silent(self) -> tuple[BackfillAttemptObservation, ...]:
        """The attempts to backfill that have not reported an end for the grace, whether or not they had a table. One
        that has died keeps the files of every backfill of its stream; one that lives has the lock of its interval."""
        running = (one for one in running_attempts(self.ledger) if self._is_asked(one.key.stream))
        return tuple(one for one in running if self.now >= one.started_at + self._grace)

    def is_cleared(self, refresh: RefreshObservation) -> bool:
        """Whether no table of a refresh is left now.

        Raises
        ------
        LakehouseError: when the catalog does not answer.
        """
        return not any(self._tables_of(refresh.shadow))

    def _ended_refreshes(self) -> Iterator[tuple[RefreshObservation, datetime]]:
        """The refreshes that no command continues and whose end is not noted, with when it could be taken back."""
        streams = {stream for stream, _ in self._live}
        for refresh in self._refreshes:
            since = self._abandoned_at.get(refresh.number) or refresh.keeps_until or refresh.began_at
            is_over = refresh.ended_at is None and refresh.state not in OPEN_STATES and since <= self.now
            if is_over and self._is_asked(refresh.stream) and refresh.shadow not in streams:
                yield refresh, since

    def _tables_of(self, shadow: str) -> Iterator[str]:
        for namespace in (REFRESH_NAMESPACE, QUARANTINE_NAMESPACE, STAGING_NAMESPACE):
            for table in self._tables_in(namespace):
                if table == shadow or table.startswith(f"{shadow}__"):
                    yield f"{namespace}.{table}"

    def _of_backfills(self) -> Iterator[Leftover]:
        """The staging tables of intervals whose backfill died, and was not repeated since."""
        for table in self._tables_in(BACKFILL_NAMESPACE):
            stream, _, part = table.partition("__")
            interval = of_name_part(part.rpartition("__")[2])
            if interval is None or not self._is_asked(stream):
                continue
            attempt = newest_attempt(self.ledger, stream, interval.start, interval.end)
            if attempt is None:
                continue
            since = attempt.ended_at or attempt.started_at
            is_running = attempt.state is BackfillState.RUNNING and self.now < since + self._grace
            if not is_running:  # one that has run for longer has died: its removal takes the lock of the interval
                yield Leftover(
                    kind=LeftoverKind.STAGING,
                    stream=stream,
                    of=f"backfill of {interval.spoken}, {attempt.state}",
                    place=f"{BACKFILL_NAMESPACE}.{table}",
                    since=since,
                    goes_at=since + self._grace,
                    interval=interval,
                )

    def _tables_in(self, namespace: str) -> list[str]:
        with catalog_refusals(f"list the tables of {namespace}"):
            try:
                return sorted(name[-1] for name in self.catalog.list_tables(namespace))
            except NoSuchNamespaceError:
                return []
