"""Runs the backfill of one interval: plans, computes, stages, audits and replaces it; again when others changed it.

After it come the backfills of the streams that follow, in the same Spark session.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from sluice.backfill.backfill_plan import BackfillObservation, plan_backfill
from sluice.backfill.intervals import Interval, declarations_digest, divide, followers_of
from sluice.backfill.observe_backfill import (
    PATIENCE_SECONDS,
    PlannedOn,
    backfill_of,
    backfilled_output,
    change_of,
    observe_backfill,
    replaces_rows,
    settled_plan,
)
from sluice.backfill.read_bounds import InputBound
from sluice.backfill.replayable_rows import PresentSource
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import IntervalChangedError, SluiceError, StarvedError, UnpublishableError, UsageError
from sluice.ledger.backfill_attempts import BackfillAttemptKey, BackfillState, begin_attempt, end_attempt, record_plan
from sluice.ledger.connection import Ledger
from sluice.ledger.locks import LockedInterval, PublicationLocks, interval_lock
from sluice.ledger.work_items import open_items
from sluice.ledger.work_values import WorkKind
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.work.choose_items import interval_of
from sluice_spark.backfill.interval_replacing import BackfillResult, IntervalReplacing
from sluice_spark.backfill.interval_rows import computed_interval, require_exact
from sluice_spark.run.job import reason_of

_log = logging.getLogger(__name__)

MOST_ATTEMPTS = 10
"""How often an interval is computed before the run gives up: each time, somebody else has changed it meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRun:
    """The backfill of one interval of one stream.

    open_session: called when the plan is not refused.
    allows_fewer: whether the interval, and those of the followers, may have fewer rows afterwards.
    allows_repeated: whether the targets may hold rows of them elsewhere already.
    agreed: the `declarations_digest` that a person agreed to; empty when no person was asked.
    patience_seconds: how long the run waits for a batch of the stream without which the interval cannot be planned.
    """

    settings: Settings
    ledger: Ledger
    declarations: Declarations
    stream: LoadedStream
    interval: Interval
    launched_by: str
    open_session: Callable[[], SparkSession]
    reached: Reached = unnoticed
    patience_seconds: float = PATIENCE_SECONDS
    allows_fewer: bool = False
    allows_repeated: bool = False
    agreed: str = ""

    def work(self) -> BackfillResult:
        """Backfill the interval; the caller has its lock, see `locked`.

        Raises
        ------
        UsageError: when the stream does not declare a backfill, or the interval is not whole.
        UnpublishableError: when the plan is refused, with every reason; when fewer rows would come than go, and that
            is not allowed.
        VerificationError: when the numbers of rows do not add up; nothing is published.
        StarvedError: when others changed the interval before every attempt.
        LedgerError: when the ledger cannot be reached.
        DeliveryError, LakehouseError: when the interval cannot be staged or published.
        """
        divide(self.interval, backfill_of(self.stream).interval)
        for number in range(MOST_ATTEMPTS):
            key, identity = self.begin()
            try:
                return self._attempt(key, identity, is_first=number == 0)
            except IntervalChangedError as changed:
                _log.info("%s It is computed again.", changed)
                end_attempt(self.ledger, key, BackfillState.CHANGED_MEANWHILE, reason=changed.message)
            except Exception as error:
                end_attempt(self.ledger, key, BackfillState.FAILED, reason=reason_of(error))
                raise
        raise StarvedError(
            f"The interval {self.interval.spoken} of {self.stream.name}, or an input of it, changed {MOST_ATTEMPTS} "
            "times while it was computed.",
            next_step="Find who writes into this interval of the table or of its inputs, or try again later.",
        )

    def _attempt(self, attempt: BackfillAttemptKey, identity: str, *, is_first: bool) -> BackfillResult:
        catalog = open_catalog(self.settings)

        def look() -> PlannedOn:
            seen, target = self.observe(catalog)
            return PlannedOn(plan=plan_backfill(seen), target=target)

        turn = self._turn if not is_first and replaces_rows(self.stream) else None
        with settled_plan(look, turn=turn, patience_seconds=self.patience_seconds) as planned:
            try:
                result = self._compute_and_replace(catalog, planned, attempt, identity)
            except IntervalChangedError:
                raise
            except Exception as error:
                self._require_unchanged(catalog, planned.plan.seen, error)
                raise
        end_attempt(self.ledger, attempt, result.state, rows=result.rows, snapshot_id=result.snapshot_id)
        self.reached(CrashPoint.RECORDED)
        return result

    def _require_unchanged(self, catalog: Catalog, seen: BackfillObservation, error: Exception) -> None:
        """Of sums that do not hold, or of a file that is gone, an input that has changed may be the reason."""
        try:
            changed = self.change_of(catalog, seen, seen.sources)
        except SluiceError as unknown:
            _log.warning("whether an input of %s has changed is unknown: %s", self.stream.name, unknown)
            return
        if changed is not None:
            _log.info("%s was computed of an input that has changed: %s", self.stream.name, reason_of(error))
            raise IntervalChangedError(f"An input changed while it was read: {changed}.") from error

    def observe(self, catalog: Catalog) -> tuple[BackfillObservation, Table]:
        """What the backfill depends on, and its target; see `observe_backfill`."""
        return observe_backfill(
            catalog, self.ledger, self.declarations, self.stream, self.interval, settings=self.settings
        )

    def observe_sources(self, catalog: Catalog) -> PresentSource:
        """Which topics and tables the stream reads now; see `PresentSource.observed`."""
        return PresentSource.observed(self.ledger, self.stream.declaration, self.settings, catalog)

    def change_of(self, catalog: Catalog, seen: BackfillObservation, sources: Iterable[InputBound]) -> str | None:
        """What has changed some inputs since a plan, in a phrase; see `change_of`."""
        return change_of(catalog, self.ledger, self.stream, seen, sources, settings=self.settings)

    def planned(self) -> tuple[Interval, ...]:
        """The intervals of the stream that are asked for now, also those that follow an interval of another stream."""
        items = open_items(self.ledger, WorkKind.INTERVAL)
        asked = [(item.subject, interval_of(item)) for item in items]
        followed = (
            (follower.stream.name, follower.interval)
            for name, interval in asked
            if name in self.declarations.streams
            for follower in followers_of(self.declarations, self.declarations.streams[name], interval)
        )
        return tuple(interval for name, interval in (*asked, *followed) if name == self.stream.name)

    def _turn(self) -> AbstractContextManager[object]:
        """The turn among those that merge into the target. A stream that merges every few seconds rewrites the files of
        the interval each time, and an interval that takes longer to compute would never be replaced."""
        return PublicationLocks(ledger=self.ledger).acquire(backfilled_output(self.stream).target)

    def _compute_and_replace(
        self, catalog: Catalog, planned: PlannedOn, attempt: BackfillAttemptKey, identity: str
    ) -> BackfillResult:
        seen, target = planned.plan.seen, planned.target
        replacing = self.replacing(attempt, identity, catalog=catalog, seen=seen, target=target)
        self.reached(CrashPoint.PLANNED)
        spark = self.open_session()
        with computed_interval(spark, self.stream, self.settings, seen, target) as (computed, held):
            return replacing.replace(spark, computed, held)

    def begin(self) -> tuple[BackfillAttemptKey, str]:
        """Begin an attempt in the ledger. Returns its key, and an identity that no other attempt has."""
        identity, interval = uuid4().hex, self.interval
        key = begin_attempt(
            self.ledger,
            self.stream.name,
            start=interval.start,
            end=interval.end,
            launched_by=self.launched_by,
            identity=identity,
        )
        return key, identity

    def replacing(
        self, attempt: BackfillAttemptKey, identity: str, *, catalog: Catalog, seen: BackfillObservation, target: Table
    ) -> IntervalReplacing:
        """Record on what an attempt was planned, and return what replaces the interval.

        Parameters
        ----------
        seen: of the plan, which may be one for this interval and others that touch it.

        Raises
        ------
        UnpublishableError: when it is not known what the stream has published.
        """
        if seen.published is None:  # refused before
            raise UnpublishableError(f"Nothing is known of what {self.stream.name} has published.")
        offsets = seen.published.end_offsets
        record_plan(self.ledger, attempt, planned_on=seen.head, upto=seen.upto, end_offsets=offsets)
        return IntervalReplacing(
            stream=self.stream,
            catalog=catalog,
            seen=replace(seen, interval=self.interval),
            target=target,
            whole=seen.interval,
            attempt=attempt,
            reached=self.reached,
            planned=self.planned,
            observe_sources=partial(self.observe_sources, catalog),
            change_of=partial(self.change_of, catalog, seen),
            allows_fewer=self.allows_fewer,
            allows_repeated=self.allows_repeated,
            identity=identity,
        )


def backfill_and_follow(run: BackfillRun) -> BackfillResult:
    """Backfill an interval, and then the intervals of the streams that follow it, each in a commit of its own.

    When one of them cannot be replaced now, nothing is. When one fails, those before it stay replaced, and another run
    finds their rows unchanged and continues.

    Raises
    ------
    LedgerError: as `locked` raises it.
    SluiceError: as `BackfillRun.work` raises it.
    """
    with locked(run):
        require_allowed(run)
        return follow(run, run.work())


def locked(*runs: BackfillRun) -> AbstractContextManager[None]:
    """Keep other runs from the intervals of some runs and of their followers: what a follower reads would change under
    it, and those of two neighbours overlap by their margins.

    Raises
    ------
    LedgerError: when another run works on one that overlaps, or the ledger cannot be reached.
    """
    wanted = [one for run in runs for one in (run, *_followers(run))]
    intervals = (
        LockedInterval(stream=one.stream.name, start=one.interval.start, end=one.interval.end) for one in wanted
    )
    return interval_lock(runs[0].ledger, *intervals)


def require_allowed(run: BackfillRun) -> None:
    """Refuse a backfill that is declared otherwise than a person agreed to, and one whose followers cannot be
    backfilled now, for a reason that no batch of the stream can change.

    Raises
    ------
    UsageError: when the stream, or one that follows, is declared otherwise now.
    UnpublishableError: with every reason.
    """
    if run.agreed and run.agreed != declarations_digest(run.declarations, run.stream, run.interval):
        raise UsageError(
            f"The plan is out of date: {run.stream.name}, or a stream that follows it, is declared otherwise than when "
            "this backfill was agreed to. Nothing was replaced.",
            next_step=f"Look at the plan again, on the page of {run.stream.name}, and ask for the backfill again.",
        )
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
    plan = plan_backfill(run.observe(open_catalog(run.settings))[0])
    if not plan.is_refused_for_now:
        plan.require_unrefused()
        require_exact(run.open_session(), run.stream, run.settings, plan.seen)
