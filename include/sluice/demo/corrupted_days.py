"""Corrupts days of silver and gold, as a mistake of another writer would: with pyiceberg, beside the live streams."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time, timedelta

import pyarrow as pa
import tenacity
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.expressions import And, BooleanExpression, GreaterThanOrEqual, LessThan
from pyiceberg.table import Table

from sluice.backfill.intervals import Interval
from sluice.demo.flights_data import FIRST_DAY, Span
from sluice.errors import DemonstrationError

SILVER_TABLE, GOLD_TABLE = "silver.flights", "gold.delays_by_carrier_hour"

_DAYS = timedelta(days=3)
_CLOSED_BEFORE_END = timedelta(days=1)
"""The watermark follows the newest flight by six hours, and a night has hours without flights: the last day of a span
that is surely closed when everything was read ends a day before it."""

_ATTEMPTS = 20
"""The live streams commit every two seconds; a commit that they overtake is made again on the new head."""


def days_to_corrupt(span: Span) -> Interval:
    """Three days, the first whole ones of a span; earlier ones, or fewer at the begin of the year, in a short span.

    Parameters
    ----------
    span: what the demo replays. The days are closed before its end: no flight of the replay changes them any more.
    """
    first = _midnight(span.starts_at) + timedelta(days=1)
    end = min(first + _DAYS, _midnight(span.ends_at) - _CLOSED_BEFORE_END)
    return Interval(start=max(_midnight(Span(first_day=FIRST_DAY, days=1).starts_at), end - _DAYS), end=end)


def corrupt(catalog: Catalog, days: Interval) -> None:
    """Delete the flights of days from silver, and append every row of these days in gold a second time.

    Raises
    ------
    DemonstrationError: when the tables do not show it afterwards.
    """
    flights, hours = _within("departure", days), _within("window_start", days)
    good_rows = catalog.load_table(GOLD_TABLE).scan(row_filter=hours).count()
    _commit(catalog, SILVER_TABLE, lambda silver: silver.delete(flights))
    _commit(catalog, GOLD_TABLE, lambda gold: gold.append(_content(gold, hours)))
    left = catalog.load_table(SILVER_TABLE).scan(row_filter=flights).count()
    doubled = catalog.load_table(GOLD_TABLE).scan(row_filter=hours).count()
    if left or doubled != 2 * good_rows or not good_rows:
        raise DemonstrationError(
            f"{days.spoken} could not be corrupted: {SILVER_TABLE} still holds {left} flights of it, and "
            f"{GOLD_TABLE} {doubled} rows instead of twice {good_rows}.",
            next_step="Look at the newest snapshots of these tables: another program may write them.",
        )


def _commit(catalog: Catalog, name: str, change: Callable[[Table], object]) -> None:
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((CommitFailedException, ValidationException)),
        stop=tenacity.stop_after_attempt(_ATTEMPTS),
        reraise=True,
    )
    retrying(lambda: change(catalog.load_table(name)))


def _content(table: Table, rows: BooleanExpression) -> pa.Table:
    return table.scan(row_filter=rows).to_arrow().cast(table.schema().as_arrow())


def _within(column: str, days: Interval) -> BooleanExpression:
    start, end = days.start.isoformat(), days.end.isoformat()
    return And(GreaterThanOrEqual(term=column, value=start), LessThan(term=column, value=end))


def _midnight(moment: datetime) -> datetime:
    return datetime.combine(moment, time(), tzinfo=UTC)
