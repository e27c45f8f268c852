"""The columns of a table by the hour, as its writers have recorded them, and what is said of the unusual ones. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import numpy as np

from sluice.declarations.column_types import kind_of
from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.hourly_figures import ColumnFigures, HourOfColumns
from sluice.supervision.unusual_columns import ColumnKind, ColumnSign, HourlyColumn, UnusualColumn

_KINDS = {
    **dict.fromkeys(("int", "long", "float", "double", "decimal"), ColumnKind.NUMBER),
    **dict.fromkeys(("timestamp", "timestamptz"), ColumnKind.TIME),
    "date": ColumnKind.DATE,
}
_HOUR = timedelta(hours=1)

MOST_SENTENCES = 5
"""So many columns have a sentence; the others are named."""

_SPANS = ((365.25 * 86_400, "year"), (86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"), (1.0, "second"))


def columns_of_table(
    table: TableDeclaration,
    hours: Sequence[HourOfColumns],
    *,
    writers: Sequence[tuple[str, str]],
    masked: Collection[str],
    ends_at: datetime,
) -> tuple[HourlyColumn, ...]:
    """The declared columns of a table in each hour since the first in which a stream that writes it had figures.

    Parameters
    ----------
    writers: the streams that write it, each with its output. masked: columns in lower case without bounds.
    ends_at: when the last hour ended.
    """
    own = [one for one in hours if (one.stream, one.output) in set(writers) and one.hour < ends_at]
    begins_at = min((one.hour for one in own), default=ends_at)
    count = round((ends_at - begins_at) / _HOUR)
    places = [(round((one.hour - begins_at) / _HOUR), one.figures) for one in own]
    return tuple(
        _column(
            column.name,
            ColumnKind.NONE if column.name.lower() in masked else _kind_of(kind_of(column.column_type)),
            places,
            begins_at=begins_at,
            count=count,
        )
        for column in table.columns
    )


def _kind_of(kind: str) -> ColumnKind:
    return _KINDS.get(kind, ColumnKind.NONE)


def _column(
    name: str,
    kind: ColumnKind,
    places: Sequence[tuple[int, Mapping[str, ColumnFigures]]],
    *,
    begins_at: datetime,
    count: int,
) -> HourlyColumn:
    rows, nulls = np.zeros(count), np.zeros(count)
    lowest, highest = np.full(count, np.nan), np.full(count, np.nan)
    for place, figures in places:
        found = figures.get(name)
        if found is None:
            continue
        rows[place] += found.rows
        nulls[place] += found.nulls
        if found.lowest is not None and found.highest is not None:
            lowest[place] = np.fmin(lowest[place], found.lowest)
            highest[place] = np.fmax(highest[place], found.highest)
    return HourlyColumn(
        name=name,
        kind=kind,
        begins_at=begins_at,
        rows=rows,
        nulls=nulls,
        lowest=lowest,
        highest=highest,
    )


def column_sentences(unusual: Sequence[UnusualColumn]) -> Iterator[str]:
    """What is unusual about columns, since when, compared with what."""
    yield from (_sentence(one) for one in unusual[:MOST_SENTENCES])
    others = dict.fromkeys(one.column for one in unusual[MOST_SENTENCES:])
    if others:
        yield f"Unusual, too: {', '.join(f'`{name}`' for name in others)}."


def _sentence(one: UnusualColumn) -> str:
    since = f"`{one.column}` since {one.since:%Y-%m-%d %H:%M} UTC"
    if one.sign is ColumnSign.NULLS:
        window, same = ("hour", "hour") if one.hours == 1 else (f"{one.hours} hours", "hours")
        seen = f"{_percent(one.seen)} of {one.rows:,} rows in the {window} up to {one.until:%H:%M} UTC"
        usual = f"{_percent(one.usual)} are usual in the same {same} of {one.weeks} weeks"
        return f"Too many nulls in {since}: {seen}, where {usual}, at the level of the last seven days."
    is_below = one.sign is ColumnSign.BELOW
    what = f"{str(one.sign).capitalize()} in {since}: {'down' if is_below else 'up'} to {_value(one)}"
    if one.kind is ColumnKind.NUMBER:
        return f"{what}, where the {'lowest' if is_below else 'highest'} of {one.weeks} weeks was {_number(one.usual)}."
    farthest = "earliest" if is_below else "latest"
    return f"{what}, where the {farthest} of {one.weeks} weeks was {_from_arrival(one.usual)}."


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %".replace(".0 %", " %")


def _value(one: UnusualColumn) -> str:
    if one.kind is ColumnKind.NUMBER:
        return _number(one.seen)
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=one.seen)
    except OverflowError:
        return "a time before the year 1" if one.seen < 0 else "a time after the year 9999"
    return f"{at:%Y-%m-%d}" if one.kind is ColumnKind.DATE else f"{at:%Y-%m-%d %H:%M} UTC"


def _number(value: float) -> str:
    if abs(value) >= 1e15 or 0 < abs(value) < 0.01:
        return f"{value:.3g}"
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def _from_arrival(seconds: float) -> str:
    """A time as it lies to the begin of the hour in which it arrived."""
    size, unit = next((one for one in _SPANS if abs(seconds) >= one[0]), (1.0, "second"))
    count = round(abs(seconds) / size)
    side = "before" if seconds < 0 else "after"
    return f"{count:,} {unit}{'s' if count != 1 else ''} {side} the begin of the hour in which it arrived"
