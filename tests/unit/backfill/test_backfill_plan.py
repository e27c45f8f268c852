"""Whether an interval can be backfilled now, from observations alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.unit.backfill.test_source_bounds import offset, table_of

from sluice.backfill.backfill_plan import (
    BackfillObservation,
    PublishedBatch,
    TargetReader,
    are_topics_behind,
    is_table_behind,
    plan_backfill,
)
from sluice.backfill.intervals import parse_interval
from sluice.backfill.read_bounds import ShortenedLookup, TableBound
from sluice.operations import RefusalReason
from sluice.publication.chain import MarkPosition
from sluice.publication.staged_batch import StagedOutput
from sluice.tables.table_observation import RemovedRows

SEEN = BackfillObservation(
    output=StagedOutput(stream="silver_flights", output="flights", target="silver.flights"),
    interval=parse_interval("2013-01-05", "2013-01-08"),
    margin=timedelta(0),
    head=7,
    position=MarkPosition(generation=1, batch=4, token=2, end_offsets_digest="d"),
    published=PublishedBatch(end_offsets={"records": {}}, watermark=None),
    sources=(TableBound(input="records", table="bronze.flights", snapshot_id=3),),
)
CLOSED = datetime(2013, 1, 8, tzinfo=UTC)


def test_a_plan_without_refusals_says_what_it_does() -> None:
    plan = plan_backfill(SEEN)

    assert not plan.is_refused
    assert list(plan.sentences()) == [
        "Replace the rows of 2013-01-05 00:00 to 2013-01-08 00:00 UTC in silver.flights.",
        "Read input records: bronze.flights at snapshot 3, whole.",
        "Publish nothing where fewer rows would come than go, unless `--allow-fewer` is given.",
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"position": None, "published": None}, RefusalReason.NOTHING_PUBLISHED),
        (
            {"position": MarkPosition(generation=1, batch=-1, token=2, end_offsets_digest=None)},
            RefusalReason.NOTHING_PUBLISHED,
        ),
        ({"published": None}, RefusalReason.OFFSETS_UNKNOWN),
        ({"behind": ("records",)}, RefusalReason.GENERATION_BEHIND),
        (
            {"sources": (TableBound(input="records", table="bronze.flights", problem="it is expired."),)},
            RefusalReason.SOURCE_UNREADABLE,
        ),
        ({"other_writers": ("corrections",)}, RefusalReason.OTHER_WRITERS),
        ({"readers": (TargetReader(stream="gold", input="flights", on_overwrite="fail"),)}, RefusalReason.READER_STOPS),
    ],
    ids=lambda value: str(value) if isinstance(value, RefusalReason) else "",
)
def test_what_stands_against_a_backfill_refuses_it(change: dict[str, Any], reason: RefusalReason) -> None:
    refusals = plan_backfill(replace(SEEN, **change)).refusals

    assert [refusal.reason for refusal in refusals] == [reason]
    assert refusals[0].sentence.endswith(".")
    assert refusals[0].next_step


@pytest.mark.parametrize(
    ("watermark", "margin", "is_open"),
    [
        (CLOSED, timedelta(0), False),
        (CLOSED - timedelta(milliseconds=1), timedelta(0), True),
        (CLOSED, timedelta(minutes=1), True),
        (None, timedelta(minutes=1), False),
    ],
)
def test_a_plan_says_that_windows_of_an_open_interval_are_refused(
    watermark: datetime | None, margin: timedelta, is_open: bool
) -> None:
    """Rows that no step keeps are right in an open interval, too: the stream appends what comes later."""
    published = PublishedBatch(end_offsets={}, watermark=watermark)

    plan = plan_backfill(replace(SEEN, published=published, margin=margin))

    assert not plan.is_refused
    assert any(one.startswith("Refuse it when the stream keeps windows") for one in plan.sentences()) is is_open


@pytest.mark.parametrize(
    ("reader", "meaning"),
    [
        (
            TargetReader(stream="gold", input="flights", on_overwrite="skip"),
            "gold (input flights) leaves the overwrite out: its own tables keep what they hold of the interval until "
            "it is backfilled too",
        ),
        (
            TargetReader(stream="gold", input="flights", on_overwrite="skip", follows=True),
            "gold (input flights) leaves the overwrite out, and its own interval is replaced next",
        ),
        (
            TargetReader(stream="gold", input="flights", on_overwrite=None),
            "gold (input flights) looks rows up in it: what it wrote before keeps the former ones",
        ),
    ],
    ids=["skips", "follows", "looks up"],
)
def test_a_closed_interval_and_readers_that_go_on_are_admitted(reader: TargetReader, meaning: str) -> None:
    closed = PublishedBatch(end_offsets={}, watermark=CLOSED)

    plan = plan_backfill(replace(SEEN, published=closed, readers=(reader,)))

    assert not plan.is_refused
    assert list(plan.sentences())[-1] == f"Reader {meaning}."


@pytest.mark.parametrize(
    ("before", "margin", "is_refused"),
    [
        (SEEN.interval.start, timedelta(0), False),
        (SEEN.interval.start, timedelta(minutes=1), True),
        (SEEN.interval.start + timedelta(minutes=1), timedelta(0), True),
    ],
    ids=["before the interval", "within its margin", "within the interval"],
)
def test_an_interval_whose_lookups_would_find_less_is_not_replaced(
    before: datetime, margin: timedelta, is_refused: bool
) -> None:
    """The rows that it has now were looked up when the table still had the old ones."""
    removed = RemovedRows(column="valid_from", before=before)
    lookup = ShortenedLookup(input="carriers", table="silver.carriers", removed=removed)
    plan = plan_backfill(replace(SEEN, lookups=(lookup,), margin=margin))
    assert [one.reason for one in plan.refusals] == [RefusalReason.SOURCE_GONE] * is_refused
    said = [one for one in plan.sentences() if "of silver.carriers (input carriers), rows whose valid_from is" in one]
    assert len(said) == 1, "in both cases a person reads it"
    assert not is_refused or "or declare the `tag`" in plan.refusals[0].next_step


@pytest.mark.parametrize(
    ("before", "now", "is_behind"),
    [
        (offset(2, 2), offset(2, 2), False),
        (offset(2, 2), offset(2, 1), True),
        (offset(2, 2), offset(3, 0), False),
        (offset(3, 2), offset(2, 2), True),
        (offset(3, 2), offset(3, 6, scan_all_files=True), False),
        (offset(3, 2), offset(3, 5, scan_all_files=True), True),
        (offset(3, 6, scan_all_files=True), offset(3, 5, scan_all_files=True), True),
        (offset(3, 6, scan_all_files=True), offset(3, 2), False),
        (offset(3, 2), None, True),
        (offset(3, 2), offset(-1, -1), True),
        (offset(9, 2), offset(1, 0), False),
    ],
    ids=[
        "equal",
        "fewer files",
        "later",
        "earlier",
        "all of it",
        "not all of it",
        "fewer files of a scan",
        "after a scan",
        "nothing",
        "at the beginning",
        "expired",
    ],
)
def test_a_table_is_read_as_far_as_its_history_says(before: dict[str, Any], now: object, is_behind: bool) -> None:
    assert is_table_behind(table_of("append", "append", "append"), before=before, now=now) is is_behind


@pytest.mark.parametrize("position", [0, 1_000_000])
def test_a_scan_of_a_snapshot_that_does_not_count_its_files_may_not_be_complete(position: int) -> None:
    """The summary of another writer says only what it has added."""
    table = table_of("append")
    (snapshot,) = table.metadata.snapshots
    assert snapshot.summary is not None
    del snapshot.summary.additional_properties["total-data-files"]
    scanned = offset(1, position, scan_all_files=True)

    assert is_table_behind(table, before=offset(1, 2), now=scanned)
    assert not is_table_behind(table, before=scanned, now=scanned)


@pytest.mark.parametrize(
    ("now", "is_behind"),
    [
        ({"t": {"0": 5, "1": 7}}, False),
        ({"t": {"0": 9, "1": 7, "2": 0}}, False),
        ({"t": {"0": 5, "1": 6}}, True),
        ({"t": {"0": 5}}, True),
        ({}, True),
        (None, True),
    ],
)
def test_topics_are_read_as_far_as_each_of_their_partitions(now: object, is_behind: bool) -> None:
    assert are_topics_behind(before={"t": {"0": 5, "1": 7}}, now=now) is is_behind
