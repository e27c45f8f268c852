"""Which days, hours or months can be chosen for a backfill: from the first that has rows to the last that is closed.

Both are hints of a form; the plan, which the form leads to, decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table

from sluice.backfill.interval_gaps import last_closed
from sluice.backfill.intervals import floor_time
from sluice.backfill.observe_backfill import backfill_of, backfilled_output
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LakehouseError
from sluice.ledger.batches import newest_batch
from sluice.ledger.connection import Ledger, database_time
from sluice.pages.table_looks import BoundedLooks
from sluice.settings import Settings
from sluice.tables.catalog import catalog_refusals, open_catalog
from sluice.tables.declared_tables import load_table

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FORMS = {"hour": "%Y-%m-%dT%H:00", "day": "%Y-%m-%d", "month": "%Y-%m-01"}
_PATTERNS = {"hour": r"\d{4}-\d{2}-\d{2}T\d{2}:00", "day": r"\d{4}-\d{2}-\d{2}", "month": r"\d{4}-\d{2}-01"}
_EXAMPLES = {"hour": "YYYY-MM-DDThh:00", "day": "YYYY-MM-DD", "month": "YYYY-MM-01"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoosableDays:
    """What the form offers, in ISO 8601.

    first: the first with rows; empty where no partition shows it. last: the newest of which no window or join is open
    for certain, and end the one behind it. by_watermark: whether the stream's watermark says so, else the clock.
    pattern, example: of one value.
    """

    first: str
    last: str
    end: str
    by_watermark: bool
    pattern: str
    example: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillDays:
    """Finds the days for the pages of one process. open: connects to the catalog. looks: the bounds of a look."""

    settings: Settings
    open: Callable[[Settings], Catalog] = open_catalog
    looks: BoundedLooks = field(default_factory=lambda: BoundedLooks(at="tables to backfill"))

    def find(self, ledger: Ledger, stream: LoadedStream) -> ChoosableDays:
        """Find them for a stream that declares a backfill."""
        newest = newest_batch(ledger, stream.name)
        return days_of(
            stream,
            first_row_at=self._first_row_at(stream),
            watermark=None if newest is None else newest.watermark,
            now=database_time(ledger),
        )

    def _first_row_at(self, stream: LoadedStream) -> datetime | None:
        target, column = backfilled_output(stream).target, backfill_of(stream).column
        try:
            return self.looks.look(lambda _: first_partition(load_table(self.open(self.settings), target), column))
        except LakehouseError:  # the form works without it, and the plan names what is wrong
            return None


def days_of(
    stream: LoadedStream, *, first_row_at: datetime | None, watermark: datetime | None, now: datetime
) -> ChoosableDays:
    """The days of a stream that declares a backfill. Pure."""
    declared = backfill_of(stream)
    length, margin = declared.interval, declared.margin or timedelta(0)
    end = last_closed(margin=margin, length=length, now=now if watermark is None else min(watermark, now))
    last = floor_time(end - timedelta(microseconds=1), length)
    return ChoosableDays(
        first="" if first_row_at is None else f"{floor_time(first_row_at, length):{_FORMS[length]}}",
        last=f"{last:{_FORMS[length]}}",
        end=f"{end:{_FORMS[length]}}",
        by_watermark=watermark is not None,
        pattern=_PATTERNS[length],
        example=_EXAMPLES[length],
    )


def first_partition(table: Table | None, column: str) -> datetime | None:
    """The beginning of the oldest partition of a column of times, from the list of manifests alone; none where the
    table is not partitioned by it, or has no row."""
    newest = None if table is None else table.current_snapshot()
    if table is None or newest is None:
        return None
    with catalog_refusals("read the list of manifests"):
        return min(_beginnings(table, newest.manifests(table.io), column), default=None)


def _beginnings(table: Table, manifests: Sequence[ManifestFile], column: str) -> Iterator[datetime]:
    schema, specs = table.schema(), table.specs()
    for manifest in manifests:
        parts = specs[manifest.partition_spec_id].fields
        for part, summary in zip(parts, manifest.partitions or (), strict=False):
            if schema.find_column_name(part.source_id) == column and summary.lower_bound is not None:
                kind = schema.find_type(part.source_id) if str(part.transform) == "identity" else str(part.transform)
                number = int.from_bytes(summary.lower_bound, "little", signed=True)
                if str(kind) in _MOMENTS:
                    yield _MOMENTS[str(kind)](number)


_MOMENTS: Mapping[str, Callable[[int], datetime]] = {
    "year": lambda count: _EPOCH.replace(year=1970 + count),
    "month": lambda count: _EPOCH.replace(year=1970 + count // 12, month=count % 12 + 1),
    "day": lambda count: _EPOCH + timedelta(days=count),
    "hour": lambda count: _EPOCH + timedelta(hours=count),
    "date": lambda count: _EPOCH + timedelta(days=count),
    "timestamp": lambda count: _EPOCH + timedelta(microseconds=count),
    "timestamptz": lambda count: _EPOCH + timedelta(microseconds=count),
}
"""The moment at which a partition begins: by its transform, or by the type of a column that is taken as it is.
Source: https://iceberg.apache.org/spec/#partition-transforms"""
