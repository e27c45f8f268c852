"""Which records of a topic a backfill reads, and whether all of them are left."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.backfill.read_bounds import OffsetRange, PartitionObservation, TopicBound, plan_topic_bound
from sluice.declarations.source_declarations import KafkaSource

DAY_3, DAY_4, DAY_5 = (datetime(2013, 1, day, tzinfo=UTC) for day in (3, 4, 5))
OLDEST = "the oldest record of flights/0 that is left has offset 10 and is of 2013-01-04 00:00:00 UTC; those before it"


def source(**more: Any) -> KafkaSource:
    """An input of one topic."""
    return KafkaSource.model_validate({"connection": "kafka", "topics": ["flights"], **more})


def sight(**more: Any) -> PartitionObservation:
    """A partition from which the first ten records were removed."""
    return PartitionObservation(**{"first": 10, "oldest": DAY_4, "since": None, "end": 30, "read": 20, **more})


@pytest.mark.parametrize(
    ("declared", "seen", "column", "since", "expected"),
    [
        ({}, {"first": 0}, None, None, OffsetRange(first=0, end=20)),
        ({}, {}, None, None, f"{OLDEST} were removed."),
        ({}, {}, "at", None, f"{OLDEST} were removed."),
        ({"starting": {"flights": {0: 10}}}, {}, None, None, OffsetRange(first=10, end=20)),
        ({"starting": {"flights": {0: 15}}}, {}, None, None, OffsetRange(first=15, end=20)),
        ({"starting": {"flights": {0: 9}}}, {}, None, None, f"{OLDEST} were removed."),
        ({"starting": DAY_5}, {"since": 12}, None, DAY_5, OffsetRange(first=12, end=20)),
        ({"starting": DAY_3}, {"since": 10}, None, DAY_3, f"{OLDEST} were removed."),
        ({}, {"since": 12}, "timestamp", DAY_5, OffsetRange(first=12, end=20)),
        ({}, {"since": -1}, "timestamp", DAY_5, OffsetRange(first=20, end=20)),
        ({}, {"since": 25}, "timestamp", DAY_5, OffsetRange(first=20, end=20)),
        ({}, {"since": 10}, "timestamp", DAY_4, f"{OLDEST} were removed."),
        ({}, {"first": 0, "since": 0}, "timestamp", DAY_3, OffsetRange(first=0, end=20)),
        (
            {},
            {"first": 20, "end": 20, "oldest": None, "since": -1},
            "timestamp",
            DAY_5,
            "no record of flights/0 is left; those before offset 20 were removed.",
        ),
        (
            {},
            {"first": 0, "end": 5},
            None,
            None,
            "flights/0 ends with offset 5, and the stream has read up to 20: it is another one.",
        ),
    ],
)
def test_what_is_read_of_a_partition(
    declared: dict[str, Any],
    seen: dict[str, Any],
    column: str | None,
    since: datetime | None,
    expected: OffsetRange | str,
) -> None:
    sights = {"flights": {0: sight(**seen)}}

    bound = plan_topic_bound(sights, source(**declared), input_name="records", column=column, since=since)

    assert (bound.problem or bound.ranges["flights"][0]) == expected
    assert bound.is_gone is isinstance(expected, str)


@pytest.mark.parametrize("column", [None, "timestamp"])
def test_a_compacted_topic_is_never_whole(column: str | None) -> None:
    """Its first offset stays 0, and the records that are gone lie in its middle."""
    sights = {"flights": {0: sight(first=0, oldest=DAY_3, since=0)}}

    bound = plan_topic_bound(sights, source(), input_name="records", column=column, since=DAY_4, compacted={"flights"})

    assert (bound.problem, bound.is_gone) == (
        "flights is compacted (`cleanup.policy`): Kafka removes records in its middle, and does not say which.",
        True,
    )
    assert bound.way_out.startswith("Keep every record in a table: ")


def test_the_time_from_which_all_records_are_left_is_that_of_the_latest_partition() -> None:
    removed = {0: sight(since=12), 1: sight(since=12, oldest=DAY_3), 2: sight(first=0, since=12, oldest=DAY_5)}

    bound = plan_topic_bound({"flights": removed}, source(), input_name="records", column="timestamp", since=DAY_5)

    assert (bound.complete_after, bound.is_by_record_time) == (DAY_4, True)


def test_a_column_of_the_value_comes_before_the_time_of_the_record() -> None:
    value = {"format": "json", "columns": [{"name": "timestamp", "type": "timestamptz"}]}

    bound = plan_topic_bound(
        {"flights": {0: sight(first=0)}}, source(value=value), input_name="records", column="timestamp", since=None
    )

    assert not bound.is_by_record_time


@pytest.mark.parametrize(
    ("declared", "seen", "first"),
    [
        ({}, {"first": 0}, 0),
        ({}, {}, 10),
        ({}, {"first": 0, "end": 19}, None),
        ({"starting": {"flights": {0: 10}}}, {}, 10),
        ({"starting": DAY_3}, {"first": 0}, None),
    ],
    ids=[
        "all are left",
        "some were removed",
        "it is another topic",
        "those before the start were removed",
        "it begins with a time",
    ],
)
def test_all_records_that_are_left_are_known_unless_the_topic_begins_with_a_time(
    declared: dict[str, Any], seen: dict[str, Any], first: int | None
) -> None:
    sights = {"flights": {0: sight(since=12, **seen)}}

    by_time = plan_topic_bound(sights, source(**declared), input_name="records", column="timestamp", since=DAY_5)
    by_column = plan_topic_bound(sights, source(**declared), input_name="records", column="at", since=None)

    expected = None if first is None else {"flights": {0: OffsetRange(first=first, end=20)}}
    whole = by_time.whole()
    assert (whole.ranges if isinstance(whole, TopicBound) else whole) == expected
    assert by_time.longer() == whole
    assert by_time.has_lost_records == (seen.get("first") != 0)
    assert by_column.longer() == by_column
    assert by_column.whole() == replace(by_column, column=None)
