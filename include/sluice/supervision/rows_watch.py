"""Watches the rows and the columns of each table, and records what is unusual as a trouble under a subject of its own.

A fifteenth of the tables is judged in each pass, so each four times an hour, by sums that the ledger has anyway. A
person is alerted once when it begins; it is shown until it is over, and makes no stream unhealthy.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np

from sluice.declarations.column_types import kind_of
from sluice.declarations.loaded_declarations import Declarations, masked_columns_of_table
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger
from sluice.ledger.hourly_figures import ColumnFigures, HourOfColumns, HoursOfStreams, read_column_hours, read_hours
from sluice.ledger.stream_troubles import (
    StreamTrouble,
    all_troubles,
    clear_trouble,
    record_report,
    record_trouble,
    rows_subject,
    table_of_rows,
)
from sluice.supervision.alerts import Alert
from sluice.supervision.compared_weeks import SETTLED_HOURS, WEEK_HOURS
from sluice.supervision.platform_troubles import UNUSUAL_ROWS
from sluice.supervision.unusual_columns import (
    ColumnKind,
    ColumnSign,
    ColumnsVerdict,
    HourlyColumn,
    UnusualColumn,
    judge_columns,
)
from sluice.supervision.unusual_rows import (
    HourlyRows,
    RowsVerdict,
    UnusualKind,
    UnusualRows,
    judge_rows,
)

_log = logging.getLogger(__name__)

JUDGED_EVERY_MINUTES = 15

_KINDS = {
    **dict.fromkeys(("int", "long", "float", "double", "decimal"), ColumnKind.NUMBER),
    **dict.fromkeys(("timestamp", "timestamptz"), ColumnKind.TIME),
    "date": ColumnKind.DATE,
}

MOST_SENTENCES = 5
"""So many columns have a sentence; the others are named."""

_SPANS = ((365.25 * 86_400, "year"), (86_400.0, "day"), (3_600.0, "hour"), (60.0, "minute"), (1.0, "second"))

_HOUR = timedelta(hours=1)

Writers = Sequence[tuple[str, str]]
"""The streams that write a table, each with its output."""


def watch_rows(ledger: Ledger, declarations: Declarations, *, number: int, by: str) -> tuple[Alert, ...]:
    """Judge the tables whose turn it is.

    Parameters
    ----------
    number: of the pass, its minute. by: the task that watches.

    Returns
    -------
    What has begun to be unusual.
    """
    watched = watched_tables(declarations)
    turn = number % JUDGED_EVERY_MINUTES
    due = [table for place, table in enumerate(watched) if place % JUDGED_EVERY_MINUTES == turn]
    try:
        known = {one.stream: one for one in all_troubles(ledger) if one.reason == UNUSUAL_ROWS}
        _clear_others(ledger, declarations, known, watched, by=by)
        if not due:
            return ()
        streams = {stream for table in due for stream, _ in watched[table]}
        hours = read_hours(ledger, streams)
        found = [
            _watch(ledger, table, judge_table(ledger, declarations, table, watched[table], hours), known, by=by)
            for table in due
        ]
    except LedgerError as error:
        _log.warning("the rows of %d tables could not be judged; the next turn does: %s", len(due), error)
        return ()
    return tuple(alert for alert in found if alert is not None)


def watched_tables(declarations: Declarations) -> Mapping[str, Writers]:
    """The declared tables that are watched, by name, each with what writes it."""
    writers: dict[str, list[tuple[str, str]]] = {}
    for name, stream in sorted(declarations.streams.items()):
        for output, declared in stream.declaration.outputs.items():
            if declared.iceberg is not None:
                writers.setdefault(declared.iceberg.table, []).append((name, output))
    return {
        name: writers[name]
        for name, table in sorted(declarations.tables.items())
        if name in writers and table.declaration.unusual_rows == "report"
    }


def hours_of_table(hours: HoursOfStreams, writers: Writers) -> HourlyRows:
    """The rows of a table in each hour since the first in which a stream that writes it had a batch. Pure."""
    streams = {stream for stream, _ in writers}
    of_table = [one for one in hours.hours if one.stream in streams]
    begins_at = min((one.hour for one in of_table), default=hours.ends_at)
    count = round((hours.ends_at - begins_at) / _HOUR)
    rows, rejected = [0] * count, [0] * count
    for one in of_table:
        place = round((one.hour - begins_at) / _HOUR)
        outputs = [output for stream, output in writers if stream == one.stream]
        rows[place] += sum(one.published_rows.get(output, 0) for output in outputs)
        rejected[place] += one.rejected_rows
    return HourlyRows(begins_at=begins_at, rows=rows, rejected=rejected)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVerdict:
    """What is unusual about the rows of a table and about its columns."""

    rows: RowsVerdict
    columns: ColumnsVerdict

    @property
    def is_unusual(self) -> bool:
        """Whether anything is unusual now."""
        return bool(self.rows.unusual or self.columns.unusual)

    @property
    def is_settled(self) -> bool:
        """Whether nothing was for the last `SETTLED_HOURS`, or cannot be known."""
        return self.rows.is_settled and self.columns.is_settled


def judge_table(
    ledger: Ledger, declarations: Declarations, table: str, writers: Writers, hours: HoursOfStreams
) -> TableVerdict:
    """Judge a table by the hours of the streams that write it.

    Raises
    ------
    LedgerError: when the hours of its columns cannot be read.
    """
    columns = columns_of_table(
        declarations.tables[table].declaration,
        read_column_hours(ledger, {stream for stream, _ in writers}),
        writers=writers,
        masked=masked_columns_of_table(declarations, table),
        ends_at=hours.ends_at,
    )
    return TableVerdict(rows=judge_rows(hours_of_table(hours, writers)), columns=judge_columns(columns))


def explain(verdict: TableVerdict) -> str:
    """What is unusual, since when, compared with what."""
    if not verdict.is_unusual:
        return f"The rows are as usual again. It is over when they are for {SETTLED_HOURS} hours."
    return " ".join((*map(_rows_sentence, verdict.rows.unusual), *column_sentences(verdict.columns.unusual)))


def _rows_sentence(one: UnusualRows) -> str:
    since, until = f"{one.since:%Y-%m-%d %H:%M} UTC", f"{one.until:%H:%M} UTC"
    window = "hour" if one.hours == 1 else f"{one.hours} hours"
    compared = f"in the same hours of {one.weeks} weeks, at the level of the last seven days"
    if one.kind is UnusualKind.NONE:
        least = "at least " if one.hours > WEEK_HOURS else ""
        return f"No rows since {since}, where {least}{one.usual:,} are usual {compared}."
    compared = compared if one.hours > 1 else compared.replace("hours", "hour", 1)
    what = str(one.kind).capitalize()
    return (
        f"{what} since {since}: {one.seen:,} in the {window} up to {until}, where {one.usual:,} are usual {compared}."
    )


def column_sentences(unusual: Sequence[UnusualColumn]) -> Iterator[str]:
    """What is unusual about columns, since when, compared with what."""
    yield from (_column_sentence(one) for one in unusual[:MOST_SENTENCES])
    others = dict.fromkeys(one.column for one in unusual[MOST_SENTENCES:])
    if others:
        yield f"Unusual, too: {', '.join(f'`{name}`' for name in others)}."


def _column_sentence(one: UnusualColumn) -> str:
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


def _watch(
    ledger: Ledger, table: str, verdict: TableVerdict, known: Mapping[str, StreamTrouble], *, by: str
) -> Alert | None:
    subject = rows_subject(table)
    if verdict.is_settled or (not verdict.is_unusual and subject not in known):
        if subject in known:
            clear_trouble(ledger, subject, by=by)
        return None
    sentence = explain(verdict)
    trouble = record_trouble(ledger, subject, reason=UNUSUAL_ROWS, explanation=sentence, by=by)
    is_new = record_report(ledger, trouble, by=by)
    return Alert(stream=subject, sentence=sentence, reason=UNUSUAL_ROWS) if is_new else None


def _clear_others(
    ledger: Ledger,
    declarations: Declarations,
    known: Iterable[str],
    watched: Mapping[str, Writers],
    *,
    by: str,
) -> None:
    """Clear what is known of tables that are not watched any more; not of those whose declaration is broken now."""
    for subject in known:
        table = table_of_rows(subject)
        is_broken = table in declarations.table_names and table not in declarations.tables
        if table not in watched and not is_broken:
            clear_trouble(ledger, subject, by=by)
