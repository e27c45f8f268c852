"""Runs the backfill of an interval, and after it those of the streams that follow, in one Spark session."""

from __future__ import annotations

from dataclasses import replace

from sluice.backfill.backfill_plan import plan_backfill
from sluice.backfill.followers import followers_of
from sluice.backfill.settled_plan import require_unrefused
from sluice.tables.catalog import open_catalog
from sluice_spark.backfill.backfill_run import BackfillRun
from sluice_spark.backfill.interval_replacing import BackfillResult


def backfill_and_follow(run: BackfillRun) -> BackfillResult:
    """Backfill an interval, and then the intervals of the streams that follow it, each in a commit of its own.

    When one of them cannot be replaced now, nothing is. When one fails, those before it stay replaced, and another run
    finds their rows unchanged and continues.

    Raises
    ------
    SluiceError: as `BackfillRun.work` raises it.
    """
    require_followers(run)
    return follow(run, run.work())


def require_followers(run: BackfillRun) -> None:
    """Refuse a backfill whose followers cannot be backfilled now, for a reason that no batch of the stream can change.

    Raises
    ------
    UnpublishableError: with every reason.
    """
    for follower in _followers(run):
        _require_possible(follower)


def follow(run: BackfillRun, result: BackfillResult) -> BackfillResult:
    """Backfill the intervals of the streams that follow, each in a commit of its own.

    Returns
    -------
    The result of the run with theirs.

    Raises
    ------
    SluiceError: as `BackfillRun.work` raises it.
    """
    return replace(result, followers=tuple(follower.work() for follower in _followers(run)))


def _followers(run: BackfillRun) -> list[BackfillRun]:
    return [
        replace(run, stream=follower.stream, interval=follower.interval)
        for follower in followers_of(run.declarations, run.stream, run.interval)
    ]


def _require_possible(run: BackfillRun) -> None:
    """Refuse what no batch of the stream can change.

    Raises
    ------
    UnpublishableError: with every reason.
    """
    seen, _ = run.observe(open_catalog(run.settings))
    plan = plan_backfill(seen)
    if not plan.is_refused_for_now:
        require_unrefused(plan)
