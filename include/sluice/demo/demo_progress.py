"""What the demo sees of its continuous streams and shows while it runs: its steps, and how far each stream is."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import Self

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.launching.launcher_port import Launcher
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunState
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.stream_status import StreamRow, observe_rows

Render = Callable[[Sequence[StreamRow], str], RenderableType]
"""Makes the table of the streams under a headline."""

_LINE_EVERY_SECONDS = 10.0
_BAR_COLUMNS = 40

BRONZE, SILVER, GOLD = "bronze_flights", "silver_flights", "gold_delays_by_carrier_hour"
STREAMS = (BRONZE, SILVER, GOLD)
"""In the order in which a flight passes them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamWatch:
    """The observer of the streams. heads: reads the newest positions of the sources."""

    streams: tuple[LoadedStream, ...]
    ledger: Ledger
    launcher: Launcher
    heads: SourceHeads

    def observe(self) -> tuple[StreamRow, ...]:
        """Observe the streams now; a row for each."""
        return observe_rows(self.streams, ledger=self.ledger, launcher=self.launcher, heads=self.heads)


class DemoStep(StrEnum):
    """The steps in the order in which they begin on a machine with cores for all of them; see `demonstration`."""

    STACK = "Local stack"
    TABLES = "Tables and reference data"
    DRIVERS = "Streams launched by Airflow"
    FLIGHTS = "Flights through the streams"
    BACKFILL = "Days that another writer corrupted, backfilled through Airflow beside the streams, and once more"
    WEATHER = "Weather: an incremental run, and the run that its new rows trigger"
    MAINTENANCE = "Maintenance of the tables that receive small files"
    QUALITY = "Quality of the tables that people read"
    HEALTH = "Health of the checkpoints"
    LATE_SET = "Late flights, which must be dropped"
    VERIFICATION = "Verification by DuckDB"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobProgress:
    """How far a job beside the streams is. what: its name. done: how many of its `total` parts have ended."""

    what: str
    done: int
    total: int

    def __str__(self) -> str:
        return f"{self.what}: {self.done} of {self.total}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDuration:
    """The duration of a step. began_after_seconds: its begin, counted from the first step."""

    title: str
    began_after_seconds: float
    seconds: float


class StepLog:
    """Prints when a step ends, and records how long each took. Safe to use from several threads."""

    def __init__(self, console: Console | None) -> None:
        """Create a log that prints to `console`; None prints nothing."""
        self._console = console
        self._began = time.monotonic()
        self._lock = threading.Lock()
        self._durations: list[StepDuration] = []

    @property
    def durations(self) -> tuple[StepDuration, ...]:
        """The steps that have ended, in the order in which they began."""
        with self._lock:
            return tuple(sorted(self._durations, key=lambda step: step.began_after_seconds))

    @property
    def seconds(self) -> float:
        """Seconds since the first step began."""
        return time.monotonic() - self._began

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Time a step from entering to leaving. A failed step is not recorded: its error is reported instead."""
        began = time.monotonic()
        yield
        duration = StepDuration(title=title, began_after_seconds=began - self._began, seconds=time.monotonic() - began)
        with self._lock:
            self._durations.append(duration)
        self.print(f"[green]✓[/green] {title} [dim]({duration.seconds:.1f} s)[/dim]")

    def print(self, text: str) -> None:
        """Print a line in Rich's markup."""
        if self._console is not None:
            self._console.print(text, highlight=False, soft_wrap=True)


class LiveTable:
    """Shows the streams: a live table on a terminal, otherwise a line every ten seconds when something has changed.

    A context manager; the last table stays on the screen.

    Parameters
    ----------
    console: where to show it; None shows nothing.
    render: makes the table of the streams under a headline, as the other commands show it.
    clock: a monotonic clock in seconds.
    """

    def __init__(self, console: Console | None, *, render: Render, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._render = render
        self._clock = clock
        self._live: Live | None = None
        self._line_due = float("-inf")
        self._last_line = ""
        self._job: JobProgress | None = None

    def __enter__(self) -> Self:
        if self._console is not None and self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def show_job(self, job: JobProgress | None) -> None:
        """From now on show also how far a job is; None ends that. Safe to use from another thread."""
        self._job = job

    def show(self, headline: str, rows: Sequence[StreamRow]) -> None:
        """Show the newest state.

        Parameters
        ----------
        headline: what the demo does now.
        rows: the streams.
        """
        job = self._job
        if self._live is not None:
            table = self._render(rows, headline)
            self._live.update(table if job is None else Group(table, _bar(job)))
        elif self._console is not None and self._clock() >= self._line_due:
            line = stream_line(headline if job is None else f"{headline} · {job}", rows)
            if line != self._last_line:
                self._console.print(line, highlight=False, soft_wrap=True)
            self._line_due, self._last_line = self._clock() + _LINE_EVERY_SECONDS, line


def _bar(job: JobProgress) -> RenderableType:
    return Columns([str(job), ProgressBar(total=job.total, completed=job.done, width=_BAR_COLUMNS)])


def stream_line(headline: str, rows: Sequence[StreamRow]) -> str:
    """The streams as one line, without figures that change while nothing happens, such as ages."""
    streams = (
        f"{row.stream} {row.verdict.state}, {row.totals.input_rows:,} rows read"
        + (f", {row.lag.rows:,} behind" if row.lag.rows else "")
        for row in rows
    )
    return " · ".join([headline, *streams])


def are_under_way(rows: Sequence[StreamRow]) -> bool:
    """Whether the driver of every stream runs, and the first stream, `bronze_flights`, has delivered a batch.

    Records that are sent from then on arrive in several batches, as in production, and make several small files.
    """
    return all(_is_running(row) and (row.stream != BRONZE or _delivers(row)) for row in rows)


def have_read_everything(rows: Sequence[StreamRow]) -> bool:
    """Whether no stream has anything left to read, judged by offsets, so that an unrecorded batch does not matter.

    A stream that has read everything may still write rows for the next one. The streams are observed in the order in
    which flights pass them, so the source of the next stream is observed after the batch of this one was recorded.
    """
    return all(row.lag.rows == 0 for row in rows)


def has_passed(rows: Sequence[StreamRow], event_time: datetime, *, streams: Collection[str] = (SILVER,)) -> bool:
    """Whether the watermarks of the newest batches of streams, by default of `silver_flights`, are later than an event
    time."""
    newest = {row.stream: row.seen.newest_batch for row in rows}
    batches = [newest.get(stream) for stream in streams]
    return all(batch is not None and batch.watermark is not None and batch.watermark > event_time for batch in batches)


def _is_running(row: StreamRow) -> bool:
    return row.seen.newest_run is not None and row.seen.newest_run.state is RunState.RUNNING


def _delivers(row: StreamRow) -> bool:
    """Whether the driver has delivered a batch, or has nothing to read."""
    run, batch = row.seen.newest_run, row.seen.newest_batch
    return row.lag.rows == 0 or (run is not None and batch is not None and batch.run_id == run.run_id)
