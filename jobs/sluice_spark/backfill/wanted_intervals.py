"""The intervals that runs ask an application for: taken, replaced alone or together, and recorded under their runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC

from sluice.backfill.intervals import Interval
from sluice.backfill.observe_backfill import backfill_of, backfilled_output
from sluice.declarations.apart_partitions import are_apart
from sluice.errors import SluiceError
from sluice.ledger.backfill_requests import end_request, take_request
from sluice.ledger.connection import open_ledger
from sluice.ledger.records.backfill_request import RequestState, TakenRequest
from sluice_spark.backfill.backfill_run import BackfillRun
from sluice_spark.backfill.followed_run import backfill_and_follow, follow, require_followers
from sluice_spark.backfill.interval_replacing import BackfillResult
from sluice_spark.backfill.joint_run import JointRun
from sluice_spark.run.job import last_lines

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wanted:
    """An interval that a run asks for. taken: its request; unset when the run asks no more."""

    run: BackfillRun
    taken: TakenRequest | None

    @property
    def interval(self) -> Interval:
        """The interval."""
        return self.run.interval


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedIntervals:
    """What an application can do for the runs of one stream.

    run: the backfill that it was started for. digest: of all declarations.
    at_once: how many intervals are processed at the same time. report: receives each result.
    """

    run: BackfillRun
    digest: str
    at_once: int
    report: Callable[[BackfillResult], object]

    @property
    def together_at_most(self) -> int:
        """How many intervals are computed as one batch: half of those that are processed at the same time, so that one
        batch is computed while another is published; and one when a file of the target may hold rows of several."""
        backfill, target = backfill_of(self.run.stream), backfilled_output(self.run.stream).target
        declared = self.run.declarations.tables.get(target)
        is_apart = declared is not None and are_apart(declared.declaration, backfill.column, backfill.interval)
        return (self.at_once + 1) // 2 if is_apart else 1

    def take(self) -> Wanted | None:
        """Take the oldest request of another run; none when there is none for this application."""
        taken = take_request(self.run.ledger, self.run.stream.name, digest=self.digest)
        if taken is None:
            return None
        start, end = (time.astimezone(UTC) for time in (taken.request.interval_start, taken.request.interval_end))
        interval, launched_by = Interval(start=start, end=end), taken.request.launched_by
        return Wanted(run=replace(self.run, interval=interval, launched_by=launched_by), taken=taken)

    def replace_alone(self, wanted: Wanted) -> dict[Wanted, BackfillResult]:
        """Replace an interval as if its run had done it, and record how its request ended. An error that is none of
        ours leaves the request open: the run that asked starts an application, and reports its end.

        Raises
        ------
        SluiceError: as `backfill_and_follow` raises it.
        """
        with open_ledger(self.run.settings.ledger_url.get_secret_value()) as ledger:
            run = replace(wanted.run, ledger=ledger)
            try:
                result = backfill_and_follow(run)
            except SluiceError as error:
                if wanted.taken is not None:
                    end_request(ledger, wanted.taken.number, RequestState.FAILED, failure=last_lines(error))
                raise
        self._record(wanted, result)
        return {wanted: result}

    def replace_together(self, group: Sequence[Wanted]) -> dict[Wanted, BackfillResult]:
        """Replace intervals that touch.

        Returns
        -------
        The results of those that were replaced; the others have to be replaced alone.
        """
        results: dict[Wanted, BackfillResult] = {}
        with open_ledger(self.run.settings.ledger_url.get_secret_value()) as ledger:
            runs = {wanted: replace(wanted.run, ledger=ledger) for wanted in group}
            try:
                for run in runs.values():
                    require_followers(run)
                replaced = JointRun(runs=tuple(runs.values())).work()
                for wanted, run in runs.items():
                    if run.interval in replaced:
                        results[wanted] = follow(run, replaced[run.interval])
                        self._record(wanted, results[wanted])
            except SluiceError as error:
                _log.info("the streams that follow are backfilled one by one: %s", error)
        return results

    def _record(self, wanted: Wanted, result: BackfillResult) -> None:
        if wanted.taken is not None:
            end_request(self.run.ledger, wanted.taken.number, RequestState.DONE)
        self.report(result)
