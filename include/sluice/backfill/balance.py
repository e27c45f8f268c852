"""Decides whether the numbers of a backfill add up: no row may be lost or doubled without anybody noticing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sluice.errors import VerificationError


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTotals:
    """The rows of one computation, which may be of several intervals.

    read: of the stream inputs. results: of the transformation, in all intervals and in none.
    without_time: of the results, without a value by which they would lie in an interval.
    quarantined: rejected ones among the rows read. duplicate: dropped as repetitions, or as older than another row of
        their key.
    """

    read: int
    results: int
    without_time: int
    quarantined: int
    duplicate: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """The rows of one backfill.

    read: of the stream inputs; of all intervals that were computed together, as are `quarantined` and `duplicate`.
    published: of the result within the interval. outside: of the result in other intervals.
    without_time: of the result in no interval, because their time is null; the target holds them already.
    quarantined: rejected ones among the rows read. duplicate: dropped as repetitions, or as older than another row of
        their key. late: always 0, because a batch has all rows in hand.
    replaced: rows that the target held in the interval before.
    kept: rows of other intervals in files that had to be rewritten. rewritten: all rows of those files.
    staged: rows that the staging table holds.
    """

    read: int
    published: int
    outside: int
    quarantined: int
    duplicate: int
    replaced: int
    kept: int
    rewritten: int
    staged: int
    without_time: int = 0
    late: int = 0


def require_balance(counts: RowCounts, *, accounts_for_rows: bool, what: str) -> None:
    """Check that the numbers of a backfill add up, before anything becomes visible.

    Parameters
    ----------
    accounts_for_rows: whether the transformation accounts for every row that it reads (`balance: rows`).
    what: the backfill, for messages.

    Raises
    ------
    VerificationError: with every sum that does not hold; nothing was published.
    """
    if problems := list(_imbalances(counts, accounts_for_rows=accounts_for_rows)):
        raise VerificationError(
            f"The rows of {what} do not add up: {'; '.join(problems)}. Nothing was published.",
            next_step="Run it again; if the sum fails again, the transformation drops or multiplies rows.",
        )


def _imbalances(counts: RowCounts, *, accounts_for_rows: bool) -> Iterator[str]:
    if counts.staged != counts.published + counts.kept:
        yield f"{counts.staged} rows are staged, {counts.published} + {counts.kept} were computed and kept"
    if counts.rewritten != counts.kept + counts.replaced:
        yield f"{counts.rewritten} rows are in the old files, {counts.kept} are kept and {counts.replaced} replaced"
    accounted = sum(
        (counts.published, counts.outside, counts.without_time, counts.quarantined, counts.duplicate, counts.late)
    )
    if accounts_for_rows and counts.read != accounted:
        yield (
            f"{counts.read} rows were read; {counts.published} published + {counts.outside} outside of the interval + "
            f"{counts.without_time} without a time + {counts.quarantined} quarantined + "
            f"{counts.duplicate} duplicate + {counts.late} late = {accounted}"
        )
