"""The page of one stream: everything that is known of it, read with a bounded number of bounded queries."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import BinaryIO

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.run_declaration import LagDeclaration
from sluice.launching.driver_records import open_log_of
from sluice.ledger.batches import BatchObservation, recent_batches
from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventObservation, EventSubject, recent_events
from sluice.ledger.generations import GenerationObservation, find_generation
from sluice.ledger.recorded_checks import CheckpointObservation, newest_checkpoint_check
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import recent_runs
from sluice.ledger.source_schemas import SourceSchema, source_schemas
from sluice.ledger.stream_figures import HistoryStep, StreamHistory, stream_history
from sluice.messages import redacted
from sluice.pages.lineage_edges import edges_of
from sluice.pages.lineage_graph import LineageGraph, graph_around
from sluice.pages.page_figures import (
    COLOURS,
    HEIGHT,
    WIDTH,
    Chart,
    ChartLine,
    coloured_lines,
    count_text,
    duration_text,
    most_of,
    newest_of,
    rate_text,
    size_text,
    stacked_paths,
    top_of,
)
from sluice.quality.declaration_patches import patches_of

WINDOWS_HOURS = (1, 6, 24)
"""The times that the charts can show; the samples of a lag are kept for a day."""

CHART_POINTS = 90
SHOWN_RUNS, SHOWN_BATCHES, SHOWN_EVENTS = 10, 20, 40
_MOST_FILE_BYTES = 64_000

SHOWN_LOG_BYTES = 24_000
"""About a hundred lines; the whole log is `sluice stream logs`."""

_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|[\x00-\x08\x0b-\x1f\x7f]")

_PHASES: Mapping[str, tuple[str, ...]] = {
    "read": ("latestOffset", "getBatch", "queryPlanning"),
    "process and stage": ("addBatch",),
    "commit": ("walCommit", "commitOffsets", "commitBatch"),
}
"""Spark's names of what a batch spends its time on, in three parts; `triggerExecution` is their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPage:
    """What the page of a stream shows beside its line.

    patches: of the declaration, for what has changed of the schemas, by the names under which those are kept.
    declaration: the text of its file; empty when no valid file declares it.
    log: unset for a person who may not read it.
    """

    hours: int
    charts: tuple[Chart, ...]
    runs: tuple[RunObservation, ...]
    batches: tuple[BatchObservation, ...]
    events: tuple[EventObservation, ...]
    generation: GenerationObservation | None
    schemas: tuple[SourceSchema, ...]
    patches: Mapping[str, str]
    checkpoint_check: CheckpointObservation | None
    declaration: str
    file: str
    graph: LineageGraph | None
    log: LogTail | None


def load_stream_page(
    ledger: Ledger,
    declarations: Declarations,
    stream: str,
    *,
    hours: int,
    may_read: Callable[[Iterable[str]], frozenset[str]],
    may_read_log: bool,
    logs: Path,
) -> StreamPage:
    """Read what the page of a stream shows.

    Parameters
    ----------
    hours: one of `WINDOWS_HOURS`.
    may_read: of some streams those that the reader may see; others are not in the lineage.
    logs: the folder with the logs of drivers.
    """
    declared = declarations.streams.get(stream)
    history = stream_history(ledger, stream, within=timedelta(hours=hours), points=CHART_POINTS)
    runs = recent_runs(ledger, stream, limit=SHOWN_RUNS)
    schemas = source_schemas(ledger, stream, inputs=None if declared is None else declared.declaration.inputs)
    return StreamPage(
        hours=hours,
        charts=charts_of(history, max_lag=None if declared is None else declared.declaration.supervision.max_lag),
        runs=runs,
        batches=recent_batches(ledger, stream, limit=SHOWN_BATCHES),
        events=recent_events(ledger, EventSubject.STREAM, stream, limit=SHOWN_EVENTS),
        generation=find_generation(ledger, stream),
        schemas=schemas,
        patches={} if declared is None else patches_of(declared.declaration, schemas),
        checkpoint_check=newest_checkpoint_check(ledger, stream),
        declaration="" if declared is None else _text_of(declared.file),
        file="" if declared is None else f"{declared.folder.name}/{declared.file.name}",
        graph=None if declared is None else _graph(declarations, declared, may_read),
        log=read_log_tail(runs[0] if runs else None, logs=logs) if may_read_log else None,
    )


def _graph(
    declarations: Declarations, declared: LoadedStream, may_read: Callable[[Iterable[str]], frozenset[str]]
) -> LineageGraph:
    readable = may_read(declarations.streams)
    streams = [stream for name, stream in declarations.streams.items() if name in readable]
    return graph_around(declared.name, edges_of(streams))


def _text_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return redacted(opened.read(_MOST_FILE_BYTES).decode(errors="replace"))
    except OSError as error:
        return f"# the file cannot be read: {error.strerror}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogTail:
    """The end of a driver's log. text: empty when it cannot be read here; `problem` says why."""

    text: str
    problem: str = ""


def read_log_tail(run: RunObservation | None, *, logs: Path) -> LogTail:
    """Read the end of the log of a run's driver, where this process can read it."""
    if run is None or run.log_file is None:
        return LogTail(text="", problem="Its newest run has no log of its own: Airflow keeps the log of its task.")
    try:
        with open_log_of(run.stream, run.log_file, logs=logs) as log:
            return LogTail(text=_tail_of(log))
    except OSError as error:
        host = run.process.host if run.process is not None else "the host of its driver"
        return LogTail(text="", problem=f"{run.log_file} on {host} cannot be read from here: {error.strerror}.")


def _tail_of(log: BinaryIO) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - SHOWN_LOG_BYTES))
    text = log.read(SHOWN_LOG_BYTES).decode(errors="replace")
    whole = text if size <= SHOWN_LOG_BYTES else text.partition("\n")[2]
    return redacted(_ESCAPES.sub("", whole))


def charts_of(history: StreamHistory, *, max_lag: LagDeclaration | None) -> tuple[Chart, ...]:
    """All charts of a stream, those that answer most questions first; of the state where it has one."""
    return (
        _lag_chart(history, max_lag),
        _rate_chart(history),
        _duration_chart(history.steps),
        _lost_rows_chart(history.steps),
        *_state_charts(history.steps),
    )


def _lag_chart(history: StreamHistory, max_lag: LagDeclaration | None) -> Chart:
    limit = None if max_lag is None else max_lag.rows
    top = top_of(history.unread_rows, [] if limit is None else [limit])
    newest = newest_of(history.unread_rows)
    declared = "" if limit is None else f", declared at most {count_text(limit)}"
    return Chart(
        title="Lag, rows",
        figure=count_text(newest),
        summary=f"Unread rows: now {count_text(newest)}, at most {count_text(most_of(history.unread_rows))}{declared}.",
        top=count_text(top),
        lines=coloured_lines([history.unread_rows], top),
        limit_y=None if limit is None else HEIGHT - (HEIGHT - 2) * limit / top,
        legend=(("a", "unread"), ("e", f"declared limit {count_text(limit)}")) if limit is not None else (),
    )


def _rate_chart(history: StreamHistory) -> Chart:
    seconds = history.step.total_seconds()
    read = [step.input_rows / seconds for step in history.steps]
    published = [step.published_rows / seconds for step in history.steps]
    top = top_of(read, published)
    figure = f"{rate_text(_newest_full(read))} in → {rate_text(_newest_full(published))} out"
    return Chart(
        title="Rows a second",
        figure=figure,
        summary=f"Rows a second: {figure}; at most {rate_text(top)}.",
        top=rate_text(top),
        lines=coloured_lines([read, published], top),
        legend=(("a", "read"), ("b", "published")),
    )


def _duration_chart(steps: Sequence[HistoryStep]) -> Chart:
    parts = [[_phase_ms(step, names) for step in steps] for names in _PHASES.values()]
    longest = [None if step.longest_ms is None else float(step.longest_ms) for step in steps]
    sums = [sum(each) for each in zip(*parts, strict=True)]
    top = top_of(sums, longest)
    newest = newest_of(longest)
    most = most_of(longest)
    paths = stacked_paths(parts, width=WIDTH, height=HEIGHT, top=top) if any(sums) else ()
    return Chart(
        title="Batch duration by phase",
        figure=f"longest {_milliseconds(most)}",
        summary=f"Batch duration: now {_milliseconds(newest)}, longest {_milliseconds(most)}.",
        top=_milliseconds(top),
        stacks=tuple(zip(paths, COLOURS, strict=False)),
        lines=tuple(_with_colour(line, "d") for line in coloured_lines([longest], top)),
        legend=(*zip(COLOURS, _PHASES, strict=False), ("d", "longest batch")),
    )


def _lost_rows_chart(steps: Sequence[HistoryStep]) -> Chart:
    refused = [float(step.refused_rows) for step in steps]
    late = [float(step.late_rows) for step in steps]
    duplicate = [float(step.duplicate_rows) for step in steps]
    top = top_of(refused, late, duplicate)
    words = ("quarantined", "dropped late", "duplicate")
    sums = [count_text(sum(each)) for each in (refused, late, duplicate)]
    figure = " · ".join(sums)
    listed = ", ".join(f"{number} {word}" for number, word in zip(sums, words, strict=True))
    return Chart(
        title="Quarantined · late · duplicate rows",
        figure=figure,
        summary=f"Rows that were not published: {listed}.",
        top=count_text(top),
        lines=coloured_lines([refused, late, duplicate], top),
        legend=tuple(zip(COLOURS, words, strict=False)),
    )


def _state_charts(steps: Sequence[HistoryStep]) -> tuple[Chart, ...]:
    """The rows of the state, and the memory that they take; nothing for a stream without state."""
    rows, taken = [step.state_rows for step in steps], [step.state_bytes for step in steps]
    if newest_of(rows) is None:
        return ()
    return (_state_chart("State, rows", rows, count_text), _state_chart("State, memory", taken, size_text))


def _state_chart(title: str, values: Sequence[int | None], words: Callable[[float | None], str]) -> Chart:
    top, now, most = top_of(values), words(newest_of(values)), words(most_of(values))
    return Chart(
        title=title,
        figure=now,
        summary=f"{title}: now {now}, at most {most}.",
        top=words(top),
        lines=coloured_lines([values], top),
    )


def _phase_ms(step: HistoryStep, names: Iterable[str]) -> float:
    return sum(step.phases_ms.get(name, 0.0) for name in names)


def _with_colour(line: ChartLine, colour: str) -> ChartLine:
    return ChartLine(stroke=line.stroke, area="", colour=colour)


def _newest_full(values: Sequence[float]) -> float:
    """The newest step that is over: the last one has only begun."""
    return values[-2] if len(values) > 1 else values[-1]


def _milliseconds(value: float | None) -> str:
    return duration_text(None if value is None else timedelta(milliseconds=value))
