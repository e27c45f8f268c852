"""Checks and commits, again from the check when another writer was faster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from tenacity import Retrying, retry_always, stop_after_attempt, wait_random_exponential

from sluice.errors import LakehouseError, StarvedError, UncertainError
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.iceberg_commit import Answer, PlannedCommit, build_attempt, discard, send


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


DEFAULT_POLICY = RacePolicy()
"""About half a minute of lost races: longer than any burst of commits, short enough to be told of a steady rival."""


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
    catalog: Catalog, check: Check, *, what: str, reached: Reached = unnoticed, policy: RacePolicy = DEFAULT_POLICY
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
