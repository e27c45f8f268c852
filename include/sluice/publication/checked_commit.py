"""Repeats check and commit until the commit has landed or is no longer needed."""

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
    """A commit that is known to have landed: its snapshot, and how many commits were sent."""

    snapshot_id: int
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NothingToCommit:
    """The check found that no commit is needed. snapshot_id: the snapshot that made the change, when it is known."""

    snapshot_id: int | None


Check = Callable[[], tuple[Table, PlannedCommit] | NothingToCommit]
"""Loads and checks the table, and plans the commit on exactly that metadata. Raises when there must be no commit."""


def commit_checked(
    catalog: Catalog, check: Check, *, what: str, reached: Reached = unnoticed, policy: RacePolicy = DEFAULT_POLICY
) -> Landed | NothingToCommit:
    """Check and commit, again from the check after each conflict, until the commit lands or is no longer needed.

    Parameters
    ----------
    what: what is published, for messages, to follow "publish", for example `batch s:1:7 into a.b`.
    reached: called with `CHECKED` before each commit is sent.

    Raises
    ------
    StarvedError: when every attempt met a conflict.
    UncertainError: when an answer was lost and the catalog cannot be asked any more.
    """
    sent: list[int] = []
    unanswered = 0
    for _ in policy.turns():
        checked = _check_again(check, what=what, unanswered=unanswered)
        if isinstance(checked, NothingToCommit):
            # After a lost answer an own commit that has landed is recognised by its snapshot.
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
        next_step="Try again. If it fails again, let the other writers commit less often, or publish less often.",
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
        f"It is unknown whether this was published: {what}. The catalog's answer was lost.",
        next_step="Try again when the catalog answers: a commit that has landed is recognised and not repeated.",
    )
