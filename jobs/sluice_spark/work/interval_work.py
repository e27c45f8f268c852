"""Replaces the intervals of work items: those that touch as one batch, the others one by one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sluice.backfill.backfill_steps import ReachedStep, unnoticed_step
from sluice.backfill.observe_backfill import backfill_of, backfilled_output
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.table_declaration import is_partition_aligned
from sluice.errors import SluiceError
from sluice.ledger.connection import Ledger
from sluice.ledger.work_values import WorkItem
from sluice.settings import Settings
from sluice.work.choose_items import IntervalLane, interval_of
from sluice_spark.backfill.backfill_run import BackfillRun
from sluice_spark.backfill.followed_run import backfill_and_follow, follow, require_followers
from sluice_spark.backfill.interval_replacing import BackfillResult
from sluice_spark.backfill.joint_run import JointRun

_log = logging.getLogger(__name__)


def interval_lane(declarations: Declarations, name: str) -> IntervalLane:
    """How the intervals of a stream are replaced.

    Half of those that are processed at the same time are computed as one batch, so that one batch is computed while
    another is published; one when a file of the target may hold rows of several intervals.
    """
    try:
        stream = declarations.stream(name)
        backfill, target = backfill_of(stream), backfilled_output(stream).target
    except SluiceError:  # the item itself reports it
        return IntervalLane(at_once=1, together=1)
    declared = declarations.tables.get(target)
    is_apart = declared is not None and is_partition_aligned(declared.declaration, backfill.column, backfill.interval)
    return IntervalLane(at_once=backfill.at_once, together=(backfill.at_once + 1) // 2 if is_apart else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalWork:
    """The intervals of one stream that an application replaces in one thread.

    open_session: the session of this thread.
    reached: is called at each step.
    """

    settings: Settings
    ledger: Ledger
    declarations: Declarations
    open_session: Callable[[], SparkSession]
    reached: ReachedStep = unnoticed_step

    def replace_alone(self, item: WorkItem) -> BackfillResult:
        """Replace an interval, and those of the streams that follow.

        Raises
        ------
        SluiceError: as `backfill_and_follow` raises it.
        """
        return backfill_and_follow(self._run(item))

    def replace_together(self, items: Sequence[WorkItem]) -> dict[str, BackfillResult]:
        """Replace intervals that touch as one batch, each in a commit of its own.

        Returns
        -------
        The results of those that were replaced, by item; the others have to be replaced alone.
        """
        results: dict[str, BackfillResult] = {}
        runs = {item.item: self._run(item) for item in items}
        try:
            for run in runs.values():
                require_followers(run)
            replaced = JointRun(runs=tuple(runs.values())).work()
            for item, run in runs.items():
                if run.interval in replaced:
                    results[item] = follow(run, replaced[run.interval])
        except SluiceError as error:
            _log.info("the intervals that are left are replaced one by one: %s", error)
        return results

    def _run(self, item: WorkItem) -> BackfillRun:
        return BackfillRun(
            settings=self.settings,
            ledger=self.ledger,
            declarations=self.declarations,
            stream=self.declarations.stream(item.subject),
            interval=interval_of(item),
            launched_by=item.asked_by,
            open_session=self.open_session,
            reached=self.reached,
        )
