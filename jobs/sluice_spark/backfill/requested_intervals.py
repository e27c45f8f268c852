"""Replaces the intervals of many runs in one application: the one it was started for, then those that others ask for.

Each is a backfill of its own, with its plan, lock, attempt and commit, recorded under the run that asked for it.
Intervals that touch are computed as one batch, when no file of the target holds rows of two.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from sluice.backfill.joint_intervals import together
from sluice.ledger.backfill_requests import application_lock, is_requested, take_own_request
from sluice.ledger.records.backfill_request import IntervalRequest
from sluice.processes.deadline import Deadline
from sluice_spark.backfill.backfill_run import BackfillRun
from sluice_spark.backfill.followed_run import backfill_and_follow
from sluice_spark.backfill.interval_replacing import BackfillResult
from sluice_spark.backfill.wanted_intervals import Wanted, WantedIntervals

_log = logging.getLogger(__name__)

TAKES_FOR_SECONDS = 1800.0
"""How long after its start an application takes intervals of other runs. Declarations and code that were changed end
that earlier; settings, secrets and the memory of the process are renewed at the latest by then."""

LINGERS_SECONDS = 10.0
"""How long an application that has worked for others waits for the next request: Airflow starts the next run when one
has ended, which takes seconds."""

_GATHERS_SECONDS = 2.0
"""How long requests are gathered while other intervals are being replaced: runs whose intervals were replaced together
end together, and a run looks at its request every two seconds."""

_POLL_SECONDS = 0.2


def _unreported(result: BackfillResult) -> None:
    """Go on; the ledger has the result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedIntervals:
    """The intervals of one application.

    run: the backfill that it was started for. digest: of all declarations.
    at_once: how many intervals are processed at the same time. report: receives each result.
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
            return backfill_and_follow(run)
        wanted = WantedIntervals(run=run, digest=self.digest, at_once=self.at_once, report=self.report)
        with application_lock(run.ledger, own.stream) as takes_others, ThreadPoolExecutor(self.at_once) as pool:
            mine = Wanted(run=run, taken=take_own_request(run.ledger, own))
            working = _Working(
                wanted=wanted,
                pool=pool,
                mine=mine,
                is_taking=takes_others,
                takes_until=Deadline.after(self.takes_for_seconds),
                lingers_seconds=self.lingers_seconds,
            )
            return working.work()


_Ended = dict[Wanted, BackfillResult]


@dataclass(slots=True, kw_only=True)
class _Working:
    """An application at a moment.

    mine: what it was started for. is_taking: whether it takes requests of others: until there is none, the time is
        over, or an interval has failed. What made it fail may make the next one fail, and its run would lose a try by
        that.
    gathered: what was taken and has not begun. running: what is being replaced. result: of `mine`.
    """

    wanted: WantedIntervals
    pool: Executor
    mine: Wanted
    is_taking: bool
    takes_until: Deadline
    lingers_seconds: float
    gathered: list[Wanted] = field(default_factory=list)
    gathers_until: Deadline = field(default_factory=lambda: Deadline.after(0))
    lingers_until: Deadline = field(default_factory=lambda: Deadline.after(0))
    has_worked_for_others: bool = False
    running: dict[Future[_Ended], tuple[Wanted, ...]] = field(default_factory=dict)
    result: Future[BackfillResult] = field(default_factory=Future)

    def work(self) -> BackfillResult:
        """Replace intervals until there is none to replace. Returns the result of `mine`, or raises its error."""
        self.gathered.append(self.mine)
        self._take()
        self._begin()
        while self.running or (self.is_taking and not self.lingers_until.is_over()):
            for ended in self._await():
                self._settle(ended)
            self._take()
            self._begin()
        return self.result.result()

    def _take(self) -> None:
        self.is_taking = self.is_taking and not self.takes_until.is_over()
        while self.is_taking and len(self.gathered) + len(self._being_replaced()) < self.wanted.at_once:
            if (taken := self.wanted.take()) is None:
                return
            if not self.gathered:
                self.gathers_until = Deadline.after(_GATHERS_SECONDS)
            self.gathered.append(taken)

    def _begin(self) -> None:
        """Begin what was gathered, unless more may come while others run; what overlaps a running interval waits."""
        most = self.wanted.together_at_most
        if self.running and len(self.gathered) < most and not self.gathers_until.is_over():
            return
        for group in together(self.gathered, interval_of=lambda one: one.interval, most=most):
            if not _overlap(group, self._being_replaced()):
                self._submit(group)
                self.gathered = [one for one in self.gathered if one not in group]

    def _submit(self, group: Sequence[Wanted]) -> None:
        if len(group) > 1:
            future = self.pool.submit(self.wanted.replace_together, group)
        else:
            future = self.pool.submit(self.wanted.replace_alone, group[0])
        self.running[future] = tuple(group)
        if any(one is not self.mine for one in group):
            self.has_worked_for_others = True

    def _await(self) -> set[Future[_Ended]]:
        """Wait a moment. Returns what has ended."""
        if not self.running:
            time.sleep(_POLL_SECONDS)  # until the next look for requests
            return set()
        if self.has_worked_for_others:
            self.lingers_until = Deadline.after(self.lingers_seconds)
        return wait(self.running, timeout=_POLL_SECONDS, return_when=FIRST_COMPLETED).done

    def _settle(self, ended: Future[_Ended]) -> None:
        """Note the end of some intervals. Those that could not be replaced together begin alone."""
        group, error = self.running.pop(ended), ended.exception()
        replaced = ended.result() if error is None else {}
        if self.mine in replaced:
            self.result.set_result(replaced[self.mine])
        if error is None:
            for one in group:
                if one not in replaced:
                    self._submit([one])
            return
        _log.warning("no further interval is taken, because one has failed: %s", error)
        self.is_taking, self.gathered = False, []  # what was taken waits until this application has ended
        if self.mine in group:
            self.result.set_exception(error)

    def _being_replaced(self) -> list[Wanted]:
        return [one for group in self.running.values() for one in group]


def _overlap(group: Sequence[Wanted], running: Sequence[Wanted]) -> bool:
    return any(one.interval.overlaps(other.interval) for one in group for other in running)
