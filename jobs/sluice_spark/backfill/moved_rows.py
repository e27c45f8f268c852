"""Finds the rows that an interval of the target loses to another one, because their time is another one now, and those
that have a time now and had none.

A row is known by its columns that are no times, or by its other times when it has no such column: two rows that agree
in them are taken for the same row. What the target holds where it lies now, is not lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

from sluice.backfill.intervals import Interval, IntervalLength, rounded_outwards
from sluice_spark.session.columns import quoted
from sluice_spark.session.row_content import row_hashes

_START = "_sluice_start"
_TIMES = (DateType, TimestampType, TimestampNTZType)


def moved_rows(
    *,
    held: DataFrame,
    computed: DataFrame,
    held_beside: DataFrame,
    computed_beside: DataFrame,
    column: str,
    length: IntervalLength,
) -> Mapping[Interval, int]:
    """How many rows have left an interval, by the interval in which they lie now and where the target has none of them.

    Parameters
    ----------
    held, computed: the rows of the interval, as the target holds them and as they were computed.
    held_beside, computed_beside: those of other intervals. All of them have the same columns.
    column: by which rows have intervals. length: of one.
    """
    if not (known_by := _known_by(computed, column)):
        return {}
    gone = _known(held, known_by).exceptAll(_known(computed, known_by)).distinct().persist()
    try:
        if gone.isEmpty():
            return {}
        here, there = (
            _hashed(
                rows, known_by, fn.unix_micros(fn.date_trunc(length, fn.col(quoted(column)).cast("timestamp")))
            ).join(fn.broadcast(gone), _KNOWN, "left_semi")
            for rows in (computed_beside, held_beside)
        )
        found = here.exceptAll(there).groupBy(_START).count().collect()
    finally:
        gone.unpersist()
    starts = ((datetime.fromtimestamp(one[_START] // 1_000_000, UTC), one["count"]) for one in found)
    return {
        rounded_outwards(Interval(start=start, end=start.replace(microsecond=1)), length): rows
        for start, rows in starts
    }


def rows_given_times(
    *,
    held: DataFrame,
    computed: DataFrame,
    held_timeless: DataFrame,
    computed_timeless: DataFrame,
    computed_beside: DataFrame | None,
    column: str,
) -> int:
    """How many rows of an interval the target may hold without a time, from before a correction gave them one: those
    that are known again, and as many as are new in the interval, since a correction may have changed their values too.

    Rows that only change are none of them: as many are gone as are new. Those that are known again in another interval,
    or without a time, are gone by themselves.

    Parameters
    ----------
    held, computed: the rows of the interval, as the target holds them and as they were computed.
    held_timeless, computed_timeless: all rows without a time. column: that of the time.
    computed_beside: the rows of other intervals; unset where not all of them were computed. Then only rows that are
        known again are counted: another row without a time may be of a record that was not read.
    """
    if held_timeless.isEmpty():
        return 0
    former = held_timeless.select(*row_hashes(held_timeless)).exceptAll(
        computed_timeless.select(*row_hashes(computed_timeless))
    )
    if not (stale := former.count()):
        return 0
    known_by = _known_by(computed, column)
    if not known_by:
        return 0 if computed_beside is None else min(stale, computed.count() - held.count())
    new, old = _known(computed, known_by), _known(held, known_by)
    known = _known(held_timeless, known_by).exceptAll(_known(computed_timeless, known_by))
    gained = _hashed(computed, known_by).exceptAll(_hashed(held, known_by))
    known_again = gained.join(fn.broadcast(known), _KNOWN, "left_semi").count()
    if computed_beside is None:
        return known_again
    elsewhere = _known(computed_beside, known_by).unionByName(_known(computed_timeless, known_by))
    left = old.exceptAll(new).join(elsewhere, _KNOWN, "left_semi").count()
    return max(known_again, min(stale, computed.count() - held.count() + left))


_KNOWN = ["known0", "known1"]


def _known_by(rows: DataFrame, column: str) -> list[str]:
    values = [field.name for field in rows.schema if not isinstance(field.dataType, _TIMES)]
    return values or [name for name in rows.columns if name != column]


def _known(rows: DataFrame, known_by: list[str]) -> DataFrame:
    return rows.select(*map(quoted, known_by)).transform(lambda some: some.select(*row_hashes(some)).toDF(*_KNOWN))


def _hashed(rows: DataFrame, known_by: list[str], start: Column | None = None) -> DataFrame:
    """What a row is known by, where it lies if that is given, and all of it."""
    known = (one.alias(name) for one, name in zip(row_hashes(rows.select(*map(quoted, known_by))), _KNOWN, strict=True))
    where = () if start is None else (start.alias(_START),)
    return rows.select(*known, *where, *row_hashes(rows))
