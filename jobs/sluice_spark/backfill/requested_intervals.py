"""Replaces the intervals of many runs in one application: the one it was started for, then those that others ask for.

Each is a backfill of its own, with its plan, lock, attempt and commit, recorded under the run that asked for it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from datetime import UTC

from sluice.backfill.intervals import Interval
from sluice.errors import SluiceError
from sluice.ledger.backfill_requests import (
    application_lock,
    end_request,
    is_requested,
    take_own_request,
    take_request,
)
from sluice.ledger.connection import open_ledger
from sluice.ledger.records.backfill_request import IntervalRequest, RequestState, TakenRequest
from sluice.processes.deadline import Deadline
from sluice_spark.backfill.backfill_run import BackfillResult, BackfillRun
from sluice_spark.backfill.followed_run import backfill_and_follow
from sluice_spark.run.job import last_lines

_log = logging.getLogger(__name__)

TAKES_FOR_SECONDS = 1800.0
"""How long after its start an application takes intervals of other runs. Declarations and code that were changed end
that earlier; settings, secrets and the memory of the process are renewed at the latest by then."""

LINGERS_SECONDS = 10.0
"""How long an application that has worked for others waits for the next request: Airflow starts the next run when one
has ended, which takes seconds."""

_POLL_SECONDS = 0.2


def _unreported(result: BackfillResult) -> None:
    """Go on; the ledger has the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedIntervals:
    """The intervals of one application.

    run: the backfill that it was started for. digest: of all declarations.
    at_once: how many intervals are processed at the same time; each has a session of its own.
    report: receives each result.
    """

    run: BackfillRun
    digest: str
    at_once: int
    report: Callable[[BackfillResult], object] = _unreported
    takes_for_seconds: float = TAKES_FOR_SECONDS
    lingers_seconds: float = LINGERS_SECONDS

    def work(self) -> BackfillResult:
        """Replace the interval of the run, and those of others when the run is one of many.

        Returns
        -------
        The result of the run itself.

        Raises
        ------
        SluiceError: as `backfill_and_follow` raises it for the run itself. A failure of another run is recorded in its
            request.
        """
        run = self.run
        own = IntervalRequest(
            stream=run.stream.name,
            interval_start=run.interval.start,
            interval_end=run.interval.end,
            launched_by=run.launched_by,
            digest=self.digest,
        )
        if not is_requested(run.ledger, own):
            return self._replace(run, None)
        with application_lock(run.ledger, own.stream) as takes_others, ThreadPoolExecutor(self.at_once) as pool:
            first = pool.submit(self._replace, run, take_own_request(run.ledger, own))
            if takes_others:
                self._take_others(pool, first)
            return first.result()

    def _take_others(self, pool: ThreadPoolExecutor, first: Future[BackfillResult]) -> None:
        """Take requests until there is none, the time is over, or an interval has failed: what made it fail may make
        the next one fail, and its run would lose a try by that."""
        takes_until, lingers_until = Deadline.after(self.takes_for_seconds), Deadline.after(0)
        running, is_taking = {first}, True
        while running or (is_taking and not lingers_until.is_over()):
            ended, running = _wait(running)
            is_taking = is_taking and not takes_until.is_over() and not any(_has_failed(one) for one in ended)
            while is_taking and len(running) < self.at_once:
                taken = take_request(self.run.ledger, self.run.stream.name, digest=self.digest)
                if taken is None:
                    break
                running.add(pool.submit(self._replace_for_other, taken))
            if running - {first}:
                lingers_until = Deadline.after(self.lingers_seconds)

    def _replace_for_other(self, taken: TakenRequest) -> BackfillResult:
        """Replace the interval of another run as if that run had done it, with connections of its own."""
        start, end = (time.astimezone(UTC) for time in (taken.request.interval_start, taken.request.interval_end))
        with open_ledger(self.run.settings.ledger_url.get_secret_value()) as ledger:
            run = replace(
                self.run,
                ledger=ledger,
                interval=Interval(start=start, end=end),
                launched_by=taken.request.launched_by,
            )
            return self._replace(run, taken)

    def _replace(self, run: BackfillRun, taken: TakenRequest | None) -> BackfillResult:
        """Replace an interval and record how its request ended. An error that is none of ours leaves the request open:
        the run that asked starts an application, and reports its end."""
        try:
            result = backfill_and_follow(run)
        except SluiceError as error:
            if taken is not None:
                end_request(run.ledger, taken.number, RequestState.FAILED, failure=last_lines(error))
            raise
        if taken is not None:
            end_request(run.ledger, taken.number, RequestState.DONE)
        self.report(result)
        return result


def _wait(running: set[Future[BackfillResult]]) -> tuple[set[Future[BackfillResult]], set[Future[BackfillResult]]]:
    """Wait a moment. Returns the intervals that have ended, and those that run on."""
    if not running:
        time.sleep(_POLL_SECONDS)  # until the next look for requests
        return set(), set()
    ended, still = wait(running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED)
    return ended, still


def _has_failed(ended: Future[BackfillResult]) -> bool:
    if (error := ended.exception()) is not None:
        _log.warning("no further interval is taken, because one has failed: %s", error)
    return error is not None
