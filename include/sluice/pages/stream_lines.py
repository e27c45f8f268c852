"""The lines of the streams page: every stream as it is now, from a few queries. Nothing is changed.

They are judged as the command line judges them, but for two things: a driver that was heard a moment ago is not looked
at, and a cluster is not asked, because a page of 200 streams would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NoReturn

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.stream_declaration import ScheduleDeclaration
from sluice.errors import LaunchError
from sluice.launching.launcher_port import Launcher, LaunchRequest
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.run_values import DriverExit
from sluice.ledger.runs import newest_runs
from sluice.ledger.stream_figures import StreamFigures, lag_history, read_figures
from sluice.pages.page_figures import ShownTone
from sluice.processes.host_processes import observe_process
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.supervision.orphaned_runs import find_orphaned_runs
from sluice.supervision.stream_status import JudgedStream, judge_streams
from sluice.supervision.supervision_values import SETTLED_BY_START, StreamState, StreamVerdict

HISTORY_HOURS, HISTORY_POINTS = 6, 24

_HEARD_A_MOMENT_AGO = timedelta(seconds=5)
"""A driver that was heard within this time needs no look at its process."""

_BAD = frozenset(
    {
        StreamState.GIVEN_UP,
        StreamState.FAILED,
        StreamState.CRASH_LOOPING,
        StreamState.STALLED,
        StreamState.BROKEN,
        StreamState.DRIVER_GONE,
        StreamState.ALL_REJECTED,
        StreamState.HELD,
        StreamState.MANY_REJECTED,
    }
)
_GOOD = frozenset({StreamState.RUNNING, StreamState.IDLE})
_BETWEEN_RUNS = frozenset({StreamState.FINISHED, StreamState.NEVER_STARTED})


def tone_of(verdict: StreamVerdict) -> ShownTone:
    """How the state of a stream is marked."""
    if not verdict.is_healthy:
        return ShownTone.BAD if verdict.state in _BAD else ShownTone.ODD
    return ShownTone.GOOD if verdict.state in _GOOD else ShownTone.CALM


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLine:
    """One stream of the page.

    since: since when it is unhealthy, as the reconciler saw it; unset for a healthy one.
    next_step: what to do about its newest failure, or its rejected rows; empty without one.
    waits_for: what starts the next run of an incremental stream, in words; empty for a continuous one.
    lag_rows: rows or files that are known to be unread; unset when unknown. behind: how old the oldest is at least.
    lag_history: of the last hours, oldest first.
    published_at, watermark, batch, batch_duration: of the newest batch; unset before the first.
    """

    stream: str
    state: StreamState
    tone: ShownTone
    is_healthy: bool
    explanation: str
    mode: str
    now: datetime
    owner: str = ""
    tags: tuple[str, ...] = ()
    description: str = ""
    waits_for: str = ""
    next_step: str = ""
    since: datetime | None = None
    lag_rows: int | None = None
    behind: timedelta | None = None
    lag_history: tuple[int | None, ...] = ()
    read_per_second: float = 0.0
    published_per_second: float = 0.0
    batch: int | None = None
    batch_duration: timedelta | None = None
    published_at: datetime | None = None
    watermark: datetime | None = None
    failed_runs: int = 0
    run_id: str | None = None
    has_live_run: bool = False
    is_declared: bool = True

    @property
    def likely_verb(self) -> str:
        """What a person most likely wants to do about it. An increment that failed is repaired by clearing its task."""
        if self.state in SETTLED_BY_START:
            return ""
        if not self.has_live_run:
            return "start" if self.mode == "continuous" or self.state is StreamState.STOPPED else ""
        return "stop" if self.is_healthy else "restart"

    @property
    def is_waiting(self) -> bool:
        """Whether it runs again by itself, at its time or with new rows."""
        return self.is_healthy and bool(self.waits_for) and self.state in _BETWEEN_RUNS


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStreams:
    """All lines, and the time of the database's clock at which they were read."""

    observed_at: datetime
    lines: tuple[StreamLine, ...]

    @property
    def unhealthy(self) -> tuple[StreamLine, ...]:
        """The lines of unhealthy streams."""
        return tuple(line for line in self.lines if not line.is_healthy)


def observe_streams(
    ledger: Ledger,
    declarations: Declarations,
    *,
    launcher: Launcher,
    may_read: Callable[[Iterable[str]], frozenset[str]],
    with_figures: bool = True,
    with_history: bool = True,
    among: Collection[str] | None = None,
) -> ObservedStreams:
    """Observe the declared streams and the runs that fit no declaration.

    Parameters
    ----------
    launcher: observes whether a driver of this host lives.
    may_read: of some streams those that the reader may see; nothing is read of the others.
    with_figures: whether to read lag, rates and failed runs. with_history: whether to read the lag of the last hours.
    among: the streams to observe; unset: all.
    """
    newest = [run for run in newest_runs(ledger) if among is None or run.stream in among]
    orphans = {orphan.stream: orphan for orphan in find_orphaned_runs(declarations, newest)}
    declared = {name: one for name, one in declarations.streams.items() if among is None or name in among}
    readable = may_read({*declared, *orphans})
    judged = judge_streams(
        ledger,
        launcher,
        [one for name, one in declared.items() if name in readable],
        orphans=[orphan for name, orphan in orphans.items() if name in readable],
        heard_within=_HEARD_A_MOMENT_AGO,
    )
    shown = sorted((one for one in judged if one.is_shown), key=lambda one: one.stream)
    names = [one.stream for one in shown]
    figures = read_figures(ledger, names) if with_figures else {}
    within = timedelta(hours=HISTORY_HOURS)
    lags = lag_history(ledger, names, within=within, points=HISTORY_POINTS) if with_history else {}
    observed_at = max((one.seen.observed_at for one in shown), default=None)
    return ObservedStreams(
        observed_at=database_time(ledger) if observed_at is None else observed_at,
        lines=tuple(_line(one, figures.get(one.stream), lags.get(one.stream, ())) for one in shown),
    )


def _line(judged: JudgedStream, known: StreamFigures | None, lags: tuple[int | None, ...]) -> StreamLine:
    seen, verdict = judged.seen, judged.verdict
    figures = known or StreamFigures(observed_at=seen.observed_at)
    run, batch = seen.newest_run, seen.newest_batch
    declaration = None if judged.declared is None else judged.declared.declaration
    return StreamLine(
        stream=judged.stream,
        state=verdict.state,
        tone=tone_of(verdict),
        is_healthy=verdict.is_healthy,
        explanation=verdict.explanation,
        mode=judged.mode,
        now=seen.observed_at,
        owner="" if declaration is None else declaration.owner,
        tags=() if declaration is None else declaration.tags,
        description="" if declaration is None else declaration.description.strip(),
        waits_for="" if declaration is None or declaration.schedule is None else _schedule_words(declaration.schedule),
        next_step=verdict.next_step,
        since=_since(judged),
        lag_rows=seen.samples[0].known_undone if seen.samples else None,
        behind=figures.behind,
        lag_history=lags,
        read_per_second=figures.read_per_second,
        published_per_second=figures.published_per_second,
        batch=None if batch is None else batch.key.batch,
        batch_duration=None if batch is None else timedelta(milliseconds=batch.duration_ms),
        published_at=None if batch is None else batch.recorded_at,
        watermark=None if batch is None else batch.watermark,
        failed_runs=figures.failed_runs,
        run_id=None if run is None else run.run_id,
        has_live_run=run is not None and run.is_live,
        is_declared=declaration is not None,
    )


def _schedule_words(schedule: ScheduleDeclaration) -> str:
    """What starts a run: a time, new rows in all of some tables, or either."""
    tables = f"new rows in {' and '.join(schedule.tables)}" if schedule.tables else ""
    return " or ".join(words for words in (f"its time ({schedule.cron})" if schedule.cron else "", tables) if words)


def _since(judged: JudgedStream) -> datetime | None:
    run, trouble = judged.seen.newest_run, judged.seen.trouble
    if judged.verdict.is_healthy:
        return None
    if trouble is not None:
        return trouble.since
    return None if run is None else run.ended_at


class ObservingLauncher:
    """The launcher of a page: it sees drivers of this host and no more. A web server that started drivers would have
    them on its own host, with its own memory."""

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """Whether a driver of this host lives; one of another host or of a cluster is UNKNOWN."""
        return ProcessState.UNKNOWN if process.application is not None else observe_process(process)

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """None: the ledger has the exits that are known."""
        del process
        return None

    def launch(self, request: LaunchRequest) -> NoReturn:
        """Refuse.

        Raises
        ------
        LaunchError: always.
        """
        raise LaunchError(f"A page starts no driver; run {request.run_id} is started by the stream's task.")

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> NoReturn:
        """Refuse.

        Raises
        ------
        LaunchError: always.
        """
        raise LaunchError(f"A page ends no driver, and waits for none: process {process.pid}, {grace_seconds:.0f} s.")
