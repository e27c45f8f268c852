"""Finds the rows that an interval of the target loses to another one, or gets from another one, because their time is
another one now, and those that have a time now and had none.

A row is known by its columns that are no times, or by its other times when it has no such column: two rows that agree
in them are taken for the same row. What the target holds where it lies now, is not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
    return _found_beside(held, computed, here=computed_beside, there=lambda: held_beside, column=column, length=length)


def arrived_rows(
    *,
    held: DataFrame,
    computed: DataFrame,
    held_beside: DataFrame,
    computed_beside: Callable[[], DataFrame | None],
    column: str,
    length: IntervalLength,
) -> Mapping[Interval, int]:
    """How many rows come into an interval that the target holds in another one, by that one, where nothing gives them
    any more.

    Parameters
    ----------
    computed_beside: computes the rows of the other intervals, once the target holds such rows; none where that is not
        possible. All others as `moved_rows` has them.
    """
    return _found_beside(computed, held, here=held_beside, there=computed_beside, column=column, length=length)


def _found_beside(
    some: DataFrame,
    others: DataFrame,
    *,
    here: DataFrame,
    there: Callable[[], DataFrame | None],
    column: str,
    length: IntervalLength,
) -> Mapping[Interval, int]:
    """The rows that some have and others have not, which lie `here` beside the interval and not `there`."""
    if not (known_by := _known_by(some, column)):
        return {}
    wanted = _known(some, known_by).exceptAll(_known(others, known_by)).distinct().persist()
    start = fn.unix_micros(fn.date_trunc(length, fn.col(quoted(column)).cast("timestamp")))

    def beside(rows: DataFrame) -> DataFrame:
        return _hashed(rows, known_by, start).join(wanted, _KNOWN, "left_semi")

    try:
        if not wanted.count():  # all of it, so that Spark knows how large it is when it joins
            return {}
        # Most often nothing lies here, and what lies there need not be computed.
        if (found := beside(here)).isEmpty() or (known := there()) is None:
            return {}
        counts = found.exceptAll(beside(known)).groupBy(_START).count().collect()
    finally:
        wanted.unpersist()
    starts = ((datetime.fromtimestamp(one[_START] // 1_000_000, UTC), one["count"]) for one in counts)
    return {
        rounded_outwards(Interval(start=start, end=start.replace(microsecond=1)), length): rows
        for start, rows in starts
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesGiven:
    """The rows of an interval, and those without a time, from before and after a correction gave some of them one.

    held, computed: the rows of the interval, as the target holds them and as they were computed.
    held_timeless: all rows without a time that the target holds.
    computed_timeless: the computed rows without a time; where only an interval of the inputs was read, those of its
        records.
    every_timeless: computes the rows without a time of all records that are left. It is none where it is not known
        which these are, and unset where all were computed.
    """

    held: DataFrame
    computed: DataFrame
    held_timeless: DataFrame
    computed_timeless: DataFrame
    every_timeless: Callable[[], DataFrame | None] | None = None

    def count(self) -> int:
        """How many rows of the interval the target may hold without a time: as many as are new in the interval, while
        so many without a time are given no more.

        A correction may have changed the values of a row with its time, and any row of the interval may have left it
        for good meanwhile: neither numbers of rows nor their values show that a new row only is an older one of the
        interval. Where only an interval was read, a row without a time may be of a record that was not: then all
        records that are left are read, once the others leave it open. One of a record that is gone is counted, too.
        """
        if self.held_timeless.isEmpty() or not (stale := self._stale(self.computed_timeless)):
            return 0
        found = min(stale, new := self._new())
        if not found or self.every_timeless is None:
            return found
        every = self.every_timeless()
        return found if every is None else min(self._stale(every), new)

    def _stale(self, timeless: DataFrame) -> int:
        """How many rows without a time the target holds that are given no more."""
        held, computed = (rows.select(*row_hashes(rows)) for rows in (self.held_timeless, timeless))
        return held.exceptAll(computed).count()

    def _new(self) -> int:
        computed, held = (rows.select(*row_hashes(rows)) for rows in (self.computed, self.held))
        return computed.exceptAll(held).count()


_KNOWN = ["known0", "known1"]


def _known_by(rows: DataFrame, column: str) -> list[str]:
    values = [field.name for field in rows.schema if not isinstance(field.dataType, _TIMES)]
    return values or [name for name in rows.columns if name != column]


def _known(rows: DataFrame, known_by: list[str]) -> DataFrame:
    return rows.select(*map(quoted, known_by)).transform(lambda some: some.select(*row_hashes(some)).toDF(*_KNOWN))


def _hashed(rows: DataFrame, known_by: list[str], start: Column) -> DataFrame:
    """What a row is known by, where it lies, and all of it."""
    known = (one.alias(name) for one, name in zip(row_hashes(rows.select(*map(quoted, known_by))), _KNOWN, strict=True))
    return rows.select(*known, start.alias(_START), *row_hashes(rows))
