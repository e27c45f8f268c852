"""Whether an interval can be backfilled now, from observations alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from sluice.backfill.backfill_plan import (
    BackfillObservation,
    PublishedBatch,
    TargetReader,
    plan_backfill,
)
from sluice.backfill.intervals import parse_interval
from sluice.backfill.read_bounds import ShortenedLookup, TableBound
from sluice.operations import RefusalReason
from sluice.publication.chain import MarkPosition
from sluice.publication.staged_batch import StagedOutput
from sluice.tables.removed_rows import RemovedRows

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
