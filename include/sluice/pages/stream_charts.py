"""The charts of a stream's page: figures over time, from its history to what a template draws. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sluice.declarations.supervision_declaration import LagDeclaration
from sluice.ledger.batch_history import HistoryStep, StreamHistory
from sluice.pages.page_words import count_text, duration_text, rate_text
from sluice.pages.svg_charts import ChartLine, line_path, stacked_paths, top_of

WIDTH, HEIGHT = 300.0, 84.0

_COLOURS = ("a", "b", "c", "d", "e")

_PHASES: Mapping[str, tuple[str, ...]] = {
    "read": ("latestOffset", "getBatch", "queryPlanning"),
    "process and stage": ("addBatch",),
    "commit": ("walCommit", "commitOffsets", "commitBatch"),
}
"""Spark's names of what a batch spends its time on, in three parts; `triggerExecution` is their sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamChart:
    """One chart.

    figure: its newest value, in words. summary: what it shows, for those who do not see it.
    top: the value at the upper edge, in words. stacks: areas on top of each other, each with its colour.
    limit_y: where the declared limit lies; unset without one.
    legend: the words of each colour.
    """

    title: str
    figure: str
    summary: str
    top: str
    lines: tuple[ChartLine, ...] = ()
    stacks: tuple[tuple[str, str], ...] = ()
    limit_y: float | None = None
    legend: tuple[tuple[str, str], ...] = ()


def charts_of(history: StreamHistory, *, max_lag: LagDeclaration | None) -> tuple[StreamChart, ...]:
    """All charts of a stream, those that answer most questions first."""
    return (
        _lag_chart(history, max_lag),
        _rate_chart(history),
        _duration_chart(history.steps),
        _lost_rows_chart(history.steps),
    )


def _lag_chart(history: StreamHistory, max_lag: LagDeclaration | None) -> StreamChart:
    limit = None if max_lag is None else max_lag.rows
    top = top_of(history.unread_rows, [] if limit is None else [limit])
    newest = next((value for value in reversed(history.unread_rows) if value is not None), None)
    declared = "" if limit is None else f", declared at most {count_text(limit)}"
    return StreamChart(
        title="Lag, rows",
        figure=count_text(newest),
        summary=f"Unread rows: now {count_text(newest)}, at most {count_text(_most(history.unread_rows))}{declared}.",
        top=count_text(top),
        lines=_lines([history.unread_rows], top),
        limit_y=None if limit is None else HEIGHT - (HEIGHT - 2) * limit / top,
        legend=(("a", "unread"), ("e", f"declared limit {count_text(limit)}")) if limit is not None else (),
    )


def _rate_chart(history: StreamHistory) -> StreamChart:
    seconds = history.step.total_seconds()
    read = [step.input_rows / seconds for step in history.steps]
    published = [step.published_rows / seconds for step in history.steps]
    top = top_of(read, published)
    figure = f"{rate_text(_newest_full(read))} in → {rate_text(_newest_full(published))} out"
    return StreamChart(
        title="Rows a second",
        figure=figure,
        summary=f"Rows a second: {figure}; at most {rate_text(top)}.",
        top=rate_text(top),
        lines=_lines([read, published], top),
        legend=(("a", "read"), ("b", "published")),
    )


def _duration_chart(steps: Sequence[HistoryStep]) -> StreamChart:
    parts = [[_phase_ms(step, names) for step in steps] for names in _PHASES.values()]
    longest = [None if step.longest_ms is None else float(step.longest_ms) for step in steps]
    sums = [sum(each) for each in zip(*parts, strict=True)]
    top = top_of(sums, longest)
    newest = next((value for value in reversed(longest) if value is not None), None)
    most = _most(longest)
    paths = stacked_paths(parts, width=WIDTH, height=HEIGHT, top=top) if any(sums) else ()
    return StreamChart(
        title="Batch duration by phase",
        figure=_milliseconds(newest),
        summary=f"Batch duration: now {_milliseconds(newest)}, longest {_milliseconds(most)}.",
        top=_milliseconds(top),
        stacks=tuple(zip(paths, _COLOURS, strict=False)),
        lines=tuple(_with_colour(line, "d") for line in _lines([longest], top)),
        legend=(*zip(_COLOURS, _PHASES, strict=False), ("d", "longest batch")),
    )


def _lost_rows_chart(steps: Sequence[HistoryStep]) -> StreamChart:
    refused = [float(step.refused_rows) for step in steps]
    late = [float(step.late_rows) for step in steps]
    duplicate = [float(step.duplicate_rows) for step in steps]
    top = top_of(refused, late, duplicate)
    words = ("quarantined", "dropped late", "duplicate")
    sums = [count_text(sum(each)) for each in (refused, late, duplicate)]
    figure = " · ".join(sums)
    listed = ", ".join(f"{number} {word}" for number, word in zip(sums, words, strict=True))
    return StreamChart(
        title="Quarantined · late · duplicate rows",
        figure=figure,
        summary=f"Rows that were not published: {listed}.",
        top=count_text(top),
        lines=_lines([refused, late, duplicate], top),
        legend=tuple(zip(_COLOURS, words, strict=False)),
    )


def _phase_ms(step: HistoryStep, names: Iterable[str]) -> float:
    return sum(step.phases_ms.get(name, 0.0) for name in names)


def _lines(series: Sequence[Sequence[float | None]], top: float) -> tuple[ChartLine, ...]:
    drawn = (line_path(values, width=WIDTH, height=HEIGHT, top=top) for values in series)
    return tuple(
        ChartLine(stroke=stroke, area=area, colour=colour)
        for (stroke, area), colour in zip(drawn, _COLOURS, strict=False)
    )


def _with_colour(line: ChartLine, colour: str) -> ChartLine:
    return ChartLine(stroke=line.stroke, area="", colour=colour)


def _most(values: Iterable[float | None]) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _newest_full(values: Sequence[float]) -> float:
    """The newest step that is over: the last one has only begun."""
    return values[-2] if len(values) > 1 else values[-1]


def _milliseconds(value: float | None) -> str:
    return duration_text(None if value is None else timedelta(milliseconds=value))
