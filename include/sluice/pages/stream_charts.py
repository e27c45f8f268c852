"""The charts of a stream's page: figures over time, from its history to what a template draws. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta

from sluice.declarations.supervision_declaration import LagDeclaration
from sluice.ledger.stream_figures import HistoryStep, StreamHistory
from sluice.pages.page_words import count_text, duration_text, rate_text, size_text
from sluice.pages.svg_charts import (
    COLOURS,
    HEIGHT,
    WIDTH,
    Chart,
    ChartLine,
    coloured_lines,
    most_of,
    newest_of,
    stacked_paths,
    top_of,
)

_PHASES: Mapping[str, tuple[str, ...]] = {
    "read": ("latestOffset", "getBatch", "queryPlanning"),
    "process and stage": ("addBatch",),
    "commit": ("walCommit", "commitOffsets", "commitBatch"),
}
"""Spark's names of what a batch spends its time on, in three parts; `triggerExecution` is their sum."""


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
