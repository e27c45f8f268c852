"""Searches a table for the intervals that do not hold what the sources of its stream give; it changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.backfill.backfill_plan import BackfillObservation, BackfillPlan, plan_backfill
from sluice.backfill.interval_gaps import (
    EARLIEST,
    Fingerprint,
    GapReport,
    complete_target,
    find_gaps,
    last_closed,
    search_start,
    searched_interval,
)
from sluice.backfill.intervals import Interval, IntervalLength, rounded_outwards
from sluice.backfill.observe_backfill import (
    PATIENCE_SECONDS,
    PlannedOn,
    backfill_of,
    observe_backfill,
    settled_plan,
)
from sluice.backfill.reach import final_end
from sluice.backfill.read_bounds import TableBound, TopicBound
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.ledger.connection import Ledger, database_time
from sluice.operations import RefusalReason
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.table_observation import removed_from
from sluice_spark.backfill.interval_rows import computed_interval, exact_reach
from sluice_spark.session.columns import fingerprint_of, quoted, sums_of_rows

_MICROSECONDS = 1_000_000

_AGAINST_COMMITS = (RefusalReason.READER_STOPS, RefusalReason.NOTHING_PUBLISHED)
"""The refusals that do not block a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapSearch:
    """The search of one stream. start, end: unset for the beginning, and for the end of the newest interval whose rows
    are final."""

    settings: Settings
    ledger: Ledger
    declarations: Declarations
    stream: LoadedStream
    start: datetime | None
    end: datetime | None
    open_session: Callable[[], SparkSession]

    def work(self) -> GapReport:
        """Compare the intervals of the stream with its table, all at one snapshot of the table. A stream that has
        published nothing yet has no gaps: no interval of it is compared.

        Raises
        ------
        UsageError: when the stream declares no backfill.
        UnpublishableError: when the sources cannot be read as far as the stream has read them, or the range is not
            closed.
        """
        catalog = open_catalog(self.settings)
        now = database_time(self.ledger)

        def look() -> PlannedOn:
            everything = Interval(start=self.start or EARLIEST, end=self.end or now.astimezone(UTC))
            searched = self._searched(*self._observe(catalog, everything), now)
            seen, target = self._observe(catalog, searched)
            return PlannedOn(plan=_without_publishing(plan_backfill(seen)), target=target)

        with settled_plan(look, turn=None, patience_seconds=PATIENCE_SECONDS) as planned:
            seen, target = planned.plan.seen, planned.target
        if seen.published is None or seen.interval.start == seen.interval.end:
            return self._report(seen, {}, {})
        spark = self.open_session()
        seen = self._final(spark, seen)
        if seen.interval.start == seen.interval.end:
            return self._report(seen, {}, {})
        return self._compare(spark, seen, target)

    def _final(self, spark: SparkSession, seen: BackfillObservation) -> BackfillObservation:
        """The observation of the intervals whose rows are final, unless an end was asked for."""
        if self.end is not None or seen.published is None:
            return seen
        end = final_end(
            exact_reach(spark, self.stream, self.settings, seen),
            seen.interval,
            length=backfill_of(self.stream).interval,
            margin=seen.margin,
            watermark=seen.published.watermark,
        )
        return replace(seen, interval=Interval(start=seen.interval.start, end=end))

    def _observe(self, catalog: Catalog, interval: Interval) -> tuple[BackfillObservation, Table]:
        return observe_backfill(catalog, self.ledger, self.declarations, self.stream, interval, settings=self.settings)

    def _searched(self, seen: BackfillObservation, target: Table, now: datetime) -> Interval:
        length = backfill_of(self.stream).interval
        closed = last_closed(margin=seen.margin, length=length, now=now.astimezone(UTC))
        topics = [one.complete_after for one in seen.sources if isinstance(one, TopicBound)]
        tables = [one.complete_after for one in seen.sources if isinstance(one, TableBound)]
        tables += [one.removed.before for one in seen.lookups]
        if seen.published is not None:
            column, name = backfill_of(self.stream).column, seen.output.target
            tables.append(complete_target(removed_from(target), table=name, column=column))
        start = search_start(
            self.start,
            topics=[one for one in topics if one is not None],
            tables=[one for one in tables if one is not None],
            margin=seen.margin,
            length=length,
        )
        return searched_interval(start, self.end, closed_until=closed, length=length)

    def _compare(self, spark: SparkSession, seen: BackfillObservation, target: Table) -> GapReport:
        backfill = backfill_of(self.stream)
        with computed_interval(spark, self.stream, self.settings, seen, target) as (computed, held):
            expected = _by_interval(computed.rows, backfill.column, backfill.interval)
        of_interval = held.of_interval(seen.interval)
        return self._report(seen, expected, _by_interval(of_interval, backfill.column, backfill.interval))

    def _report(
        self, seen: BackfillObservation, expected: Mapping[Interval, Fingerprint], held: Mapping[Interval, Fingerprint]
    ) -> GapReport:
        return GapReport(
            stream=self.stream.name,
            table=seen.output.target,
            searched=seen.interval,
            compared=len({*expected, *held}),
            gaps=tuple(find_gaps(expected, held)),
            has_published=seen.published is not None,
            returning=tuple(dict.fromkeys(batch for one in seen.sources for batch in one.returning)),
        )


def _without_publishing(plan: BackfillPlan) -> BackfillPlan:
    """The plan without the reasons that block only a commit."""
    refusals = tuple(one for one in plan.refusals if one.reason not in _AGAINST_COMMITS)
    return replace(plan, refusals=refusals)


def _by_interval(rows: DataFrame, column: str, length: IntervalLength) -> dict[Interval, Fingerprint]:
    """The fingerprint of the rows of each interval."""
    start = fn.date_trunc(length, fn.col(quoted(column)).cast("timestamp"))
    found = rows.groupBy(fn.unix_micros(start).alias("start")).agg(*sums_of_rows(rows)).collect()
    starts = (datetime.fromtimestamp(one["start"] // _MICROSECONDS, UTC) for one in found)
    return {_interval_at(start, length): fingerprint_of(one) for start, one in zip(starts, found, strict=True)}


def _interval_at(start: datetime, length: IntervalLength) -> Interval:
    return rounded_outwards(Interval(start=start, end=start.replace(microsecond=1)), length)
