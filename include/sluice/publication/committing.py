"""Sends one commit at a time: built on the metadata that was checked, admitted only while main is still there.

pyiceberg's own `commit_transaction` is not used. It retries a lost race by itself and applies the change to whatever it
finds, without the check that admitted it; in a race of publishers that published a batch twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertTableUUID,
    SetPropertiesUpdate,
    TableRequirement,
    TableUpdate,
)
from pyiceberg.table.update.snapshot import UpdateSnapshot, _SnapshotProducer
from requests import RequestException
from sqlalchemy.exc import DBAPIError
from tenacity import Retrying, retry_always, stop_after_attempt, wait_random_exponential

from sluice.errors import LakehouseError, StarvedError, UncertainError
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.marks import MarkPosition
from sluice.publication.staged_output import StagedOutput
from sluice.tables.catalog import catalog_refusals

_log = logging.getLogger(__name__)

Producer = _SnapshotProducer[Any]
"""What writes the manifests of one new snapshot. pyiceberg has no public name for it; its version is pinned."""

ProducerOf = Callable[[UpdateSnapshot], Producer]
"""Chooses the kind of the snapshot, for example `lambda update: update.fast_append()`, and gives it its files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RacePolicy:
    """How long to go on when other writers win the race for main.

    attempts: so many commits are sent before the publication is starved. Each costs 20-100 ms.
    shortest_wait_seconds, longest_wait_seconds: between two attempts, a random time that grows from one to the other.
    """

    attempts: int = 60
    shortest_wait_seconds: float = 0.02
    longest_wait_seconds: float = 1.0

    def turns(self) -> Iterator[int]:
        """One number for each attempt, with the waits in between."""
        wait = wait_random_exponential(multiplier=self.shortest_wait_seconds, max=self.longest_wait_seconds)
        stop = stop_after_attempt(self.attempts)
        for attempt in Retrying(stop=stop, wait=wait, retry=retry_always, retry_error_callback=lambda state: None):
            yield attempt.retry_state.attempt_number
            attempt.retry_state.set_result(None)  # the wait follows; after the last attempt the numbers end


_TELLS_NOTHING = (CommitStateUnknownException, ServerError, ServiceUnavailableError, RequestException, DBAPIError)
_JUDGED_HERE = (CommitFailedException, BadRequestError, *_TELLS_NOTHING)

PATIENT = RacePolicy()
"""About half a minute of lost races: longer than any burst of commits, short enough to be told of a steady rival."""


class Answer(StrEnum):
    """What is known of a commit that was sent. UNKNOWN: its answer was lost; it may have landed, or land later."""

    LANDED = "landed"
    REFUSED = "refused"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCommit:
    """What one commit is to do to a table, apart from the attempt that does it.

    producer_of: makes the new snapshot.
    summary: the entries of its summary.
    mark: where the mark of `output` moves with it; none for commits on staging tables.
    also: further updates of the same commit.
    """

    producer_of: ProducerOf
    summary: Mapping[str, str]
    output: StagedOutput | None = None
    mark: MarkPosition | None = None
    also: tuple[TableUpdate, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAttempt:
    """One commit, ready to be sent. Its manifests are written; nothing refers to them before it lands."""

    table: Table
    updates: tuple[TableUpdate, ...]
    requirements: tuple[TableRequirement, ...]
    snapshot_id: int
    producer: Producer


def build_attempt(table: Table, planned: PlannedCommit) -> CommitAttempt:
    """Write the manifests of a commit on this very metadata, and say what the catalog must find unchanged.

    The requirements: the table is this one and not another of its name; main is where the metadata has it.
    """
    update = UpdateSnapshot(_SettledTransaction(table), io=table.io, snapshot_properties=dict(planned.summary))
    producer = planned.producer_of(update)
    updates, requirements = producer._commit()  # the public `commit` would send it, and retry
    snapshot = next(update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate))
    if planned.mark is not None and planned.output is not None:
        number = snapshot.sequence_number or table.metadata.next_sequence_number()
        mark = planned.mark.at(snapshot_id=snapshot.snapshot_id, sequence_number=number)
        updates = (*updates, SetPropertiesUpdate(updates={planned.output.mark_property: mark.text()}))
    return CommitAttempt(
        table=table,
        updates=(*updates, *planned.also),
        requirements=(AssertTableUUID(uuid=table.metadata.table_uuid), *requirements),
        snapshot_id=snapshot.snapshot_id,
        producer=producer,
    )


def send(catalog: Catalog, attempt: CommitAttempt) -> Answer:
    """Send a commit once.

    A refusal is certain: the catalog judged the requirements and changed nothing. An error of the way there or back, or
    inside the catalog, tells nothing of the table.
    """
    name = ".".join(attempt.table.name())
    try:
        with catalog_refusals(f"commit to {name}", but_not=_JUDGED_HERE):
            catalog.commit_table(attempt.table, attempt.requirements, attempt.updates)
    except CommitFailedException as refusal:
        _log.debug("%s: lost a race: %s", name, refusal)
        return Answer.REFUSED
    except (BadRequestError, ValueError) as refusal:
        # Another branch moved the table's sequence number on while main stood still. SeaweedFS answers 400 to that, and
        # pyiceberg's own catalogs raise ValueError; it is a lost race like any other.
        if "sequence number" not in str(refusal).lower():
            raise
        return Answer.REFUSED
    except _TELLS_NOTHING as error:
        _log.warning("%s: the answer to a commit was lost: %s", name, type(error).__name__)
        return Answer.UNKNOWN
    return Answer.LANDED


def discard(attempt: CommitAttempt) -> None:
    """Delete the manifests of a commit that was certainly refused."""
    attempt.producer._clean_all_uncommitted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Landed:
    """A commit that is known to have landed: its snapshot, and how many commits were sent before it did."""

    snapshot_id: int
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToCommit:
    """The check found that the table is already as wanted. snapshot_id: the snapshot that made it so."""

    snapshot_id: int | None


Check = Callable[[], tuple[Table, PlannedCommit] | NothingToCommit]
"""Loads the table, judges it, and says what to commit on exactly that metadata. Raises when it must not be."""


def commit_checked(
    catalog: Catalog, check: Check, *, what: str, reached: Reached = unnoticed, policy: RacePolicy = PATIENT
) -> Landed | NothingToCommit:
    """Check and commit, again from the check whenever another writer was faster, until it landed or needs not to.

    Parameters
    ----------
    what: the work in words, for messages, to follow "publish", for example `batch s:1:7 into a.b`.
    reached: is told `CHECKED` before each commit is sent.

    Raises
    ------
    StarvedError: when other writers won every race.
    UncertainError: when an answer was lost and the catalog can no longer be asked.
    """
    sent: list[int] = []
    unanswered = 0
    for _ in policy.turns():
        checked = _check_again(check, what=what, unanswered=unanswered)
        if isinstance(checked, NothingToCommit):
            # With an answer lost, this is how a commit of ours is recognised.
            if checked.snapshot_id in sent:
                return Landed(snapshot_id=checked.snapshot_id or 0, attempts=len(sent))
            return checked
        attempt = build_attempt(*checked)
        sent.append(attempt.snapshot_id)
        reached(CrashPoint.CHECKED)
        match send(catalog, attempt):
            case Answer.LANDED:
                return Landed(snapshot_id=attempt.snapshot_id, attempts=len(sent))
            case Answer.REFUSED:
                discard(attempt)
            case Answer.UNKNOWN:  # its manifests stay: it may have landed
                unanswered += 1
    if unanswered:
        raise _uncertain(what)
    raise StarvedError(
        f"Cannot publish {what}: other writers of the table won {len(sent)} races in a row.",
        next_step="Try again; if it stays so, give the other writers fewer commits or this stream fewer batches.",
    )


def _check_again(check: Check, *, what: str, unanswered: int) -> tuple[Table, PlannedCommit] | NothingToCommit:
    try:
        return check()
    except LakehouseError as error:
        if unanswered:
            raise _uncertain(what) from error
        raise


def _uncertain(what: str) -> UncertainError:
    return UncertainError(
        f"Cannot tell whether this was published: {what}. The catalog's answer was lost.",
        next_step="Try again when the catalog answers: what landed is recognised and not published twice.",
    )


class _SettledTransaction(Transaction):
    """A transaction whose metadata is the table's: pyiceberg's copies all of it, history included, at each look."""

    @property
    def table_metadata(self) -> TableMetadata:
        return self._table.metadata
