"""Sends the flights and watches the streams until they have read everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from threading import Event
from typing import Any

from rich.markup import escape

from sluice.demo.demo_progress import LiveTable, StepLog
from sluice.demo.local_platform import LocalPlatform
from sluice.demo.replay_plan import PlannedRecord
from sluice.demo.replayer import ReplayProgress, replay
from sluice.demo.stream_watch import STREAMS, StreamWatch, are_under_way, has_passed, have_read_everything
from sluice.errors import DemonstrationError
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import recent_runs
from sluice.supervision.stream_status import StreamRow

_FAILURES_ALLOWED = 1
"""The platform restarts a failed stream; a second failure in the same demo is reported to the person who runs it."""

_ENDED_BADLY = frozenset({RunState.FAILED, RunState.LOST})


@dataclass(slots=True, kw_only=True)
class FlightStreaming:
    """The streaming part of one demo.

    began_at: the ledger's time when the demo began; earlier failures do not count.
    planned: how many records of the plan `plan_name` this demo sends.
    pool: runs the sending while the streams are watched.
    """

    platform: LocalPlatform
    watch: StreamWatch
    live: LiveTable
    log: StepLog
    began_at: datetime
    planned: int
    plan_name: str
    pool: Executor
    _progress: ReplayProgress | None = None
    _sent_in_earlier_phases: int = 0
    _reported: set[str] = field(default_factory=set)

    def send(self, records: tuple[PlannedRecord, ...], *, hours_per_second: float | None) -> Future[int]:
        """Send records in the background. All records that were sent before must have been acknowledged."""
        self._sent_in_earlier_phases = self._sent
        self._progress = None
        return self.pool.submit(
            replay,
            records,
            plan_name=self.plan_name,
            topic=self.platform.topic,
            hours_per_second=hours_per_second,
            report=self._note_progress,
            is_stopped=self.platform.stopped.is_set,
        )

    def await_under_way(self, sending: Future[int], *, headline: str) -> None:
        """Watch until everything is sent, every driver runs and the first flights are in bronze.

        Raises
        ------
        DemonstrationError: when a stream fails repeatedly, or when nothing progresses.
        """
        self._await(are_under_way, sending=sending, headline=headline)

    def await_drained(self, sending: Future[int], *, headline: str) -> None:
        """Watch until everything is sent and every stream has read it.

        Raises
        ------
        DemonstrationError: as `await_under_way`.
        """
        self._await(have_read_everything, sending=sending, headline=headline)

    def await_passed(self, event_time: datetime, *, headline: str) -> None:
        """Watch until the watermark of `silver_flights` has passed an event time.

        Raises
        ------
        DemonstrationError: as `await_under_way`.
        """
        self._await(lambda rows: has_passed(rows, event_time), sending=None, headline=headline)

    def await_either(self, reached: Event, job: Future[Any], *, headline: str) -> None:
        """Watch until a job beside the streams has reached a point, or ended before.

        Raises
        ------
        DemonstrationError: as `await_under_way`.
        SluiceError: what the job has raised.
        """
        self._await(lambda _: reached.is_set() or job.done(), sending=None, headline=headline)
        if job.done():
            job.result()

    def await_job(self, job: Future[Any], *, headline: str) -> None:
        """Watch until a job beside the streams has ended.

        Raises
        ------
        DemonstrationError: as `await_under_way`.
        SluiceError: what the job has raised.
        """
        self._await(lambda _: job.done(), sending=None, headline=headline)
        job.result()

    def _note_progress(self, progress: ReplayProgress) -> None:
        self._progress = progress
        self.platform.standstill.note_move()

    def _await(
        self, is_reached: Callable[[Sequence[StreamRow]], bool], *, sending: Future[int] | None, headline: str
    ) -> None:
        def look() -> bool | None:
            # Read before the streams are observed, so that the observation includes everything that was sent.
            is_sent = sending is None or sending.done()
            rows = self.watch.observe()
            self._show(headline, rows)
            if is_sent and sending is not None:
                sending.result()
            if is_sent and is_reached(rows):
                return True
            self._check_failures()
            return None

        self.platform.standstill.await_answer(
            look,
            what=f"{headline}: {self._sent:,} of {self.planned:,} records are sent and not all is done",
            next_step="Look at the streams' DAGs in Airflow and at `sluice stream status`.",
        )

    def _show(self, headline: str, rows: Sequence[StreamRow]) -> None:
        clock = f", {self._progress.clock:%d %B %H:%M} UTC" if self._progress is not None else ""
        self.live.show(f"{headline}: {self._sent:,} of {self.planned:,} records sent{clock}", rows)

    @property
    def _sent(self) -> int:
        return self._sent_in_earlier_phases + (self._progress.sent if self._progress is not None else 0)

    def _check_failures(self) -> None:
        for stream in STREAMS:
            own = [run for run in recent_runs(self.platform.ledger, stream, 10) if run.launched_at >= self.began_at]
            failed = [run for run in own if run.state in _ENDED_BADLY]
            for run in failed:
                if run.run_id not in self._reported:
                    self._reported.add(run.run_id)
                    self.log.print(f"[red]{stream} {run.state.value}[/red]: {escape(f'{run.reason} ({run.log_file})')}")
            if len(failed) > _FAILURES_ALLOWED:
                raise DemonstrationError(
                    f"The stream {stream} failed {len(failed)} times. The last reason: {failed[0].reason}.",
                    next_step=f"Its log is {failed[0].log_file}.",
                )


def watermark_to_pass(records: tuple[PlannedRecord, ...]) -> datetime:
    """The event time that a watermark must have passed for all of these records to be late."""
    return max(record.flight.departure for record in records) + timedelta(microseconds=1)
