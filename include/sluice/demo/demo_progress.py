"""What the demo shows while it runs: its steps, and the streams as a live table or as single lines."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Self

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar

from sluice.supervision.stream_status import StreamRow

Render = Callable[[Sequence[StreamRow], str], RenderableType]
"""Makes the table of the streams under a headline."""

_LINE_EVERY_SECONDS = 10.0
_BAR_COLUMNS = 40


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
