"""What the demo shows: its steps and how far each continuous stream is, while it runs, and the final report with rows,
maintenance and quality of the tables, the checks, and the next steps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from enum import StrEnum
from types import TracebackType
from typing import Self

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.demo.lakehouse_copy import CheckResult
from sluice.launching.launcher_port import Launcher
from sluice.ledger.connection import Ledger
from sluice.ledger.maintenance_runs import MaintenanceObservation
from sluice.ledger.recorded_checks import QualityObservation
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


STOP_COMMAND = "sluice stack down"
YEAR_IS_OVER = "Every flight of 2013 has been sent. To start again, stop the stack and delete its data folder."


@dataclass(frozen=True, slots=True, kw_only=True)
class RowBalance:
    """The rows of `bronze.flights`, split by what `silver_flights` did with them."""

    bronze: int
    silver: int
    refused: int
    late: int
    duplicate: int

    def __str__(self) -> str:
        return (
            f"{self.bronze:,} in bronze = {self.silver:,} in silver + {self.refused:,} refused + "
            f"{self.late:,} late + {self.duplicate:,} duplicate"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TableReport:
    """One table at the end of the demo; maintenance and quality are None when the demo did not run them for it."""

    table: str
    rows: int
    maintenance: MaintenanceObservation | None
    quality: QualityObservation | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WhereToLook:
    """Where to look next: Airflow's address, its user and the file with the password, and the quality reports."""

    airflow_url: str
    airflow_user: str
    airflow_login_file: str
    quality_reports: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoReport:
    """The outcome of a demo.

    days: the days that were replayed; None when the whole year had been replayed before.
    held: what a rule has held, and how it was released; empty when nothing was held.
    total_seconds: from the begin of the first step to the end of the last.
    """

    days: str | None
    is_year_over: bool
    sent_records: int
    balance: RowBalance
    tables: tuple[TableReport, ...]
    checks: tuple[CheckResult, ...]
    steps: tuple[StepDuration, ...]
    total_seconds: float
    where: WhereToLook
    held: str = ""

    def as_json(self) -> dict[str, object]:
        """The report for a program."""
        return {
            "verified": all(check.is_true for check in self.checks),
            "days": self.days,
            "year_is_over": self.is_year_over,
            "sent_records": self.sent_records,
            "balance": asdict(self.balance),
            "tables": [_table_as_json(table) for table in self.tables],
            "held": self.held,
            "checks": [check.as_json() for check in self.checks],
            "steps": [asdict(step) for step in self.steps],
            "total_seconds": round(self.total_seconds, 1),
            "where": asdict(self.where),
            "stop": STOP_COMMAND,
        }


def print_report(report: DemoReport, console: Console) -> None:
    """Show the report to a person."""
    console.print()
    console.print(_tables(report))
    console.print(_checks(report))
    console.print(_steps(report))
    for line in _closing_lines(report):
        console.print(line, highlight=False, soft_wrap=True)


def _table_as_json(table: TableReport) -> dict[str, object]:
    maintenance, quality = table.maintenance, table.quality
    return {
        "table": table.table,
        "rows": table.rows,
        "files_before": maintenance and maintenance.before.files,
        "files_after": maintenance and maintenance.after.files,
        "quality": quality and quality.verdict.value,
        "expectations": quality and quality.expectations,
        "failed_expectations": list(quality.failed_expectations) if quality else None,
        "quality_report": quality and quality.report,
    }


def _tables(report: DemoReport) -> RenderableType:
    shown = Table("table", title="Tables", title_justify="left", box=None, padding=(0, 2, 0, 0))
    for column in ("rows", "files before", "after"):
        shown.add_column(column, justify="right")
    shown.add_column("quality")
    for table in report.tables:
        before, after = "", ""
        if table.maintenance is not None:
            before, after = f"{table.maintenance.before.files:,}", f"{table.maintenance.after.files:,}"
        shown.add_row(table.table, f"{table.rows:,}", before, after, _quality_text(table.quality))
    return shown


def _quality_text(quality: QualityObservation | None) -> str:
    if quality is None:
        return ""
    held = quality.expectations - len(quality.failed_expectations)
    return f"{quality.verdict.value}: {held} of {quality.expectations} expectations"


def _checks(report: DemoReport) -> RenderableType:
    shown = Table(title="\nVerified by DuckDB", title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    for check in report.checks:
        mark = "[green]✓[/green]" if check.is_true else "[red]✗[/red]"
        shown.add_row(mark, f"{check.expected_rows:,}", check.statement)
    shown.columns[1].justify = "right"
    return shown


def _steps(report: DemoReport) -> RenderableType:
    shown = Table(title="\nSteps", title_justify="left", box=None, padding=(0, 2, 0, 0), show_header=False)
    for step in report.steps:
        begin, end = step.began_after_seconds, step.began_after_seconds + step.seconds
        shown.add_row(step.title, f"{step.seconds:.1f} s", f"[dim]{begin:.0f} to {end:.0f} s[/dim]")
    shown.columns[1].justify = "right"
    return shown


def _closing_lines(report: DemoReport) -> list[str]:
    where = report.where
    lines = [
        "",
        f"{report.balance}.",
        *([report.held] if report.held else []),
        f"[bold green]Verified[/bold green] in {report.total_seconds:.0f} s: {len(report.checks)} checks passed.",
        "",
        f"Airflow       {where.airflow_url}  (user {where.airflow_user}, password in {where.airflow_login_file})",
        f"Quality       {where.quality_reports}",
        f"Stop it with  {STOP_COMMAND}",
    ]
    if report.is_year_over:
        lines += ["", YEAR_IS_OVER]
    return lines
