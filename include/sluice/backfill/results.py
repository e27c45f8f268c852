"""The results of backfills: whether their numbers add up, so that no row is lost or doubled, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sluice.backfill.intervals import Interval, of_publication_key, spanned
from sluice.errors import VerificationError
from sluice.ledger.backfill_attempts import BackfillAttemptObservation, BackfillState, attempts_launched_by
from sluice.ledger.connection import Ledger

RESULTS = "results"
"""The XCom of the results of a run's task."""

ALLOW_REPEATED = (
    "Where they are other rows, repeat it with `--allow-repeated`; a run of a DAG takes the conf "
    '`{"allow_repeated": true}`.'
)
"""The way out where rows may be there already."""

_MOST_NAMED = 5
"""How many intervals a message names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTotals:
    """The rows of one computation, which may be of several intervals.

    read: of the stream inputs. results: of the transformation, in all intervals and in none.
    without_time: of the results, without a value by which they would lie in an interval.
    quarantined: rejected ones among the rows read. duplicate: dropped as repetitions, or as older than another row of
        their key.
    moved: of the results, those that the target holds in one of the intervals, and that lie in none of them now.
    """

    read: int
    results: int
    without_time: int
    quarantined: int
    duplicate: int
    moved: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """The rows of one backfill.

    read: of the stream inputs; of all intervals that were computed together, as are `quarantined` and `duplicate`.
    published: of the result within the interval. outside: of the result in other intervals, as before.
    moved: of the result in other intervals, where the target does not hold them yet: it holds them in this one. Of
        intervals that were computed together, those of all of them.
    without_time: of the result in no interval, because their time is null; the target holds them already.
    quarantined: rejected ones among the rows read. duplicate: dropped as repetitions, or as older than another row of
        their key. late: always 0, because a batch has all rows in hand.
    replaced: rows that the target held in the interval before.
    resolved: rows of the quarantine, rejected before, whose records this backfill has published.
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
    moved: int = 0
    late: int = 0
    resolved: int = 0


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
    elsewhere = counts.outside + counts.moved + counts.without_time
    accounted = counts.published + elsewhere + counts.quarantined + counts.duplicate + counts.late
    if accounts_for_rows and counts.read != accounted:
        yield (
            f"{counts.read} rows were read; {counts.published} published + {counts.outside} outside of the interval + "
            f"{counts.moved} moved to another one + {counts.without_time} without a time + "
            f"{counts.quarantined} quarantined + {counts.duplicate} duplicate + {counts.late} late = {accounted}"
        )


def require_taken(
    moved: Mapping[Interval, int], planned: Sequence[Interval], *, stream: str, table: str, interval: Interval
) -> None:
    """Check that rows which lie in other intervals now are brought in there: this one loses them.

    Parameters
    ----------
    moved: how many rows that the target held in `interval` belong to another one now, and are not there yet.
    planned: the intervals whose backfills are asked for.

    Raises
    ------
    VerificationError: with the intervals whose backfills are not asked for; nothing was published.
    """
    if not (lost := _not_among(planned, moved)):
        return
    raise VerificationError(
        f"{sum(lost.values()):,} rows that {table} holds in {interval.spoken} lie in other intervals now, which do not "
        f"have them yet: {_named(lost)}. They would be lost. Nothing was published.",
        next_step=_together(interval, lost, stream=stream),
    )


def require_removed(
    arrived: Mapping[Interval, int], planned: Sequence[Interval], *, stream: str, table: str, interval: Interval
) -> None:
    """Check that rows which lay in other intervals before are removed there: they would be there twice.

    Parameters
    ----------
    arrived: how many rows that come into `interval` the target holds in another one, where they are given no more.
    planned: the intervals whose backfills are asked for.

    Raises
    ------
    VerificationError: with the intervals whose backfills are not asked for; nothing was published.
    """
    if not (twice := _not_among(planned, arrived)):
        return
    raise VerificationError(
        f"{sum(twice.values()):,} rows of {interval.spoken} are in {table} already, in other intervals, where they do "
        f"not lie any more: {_named(twice)}. They would be there twice. Nothing was published.",
        next_step=f"{_together(interval, twice, stream=stream)} {ALLOW_REPEATED}",
    )


def _not_among(planned: Sequence[Interval], rows: Mapping[Interval, int]) -> dict[Interval, int]:
    return {one: number for one, number in rows.items() if not any(_contains(other, one) for other in planned)}


def _named(intervals: Mapping[Interval, int]) -> str:
    named = "; ".join(one.spoken for one in sorted(intervals, key=lambda one: one.start)[:_MOST_NAMED])
    return f"{named} and {len(intervals) - _MOST_NAMED} more" if len(intervals) > _MOST_NAMED else named


def _together(interval: Interval, others: Mapping[Interval, int], *, stream: str) -> str:
    """The command that replaces all of them: rows that change places with each other need both at the same time."""
    whole = spanned((interval, *others))
    return (
        f"Backfill them together: `sluice backfill {stream} --from {whole.start:%Y-%m-%dT%H:%M} --to "
        f"{whole.end:%Y-%m-%dT%H:%M}`."
    )


def _contains(one: Interval, other: Interval) -> bool:
    return one.start <= other.start and other.end <= one.end


def results_of_run(ledger: Ledger, launched_by: str) -> dict[str, Any]:
    """The newest result of each stream that a run has replaced an interval of; `rows` are those of the balance."""
    return {one.key.stream: _result(one) for one in attempts_launched_by(ledger, launched_by) if one.rows}


def _result(attempt: BackfillAttemptObservation) -> dict[str, Any]:
    key = attempt.key
    return {
        "interval": f"{key.interval_start:%Y-%m-%d %H:%M} to {key.interval_end:%Y-%m-%d %H:%M} UTC",
        "attempt": key.attempt,
        "state": attempt.state.value,
        "snapshot": str(attempt.snapshot_id) if attempt.snapshot_id is not None else None,
        "rows": dict(attempt.rows),
    }


def sentences_of(result: Mapping[str, Any]) -> Iterator[str]:
    """A result of a job for a person: a sentence for its interval, and one for each stream that followed it."""
    stream, interval = of_publication_key(result["key"])
    rows, what = result["rows"], f"{stream}, {interval.spoken}"
    if result["state"] == BackfillState.UNCHANGED:
        yield f"{what}: unchanged, the table holds the {rows['published']:,} rows already{_resolved(rows)}."
    else:
        yield (
            f"{what}: {rows['published']:,} rows published in place of {rows['replaced']:,}, in snapshot "
            f"{result['snapshot_id']}; {rows['quarantined']:,} rejected, {rows['duplicate']:,} duplicate"
            f"{_elsewhere(rows)}{_resolved(rows)}."
        )
    for follower in result["followers"]:
        yield from sentences_of(follower)


def _elsewhere(rows: Mapping[str, int]) -> str:
    """What has left the interval."""
    return f", {rows['moved']:,} moved to other intervals, which are asked for too" if rows["moved"] else ""


def _resolved(rows: Mapping[str, int]) -> str:
    """What was open in the quarantine; an earlier version has not counted it."""
    count = rows.get("resolved", 0)
    return f"; {count:,} rows of the quarantine are resolved" if count else ""
