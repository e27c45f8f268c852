"""What an application does for a work item of each kind, and what it returns for who has asked.

Intervals that touch are replaced as one batch, the others one by one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache, partial
from typing import Any

from pyspark.sql import SparkSession

from sluice.backfill.interval_gaps import require_no_gaps
from sluice.backfill.intervals import Interval, followers_of, parse_time
from sluice.backfill.observe_backfill import backfill_of, backfilled_output
from sluice.backfill.replayable_rows import Selection
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.run_declaration import StateDeclaration
from sluice.declarations.table_declaration import is_partition_aligned
from sluice.errors import SluiceError, UnhealthyError, WithdrawnError
from sluice.launching.job_output import json_value
from sluice.ledger.connection import Ledger
from sluice.ledger.recorded_checks import UNSUCCESSFUL_VERDICTS
from sluice.ledger.work_values import WorkItem
from sluice.maintenance.maintenance_records import run_sentences
from sluice.maintenance.run_maintenance import require_no_problems
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.held_decisions import held_of_table
from sluice.quality.check_results import quality_sentence
from sluice.settings import Settings
from sluice.work.choose_items import IntervalLane, interval_of
from sluice.work.requests import (
    YES,
    CheckTable,
    FindGaps,
    Increment,
    MaintainTable,
    RefreshTable,
    RehearseCopy,
    ReplaceInterval,
    ReplayRecords,
    WorkRequest,
    request_of,
)
from sluice_spark.backfill.backfill_run import BackfillRun, backfill_and_follow, follow, locked, require_allowed
from sluice_spark.backfill.gap_search import GapSearch
from sluice_spark.backfill.interval_replacing import BackfillResult
from sluice_spark.backfill.joint_run import JointRun
from sluice_spark.backfill.replay_run import ReplayRun
from sluice_spark.maintenance import maintain_table
from sluice_spark.quality import check_table
from sluice_spark.refresh.refresh_run import RefreshRun
from sluice_spark.run.state_replay import CopyRehearsal
from sluice_spark.run.stop_request import StopRequest
from sluice_spark.run.supervised_run import run_increment
from sluice_spark.session.item_sessions import ItemSessions

_log = logging.getLogger(__name__)

ReachedOfItem = Callable[[CrashPoint, WorkItem], object]
"""Called with each crash point of an item, also with those of a backfill or a refresh. It may raise or kill the
process; its exceptions are not caught."""

_AS_TABLES = StateDeclaration()
"""The state settings of a session that only works on tables."""


def interval_lane(declarations: Declarations, name: str) -> IntervalLane:
    """How the intervals of a stream are replaced.

    Where partitions keep them apart, half of those that are processed at the same time are computed as one batch, so
    that one batch is computed while another is published. Otherwise a file of the target may hold rows of several
    intervals: of two at the same time one would be computed twice, because the other one rewrites its files.
    """
    one_by_one = IntervalLane(at_once=1, together=1)
    try:
        stream = declarations.stream(name)
        backfill, target = backfill_of(stream), backfilled_output(stream).target
    except SluiceError:  # the item itself reports it
        return one_by_one
    declared = declarations.tables.get(target)
    if declared is None or not is_partition_aligned(declared.declaration, backfill.column, backfill.interval):
        return one_by_one
    return IntervalLane(at_once=backfill.at_once, together=(backfill.at_once + 1) // 2)


def intervals_that_follow(declarations: Declarations, item: WorkItem) -> dict[str, Interval]:
    """The intervals of other streams that are replaced right after that of an item, by stream."""
    try:
        found = followers_of(declarations, declarations.stream(item.subject), interval_of(item))
    except SluiceError:  # the item itself reports it
        return {}
    return {one.stream.name: one.interval for one in found}


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalWork:
    """The intervals of one stream that an application replaces in one thread.

    open_session: the session of this thread. reached: is called at each step.
    stops: what asks one of several items to stop, by item.
    """

    settings: Settings
    ledger: Ledger
    declarations: Declarations
    open_session: Callable[[], SparkSession]
    reached: Reached = unnoticed
    stops: Mapping[str, StopRequest] = field(default_factory=dict)

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
            with locked(*runs.values()):
                for run in runs.values():
                    require_allowed(run)
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
            reached=partial(self._has_reached, item),
            allows_fewer=item.payload["allow_fewer"] == YES,
            allows_repeated=item.payload["allow_repeated"] == YES,
            agreed=item.payload["agreed"],
        )

    def _has_reached(self, item: WorkItem, point: CrashPoint) -> None:
        self.reached(point)
        _continue_unless_stopped(item, self.stops.get(item.item))


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemWork:
    """One item in one thread of an application.

    stop: what asks the item to stop: it was withdrawn, or the application ends.
    reached: is called at each step.
    """

    settings: Settings
    declarations: Declarations
    sessions: ItemSessions
    ledger: Ledger
    item: WorkItem
    stop: StopRequest
    reached: ReachedOfItem = unnoticed

    def do(self) -> Any:
        """Do what the item asks for.

        Returns
        -------
        Its result as JSON; none when it has none.

        Raises
        ------
        SluiceError: when it cannot be done, with the reason.
        Exception: whatever else made it fail.
        """
        request = request_of(self.item)
        return json_value(_WORK[type(request)](self, request))

    @contextmanager
    def opened_when_needed(
        self, state: StateDeclaration, *, deletes_files: bool = True
    ) -> Iterator[Callable[[], SparkSession]]:
        """A function that opens the session of this item with its first call; the session is closed after the block.

        Parameters
        ----------
        deletes_files: whether Iceberg may delete files of its tables, as for `open_session`.
        """
        with ExitStack() as opened:

            @cache
            def open_item_session() -> SparkSession:
                session = self.sessions.session(self.settings, state=state, deletes_files=deletes_files)
                return opened.enter_context(session)

            yield open_item_session

    def intervals(
        self, open_session: Callable[[], SparkSession], *, stops: Mapping[str, StopRequest] | None = None
    ) -> IntervalWork:
        """The work on intervals in a session. stops: of all items that are done together."""
        return IntervalWork(
            settings=self.settings,
            ledger=self.ledger,
            declarations=self.declarations,
            open_session=open_session,
            reached=self._has_reached,
            stops=stops or {},
        )

    def _increment(self, request: Increment) -> None:
        run_increment(
            self.settings,
            self.ledger,
            self.declarations.stream(request.stream),
            launched_by=self.item.asked_by,
            sessions=self.sessions,
            ui_key=self.sessions.ui_key,
            stop=self.stop,
        )

    def _interval(self, request: ReplaceInterval) -> Any:
        with self.opened_when_needed(self._state_of(request.stream)) as open_session:
            return self.intervals(open_session).replace_alone(self.item)

    def _refresh(self, request: RefreshTable) -> Any:
        with self.opened_when_needed(self._state_of(request.stream), deletes_files=False) as open_session:
            return RefreshRun(
                settings=self.settings,
                ledger=self.ledger,
                declarations=self.declarations,
                stream=self.declarations.stream(request.stream),
                asked_by=self.item.asked_by,
                keeps=timedelta(days=float(request.keep_days)),
                allows_fewer=request.allow_fewer == YES,
                open_session=open_session,
                reached=self._has_reached,
            ).work()

    def _gaps(self, request: FindGaps) -> Any:
        with self.opened_when_needed(self._state_of(request.stream)) as open_session:
            report = GapSearch(
                settings=self.settings,
                ledger=self.ledger,
                declarations=self.declarations,
                stream=self.declarations.stream(request.stream),
                start=parse_time(request.start) if request.start else None,
                end=parse_time(request.end) if request.end else None,
                open_session=open_session,
            ).work()
        if request.fails == "yes":
            require_no_gaps(report)
        return report

    def _replay(self, request: ReplayRecords) -> Any:
        with self.opened_when_needed(self._state_of(request.stream)) as open_session:
            return ReplayRun(
                settings=self.settings,
                ledger=self.ledger,
                stream=self.declarations.stream(request.stream),
                selection=Selection(
                    kinds=frozenset(json.loads(request.kinds)),
                    positions=frozenset(json.loads(request.positions)),
                    batches=frozenset(json.loads(request.batches)),
                    until=parse_time(request.until) if request.until else None,
                ),
                planned=request.planned or None,
                asked_by=self.item.asked_by,
                open_session=open_session,
                only_tries=request.only_tries == YES,
                allows_repeated=request.allows_repeated == YES,
                reached=self._has_reached,
            ).work()

    def _rehearsal(self, request: RehearseCopy) -> Any:
        with self.opened_when_needed(self._state_of(request.stream), deletes_files=False) as open_session:
            found = CopyRehearsal(
                settings=self.settings,
                ledger=self.ledger,
                stream=self.declarations.stream(request.stream),
                open_session=open_session,
                stop=self.stop,
                require=self._continue_unless_stopped,
            ).work()
        if found.problem:
            raise UnhealthyError(
                f"The newest copy of the state of {request.stream} does not do: {found.problem}.",
                next_step=f"Make a new one, `sluice stream restart {request.stream}`, and rehearse it.",
            )
        return found

    def _maintenance(self, request: MaintainTable) -> Any:
        with self.opened_when_needed(_AS_TABLES) as open_session:
            run = maintain_table(
                request.table,
                self.settings,
                self.ledger,
                declarations=self.declarations,
                launched_by=self.item.asked_by,
                open_session=open_session,
                before_step=self._continue_unless_stopped,
            )
        for sentence in run_sentences(run):
            _log.info("%s", sentence)
        require_no_problems(self.ledger, run)
        return run

    def _check(self, request: CheckTable) -> Any:
        with self.opened_when_needed(_AS_TABLES) as open_session:
            check = check_table(
                request.table,
                self.settings,
                self.ledger,
                declarations=self.declarations,
                launched_by=self.item.asked_by,
                open_session=open_session,
            )
        sentence = quality_sentence(check)
        _log.info("%s", sentence)
        if check.verdict in UNSUCCESSFUL_VERDICTS:
            step = f"See each rule: the link Quality report of the task, or `sluice quality report {check.table}`."
            raise UnhealthyError(sentence, next_step=step)
        if waiting := held_of_table(self.ledger, self.declarations, check.table):
            held = " ".join(f"{one.key.stream}: {one.sentence}" for one in waiting)
            step = "Release or reject it: the link Quality report of the task, or `sluice batch list STREAM`."
            raise UnhealthyError(f"{sentence} But not all of its rows are there. {held}", next_step=step)
        return check

    def _state_of(self, stream: str) -> StateDeclaration:
        return self.declarations.stream(stream).declaration.state

    def _has_reached(self, point: CrashPoint) -> None:
        self.reached(point, self.item)
        self._continue_unless_stopped()

    def _continue_unless_stopped(self) -> None:
        """Called between the steps of an item.

        Raises
        ------
        WithdrawnError: when it is to stop. What is visible stays, and is found unchanged when it is asked for again.
        """
        _continue_unless_stopped(self.item, self.stop)


def _continue_unless_stopped(item: WorkItem, stop: StopRequest | None) -> None:
    if stop is not None and stop.reason is not None:
        raise WithdrawnError(f"{item.kind} of {item.subject} was {stop.reason}.")


_WORK: dict[type[WorkRequest], Callable[[ItemWork, Any], Any]] = {
    Increment: ItemWork._increment,
    ReplaceInterval: ItemWork._interval,
    RefreshTable: ItemWork._refresh,
    FindGaps: ItemWork._gaps,
    MaintainTable: ItemWork._maintenance,
    CheckTable: ItemWork._check,
    ReplayRecords: ItemWork._replay,
    RehearseCopy: ItemWork._rehearsal,
}
