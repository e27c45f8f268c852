"""The lane of replays: rejected records become rows of a target once; the mark of the live stream stays where it is.

    settle ─► fence ─► compute ─► claim ─► publish ─► mark the rows as replayed

The newest replay of an output stands in a property of its target. It changes together with main alone, so that an older
replay, which was paused, meets it: the fence replaces its key, and what it then sends is refused. The commit that makes
the rows visible says so in the same property. The claim says in the quarantine which rows it was about. So each crash
leaves a state from which the next replay continues: before the commit nothing is visible, and the rows are open; behind
it the next one marks the claimed rows first.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import cache, partial
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot

from sluice.errors import IntervalChangedError, UnpublishableError
from sluice.publication.checked_commit import NothingToCommit, PlanChange, TableChange, commit_checked, snapshot_of
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.file_preparation import fit_files, refuse_unfit_rows
from sluice.publication.interval_files import foreign_change_since
from sluice.publication.marks import history_of_main, refuse_unpublishable
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.resolved_rejections import RejectedAt, claim_rows, mark_replayed, reopen_replayed
from sluice.publication.staged_batch import StagedOutput
from sluice.stored_keys import OUTPUT, PUBLICATION_KEY, REPLAY_PROPERTY_PREFIX, ROWS
from sluice.tables.declared_tables import require_table

_log = logging.getLogger(__name__)

_LANE, _FENCE = "replay", "/fence"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewestReplay:
    """The newest replay that a target knows.

    key: empty while there was none. is_visible: whether its rows are. before: the newest one before it whose rows are.
    """

    key: str = ""
    is_visible: bool = False
    before: str = ""

    @property
    def newest_visible(self) -> str:
        """The newest replay that has published; empty while none has."""
        return self.key if self.is_visible else self.before

    def as_property(self) -> str:
        """The value of the property."""
        return json.dumps({"key": self.key, "visible": self.is_visible, "before": self.before})


def replay_key(stream: str, *, now: datetime) -> str:
    """The publication key of a replay: no other has it, and later ones sort behind it.

    Parameters
    ----------
    now: by the clock of the ledger, in UTC.
    """
    return f"{stream}/{_LANE}/{now:%Y%m%dT%H%M%S.%f}/{uuid4().hex}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What a look at the target shows. is_taken_back: whether main does not lead to the newest replay any more."""

    target: Table
    newest: NewestReplay
    is_taken_back: bool

    def shows(self, key: str) -> bool:
        """Whether what the replay of a key has published is visible."""
        has_published = key == self.newest.newest_visible or _newest_of(self.target, key) is not None
        return has_published and not _is_taken_back(self.target, key)

    def hides(self, key: str) -> bool:
        """Whether it is unknown if a replay has published: both of its snapshots are expired, and a younger one has
        taken its place in the property."""
        if key in (self.newest.key, self.newest.newest_visible):
            return False
        return _newest_of(self.target, key) is None and _newest_of(self.target, f"{key}{_FENCE}") is None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLane:
    """The replays of one output. quarantine: the table of the stream's rejected rows."""

    catalog: Catalog
    output: StagedOutput
    quarantine: str

    def settle(self, *, at: datetime) -> int:
        """Mark the rows of replays that are visible. Returns how many; none were left when each did so itself.

        Where somebody has rolled the target back below the newest one, the rows are opened again that it, and those
        before it, had published; where it was rolled forward since, the rows of all of them are marked again. Of an
        older one this takes its snapshot: when that is expired meanwhile, its rows stay open.

        Raises
        ------
        UnpublishableError, DeliveryError, LakehouseError: as `mark_replayed` raises them.
        """
        return self._settle(self._look(require_table(self.catalog, self.output.target)), at=at)

    def has_unknown(self) -> Callable[[str], bool]:
        """Whether it is unknown if the replay of a key has published its rows: an older one, whose snapshots are
        expired."""
        return cache(self._look(require_table(self.catalog, self.output.target)).hides)

    def notice_rollback(self) -> None:
        """Open the rows again whose replays a rollback has taken back; look at nothing else.

        Rows that cannot be exchanged stay marked, with a warning: nothing of the stream itself is wrong, and the next
        replay or discard is refused with the same words.

        Raises
        ------
        DeliveryError, LakehouseError: as `reopen_replayed` raises them.
        """
        seen = self._look(require_table(self.catalog, self.output.target))
        if not seen.is_taken_back:
            return
        try:
            self._reopen(seen)
        except UnpublishableError as error:
            _log.warning("Rows whose replays a rollback of %s took back stay marked: %s", self.output.target, error)

    def close(self, *, stream: str, at: datetime) -> None:
        """Settle the newest replay, and let none that is under way publish, before the content of both tables is
        exchanged: what comes back of it one day has to be marked where it is visible.

        Raises
        ------
        IntervalChangedError, UnpublishableError, DeliveryError, LakehouseError: as `fence` raises them.
        """
        if self._newest(require_table(self.catalog, self.output.target)).key:
            self.fence(replay_key(stream, now=at), at=at)

    def fence(self, key: str, *, at: datetime) -> int:
        """Settle the newest replay and make another one the newest: whatever older ones still send is refused.

        Returns
        -------
        The snapshot that did it.

        Raises
        ------
        IntervalChangedError: when a younger replay has begun, or the rows of an older one became visible since it was
            settled.
        UnpublishableError, DeliveryError, LakehouseError: as `mark_replayed` and `commit_checked` raise them.
        """
        settled = self._look(require_table(self.catalog, self.output.target))
        self._settle(settled, at=at)

        def plan(target: Table) -> TableChange:
            refuse_unpublishable(target)
            found = self._look(target)
            if (newest := found.newest) != settled.newest or newest.key > key:
                raise IntervalChangedError(f"{self.output.target}: another replay, {newest.key}, is under way.")
            if found.is_taken_back != settled.is_taken_back:
                raise IntervalChangedError(f"{self.output.target} was rolled back behind {newest.key}, or forward.")
            return self._change(NewestReplay(key=key, before=newest.newest_visible), key=f"{key}{_FENCE}")

        return self._commit(plan, f"the beginning of {key}")

    def claim(self, key: str, claimed: Set[RejectedAt]) -> None:
        """Note in the quarantine which rows the commit is about.

        Raises
        ------
        UnpublishableError, DeliveryError, LakehouseError: as `claim_rows` raises them.
        """
        claim_rows(self.catalog, self.quarantine, stream=self.output.stream, claimed=claimed, key=key)

    def publish(
        self,
        key: str,
        *,
        head: int,
        staging: Table,
        staged: Sequence[DataFile],
        rows: int,
        reached: Reached = unnoticed,
    ) -> int:
        """Make the rows visible in one commit. A replay of records of which no row comes is committed as well.

        Parameters
        ----------
        head: the snapshot of the fence. rows: how many the staged files hold.

        Raises
        ------
        IntervalChangedError: when another replay has begun, or another writer than the stream has changed the target
            since: a backfill may have made the same records visible.
        DeliveryError, LakehouseError: as `commit_checked` raises them.
        """

        def plan(target: Table) -> TableChange | NothingToCommit:
            refuse_unpublishable(target)
            newest = self._newest(target)
            if newest.key != key:
                raise IntervalChangedError(f"{self.output.target}: another replay, {newest.key}, has begun.")
            if newest.is_visible:
                published = _newest_of(target, key)
                return NothingToCommit(snapshot_id=None if published is None else published.snapshot_id)
            refuse_unfit_rows(staging.schema(), target=target, what=key)
            if (foreign := foreign_change_since(target, head=head, own=self.output)) is not None:
                raise IntervalChangedError(f"{self.output.target} changed while records were replayed: {foreign}.")
            added = fit_files(staged, staging=staging, target=target)
            return self._change(NewestReplay(key=key, is_visible=True), key=key, added=added, rows=rows)

        return self._commit(plan, key, reached=reached)

    @property
    def _property(self) -> str:
        return f"{REPLAY_PROPERTY_PREFIX}{self.output.stream}.{self.output.output}"

    def _look(self, target: Table) -> _Look:
        newest = self._newest(target)
        shown = newest.newest_visible
        return _Look(target=target, newest=newest, is_taken_back=shown != "" and _is_taken_back(target, shown))

    def _settle(self, seen: _Look, *, at: datetime) -> int:
        if seen.is_taken_back:
            self._reopen(seen)
        stream = self.output.stream
        return mark_replayed(self.catalog, self.quarantine, stream=stream, is_visible=seen.shows, at=at)

    def _reopen(self, seen: _Look) -> None:
        stream, is_taken_back = self.output.stream, partial(_is_taken_back, seen.target)
        opened = reopen_replayed(self.catalog, self.quarantine, stream=stream, is_taken_back=is_taken_back)
        if opened:
            sentence = "%s was rolled back below replays: %d rejected rows of %s are open again"
            _log.warning(sentence, self.output.target, opened, stream)

    def _newest(self, target: Table) -> NewestReplay:
        text = target.properties.get(self._property)
        if text is None:
            return NewestReplay()
        found = json.loads(text)
        return NewestReplay(key=found["key"], is_visible=found["visible"], before=found.get("before", ""))

    def _change(
        self, newest: NewestReplay, *, key: str, added: tuple[DataFile, ...] = (), rows: int = 0
    ) -> TableChange:
        summary = {PUBLICATION_KEY: key, OUTPUT: self.output.output, ROWS: str(rows)}
        properties = {self._property: newest.as_property()}
        return TableChange(operation=Operation.APPEND, added=added, summary=summary, properties=properties)

    def _commit(self, plan: PlanChange, what: str, *, reached: Reached = unnoticed) -> int:
        named = f"{what} into {self.output.target}"
        landed = commit_checked(PyIcebergCommitter(self.catalog), self.output.target, plan, what=named, reached=reached)
        return snapshot_of(landed, what=named)


def _is_taken_back(target: Table, key: str) -> bool:
    """Whether main does not lead to what a replay has published any more. When that snapshot is expired, its fence
    shows it: snapshots of main expire from the oldest on.

    A tag keeps a snapshot while its descendants expire. Where the listed history of main ends behind it, nothing shows
    that it was taken back.
    """
    main = list(history_of_main(target))
    published, fence = _newest_of(target, key), _newest_of(target, f"{key}{_FENCE}")
    if published is None:
        return fence is not None and fence in main
    is_passed = bool(main) and (main[-1].sequence_number or 0) > (published.sequence_number or 0)
    return published not in main and not is_passed


def _newest_of(target: Table, key: str) -> Snapshot | None:
    """The newest snapshot of a replay; none when it is expired."""
    made = (one for one in reversed(target.metadata.snapshots) if one.summary is not None)
    return next((one for one in made if one.summary and one.summary.get(PUBLICATION_KEY) == key), None)
