"""Repeats load, check and commit until the commit has landed or is no longer needed.

The port `TableCommitter` loads a table, and prepares and sends a commit once. What a commit changes is decided on
exactly the metadata that was loaded. A committer never repeats anything by itself: a repetition without the check
published a batch twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation
from tenacity import Retrying, retry_always, stop_after_attempt, wait_random_exponential

from sluice.errors import DivergedError, LakehouseError, SluiceError, StarvedError, UncertainError
from sluice.publication.chain import MarkPosition
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.staged_batch import StagedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTag:
    """A tag that keeps the head which a commit replaces. keeps: for how long, from the commit on."""

    name: str
    keeps: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class TableChange:
    """One new snapshot of main, and what the same commit changes beside it.

    operation: APPEND adds files, OVERWRITE removes and adds files, DELETE removes files; REPLACE is an overwrite that
        changes no row, and streaming readers pass it. Without files the snapshot is empty.
    added: data files that are written. The `spec_id` of each is the table's.
    removed: data files that are live in the table.
    summary: the entries of the snapshot's summary.
    output, mark: the position to which the commit moves the mark of the output; none for commits on staging tables.
    properties: the table properties that the commit sets.
    expired: the ids of the snapshots that the commit removes from the metadata.
    tag: kept on the head that the commit replaces; unset for none.
    added_at: when the oldest of the added files was written; unset when that is unknown. When an orphan removal may
        have taken one, each of them is looked for before the commit.
    way_out: what a person can do when an added file is gone; empty: to write it again.
    writer: the identity of who commits, which its manifests are named after; empty: they have names of their own.
    cleans: of an append: write those manifests again that list a removed file, without it. No delete file may be listed
        beside one.
    """

    operation: Operation
    added: tuple[DataFile, ...] = ()
    removed: tuple[DataFile, ...] = ()
    summary: Mapping[str, str]
    output: StagedOutput | None = None
    mark: MarkPosition | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    expired: tuple[int, ...] = ()
    tag: HeadTag | None = None
    added_at: datetime | None = None
    way_out: str = ""
    writer: str = ""
    cleans: bool = False


class Answer(StrEnum):
    """The catalog's answer to a commit. None but LANDED is certain about the table.

    LANDED: the table has the snapshot.
    REFUSED: the catalog answered that the table had changed. A gateway that repeats a request gets this answer to the
        repetition of a commit that has landed.
    UNKNOWN: the answer was lost, or the catalog failed: the commit may have landed, or land later.
    """

    LANDED = "landed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class PreparedCommit(Protocol):
    """One commit, ready to be sent once. Its manifests are written; no metadata refers to them before it lands."""

    @property
    def snapshot_id(self) -> int:
        """The id of the new snapshot."""
        ...

    @property
    def sequence_number(self) -> int:
        """The sequence number of the new snapshot."""
        ...

    def send(self) -> Answer:
        """Send the commit once.

        Raises
        ------
        LakehouseError: when the catalog refuses it for another reason than a changed table.
        """
        ...

    def discard(self) -> None:
        """Delete the manifests of the commit. Only for a commit whose fate is `NEVER`."""
        ...


class TableCommitter(Protocol):
    """Loads tables and changes them by single commits."""

    def load(self, identifier: str) -> Table:
        """Load a table freshly.

        Parameters
        ----------
        identifier: `<namespace>.<table>`.

        Raises
        ------
        LakehouseError: when the table does not exist or cannot be loaded.
        """
        ...

    def prepare(self, table: Table, change: TableChange) -> PreparedCommit:
        """Write the manifests of a change on exactly this metadata.

        The catalog lands the commit only while the table has this UUID and main is at this snapshot.

        Raises
        ------
        StagedFilesMissingError: when an added file is gone (`TableChange.added_at`).
        LakehouseError: when the object store refuses.
        """
        ...


class Fate(StrEnum):
    """What became of a commit, as a table that was loaded after the answer shows it.

    LANDED: main has its snapshot. NEVER: it has not landed and cannot land any more. OPEN: the table shows neither,
    because the commit may still land, or because the history that would show it has expired.
    """

    LANDED = "landed"
    NEVER = "never"
    OPEN = "open"


def decide_fate(*, snapshot_id: int, sequence_number: int, parent_id: int | None, now: TableMetadata) -> Fate:
    """Decide what became of a commit that was sent and not answered with LANDED.

    A snapshot that is only missing proves nothing: it may have landed and expired, while later snapshots use its
    manifests. It has never landed when the history of main leads to its parent without it. It can land no more when the
    table has reached its sequence number, because catalogs accept a snapshot only with a higher one.

    Parameters
    ----------
    snapshot_id, sequence_number: of the snapshot that the commit adds.
    parent_id: the snapshot of main on which the commit was prepared; none for an empty table.
    now: the metadata of the table, loaded after the answer.
    """
    by_id = {snapshot.snapshot_id: snapshot for snapshot in now.snapshots}
    place = now.current_snapshot_id
    while place is not None and place in by_id and place != parent_id:
        if place == snapshot_id:
            return Fate.LANDED
        place = by_id[place].parent_snapshot_id
    has_whole_history = place is not None and place == parent_id
    can_land = now.next_sequence_number() <= sequence_number
    return Fate.NEVER if has_whole_history and not can_land and snapshot_id not in by_id else Fate.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class RacePolicy:
    """How often a commit is tried again when other writers commit first.

    attempts: how many commits are sent before the publication fails as starved. Each costs 20-100 ms.
    shortest_wait_seconds, longest_wait_seconds: the limits of the random time between two attempts, which grows.
    """

    attempts: int = 60
    shortest_wait_seconds: float = 0.02
    longest_wait_seconds: float = 1.0

    def turns(self) -> Iterator[int]:
        """Yield the number of each attempt, and wait between two of them."""
        wait = wait_random_exponential(multiplier=self.shortest_wait_seconds, max=self.longest_wait_seconds)
        stop = stop_after_attempt(self.attempts)
        for attempt in Retrying(stop=stop, wait=wait, retry=retry_always, retry_error_callback=lambda state: None):
            yield attempt.retry_state.attempt_number
            attempt.retry_state.set_result(None)  # tenacity then waits, or ends after the last attempt


DEFAULT_POLICY = RacePolicy()
"""About half a minute of conflicts: longer than a burst of commits, short enough to report a steady other writer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A commit that is known to have landed.

    snapshot_id: its snapshot. attempts: how many commits were sent.
    change: what it changed; other attempts may have planned something else.
    """

    snapshot_id: int
    attempts: int
    change: TableChange


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToCommit:
    """The check found that no commit is needed. snapshot_id: the snapshot that made the change, when it is known."""

    snapshot_id: int | None


def snapshot_of(outcome: Landed | NothingToCommit, *, what: str) -> int:
    """The snapshot that made a change.

    Parameters
    ----------
    what: was published, for the message.

    Raises
    ------
    UncertainError: when it is not known. No other number may stand for it: the ledger and readers look for it.
    """
    if outcome.snapshot_id is None:
        raise UncertainError(
            f"It is unknown which snapshot made this visible: {what}.",
            next_step="Repeat the command: it reads the table again.",
        )
    return outcome.snapshot_id


PlanChange = Callable[[Table], TableChange | NothingToCommit]
"""Checks a table that was just loaded, and plans the change on exactly that metadata. Raises when none is allowed."""


def commit_checked(
    committer: TableCommitter,
    identifier: str,
    plan: PlanChange,
    *,
    what: str,
    reached: Reached = unnoticed,
    policy: RacePolicy = DEFAULT_POLICY,
) -> Landed | NothingToCommit:
    """Load, check and commit, again from the load after each conflict, until the change lands or is no longer needed.

    A commit that was refused or not answered may have landed all the same. The next load shows what became of it; its
    manifests are deleted only when it has not landed and never will.

    Parameters
    ----------
    identifier: `<namespace>.<table>` of the table to change.
    plan: is called with the table after every load.
    what: what is published, for messages, to follow "publish", for example `batch s:1:7 into a.b`.
    reached: called with `CHECKED` before each commit is sent.

    Raises
    ------
    StarvedError: when every attempt met a conflict.
    UncertainError: when a commit has no certain answer and the catalog cannot be asked any more.
    DivergedError: when the table refers to a file that is gone.
    """
    attempts = _Attempts(committer=committer, identifier=identifier, plan=plan, what=what)
    for _ in policy.turns():
        outcome = attempts.load_and_check()
        if outcome is None:
            continue
        if not isinstance(outcome, _Sent):
            return outcome
        reached(CrashPoint.CHECKED)
        match outcome.commit.send():
            case Answer.LANDED:
                return attempts.landed(outcome)
            case Answer.UNKNOWN:
                outcome.is_unanswered = True
        attempts.pending.append(outcome)
    last = attempts.settle(attempts.load())
    if last is not None:
        return last
    if any(sent.is_unanswered for sent in attempts.pending):
        raise _uncertain(what)
    raise StarvedError(
        f"Cannot publish {what}: other writers of the table won {attempts.count} races in a row.",
        next_step="Try again. If it fails again, let the other writers commit less often, or publish less often.",
    )


@dataclass(slots=True, kw_only=True)
class _Sent:
    """A commit that is sent. parent_id: the snapshot on which it was prepared."""

    commit: PreparedCommit
    change: TableChange
    parent_id: int | None
    is_unanswered: bool = False


@dataclass(slots=True, kw_only=True)
class _Attempts:
    """The commits of one call. pending: those whose fate is open."""

    committer: TableCommitter
    identifier: str
    plan: PlanChange
    what: str
    count: int = 0
    pending: list[_Sent] = field(default_factory=list)

    def load_and_check(self) -> Landed | NothingToCommit | _Sent | None:
        """The next commit to send; or what makes it unnecessary. None when another writer has moved the table on and
        removed what it referred to, before the commit was prepared."""
        table = self.load()
        settled = self.settle(table)
        if settled is not None:
            return settled
        change = self._plan(table)
        if isinstance(change, NothingToCommit):
            # The mark still names the snapshot of a commit that has landed when its history has expired.
            own = next((sent for sent in self.pending if sent.commit.snapshot_id == change.snapshot_id), None)
            return self.landed(own) if own is not None else change
        self.count += 1
        try:
            commit = self.committer.prepare(table, change)
        except FileNotFoundError as error:
            if self.load().metadata_location != table.metadata_location:
                return None
            raise self._torn(error) from error
        return _Sent(commit=commit, change=change, parent_id=table.metadata.current_snapshot_id)

    def load(self) -> Table:
        """The table as it is now."""
        try:
            return self.committer.load(self.identifier)
        except LakehouseError as error:
            if self.pending:
                raise _uncertain(self.what) from error
            raise

    def settle(self, table: Table) -> Landed | None:
        """Look for the pending commits in a table that was loaded after their answers; one of them may have landed."""
        still_open = []
        for sent in self.pending:
            fate = decide_fate(
                snapshot_id=sent.commit.snapshot_id,
                sequence_number=sent.commit.sequence_number,
                parent_id=sent.parent_id,
                now=table.metadata,
            )
            match fate:
                case Fate.LANDED:
                    return self.landed(sent)
                case Fate.NEVER:
                    sent.commit.discard()
                case Fate.OPEN:
                    still_open.append(sent)
        self.pending = still_open
        return None

    def landed(self, sent: _Sent) -> Landed:
        """The outcome when a commit has landed."""
        return Landed(snapshot_id=sent.commit.snapshot_id, attempts=self.count, change=sent.change)

    def _torn(self, error: FileNotFoundError) -> SluiceError:
        if self.pending:
            return _uncertain(self.what)
        return DivergedError(
            f"{self.identifier} refers to a file that is gone, so {self.what} cannot be published: {error}.",
            next_step="Bring the file back, from the versions or a backup of the object store, or have the catalog "
            "know the table as it was: it was set back, or somebody has removed the file.",
        )

    def _plan(self, table: Table) -> TableChange | NothingToCommit:
        try:
            return self.plan(table)
        except LakehouseError as error:
            if self.pending:
                raise _uncertain(self.what) from error
            raise


def _uncertain(what: str) -> UncertainError:
    return UncertainError(
        f"It is unknown whether this was published: {what}. The catalog's answer was lost.",
        next_step="Try again when the catalog answers: a commit that has landed is recognised and not repeated.",
    )
