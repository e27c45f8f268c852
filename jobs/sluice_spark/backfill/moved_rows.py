"""Finds the rows that an interval of the target loses to another one, because their time is another one now.

A row is known by its columns that are no times: two rows that agree in them are taken for the same row. What the target
holds where it lies now, is not lost.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from pyspark.sql import DataFrame
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
    known_by = [field.name for field in computed.schema if not isinstance(field.dataType, _TIMES)]
    if not known_by:
        return {}
    gone = _known(held, known_by).exceptAll(_known(computed, known_by)).distinct().persist()
    try:
        if gone.isEmpty():
            return {}
        here = _hashed(computed_beside, known_by, column, length).join(fn.broadcast(gone), _KNOWN, "left_semi")
        there = _hashed(held_beside, known_by, column, length).join(fn.broadcast(gone), _KNOWN, "left_semi")
        found = here.exceptAll(there).groupBy(_START).count().collect()
    finally:
        gone.unpersist()
    starts = ((datetime.fromtimestamp(one[_START] // 1_000_000, UTC), one["count"]) for one in found)
    return {
        rounded_outwards(Interval(start=start, end=start.replace(microsecond=1)), length): rows
        for start, rows in starts
    }


_KNOWN = ["known0", "known1"]


def _known(rows: DataFrame, known_by: list[str]) -> DataFrame:
    return rows.select(*map(quoted, known_by)).transform(lambda some: some.select(*row_hashes(some)).toDF(*_KNOWN))


def _hashed(rows: DataFrame, known_by: list[str], column: str, length: IntervalLength) -> DataFrame:
    """What a row is known by, where it lies, and all of it."""
    known = (one.alias(name) for one, name in zip(row_hashes(rows.select(*map(quoted, known_by))), _KNOWN, strict=True))
    start = fn.unix_micros(fn.date_trunc(length, fn.col(quoted(column)).cast("timestamp"))).alias(_START)
    return rows.select(*known, start, *row_hashes(rows))
