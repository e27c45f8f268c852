"""Whether a rejected record is of the topic or table that has its name now."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sluice.backfill.replayable_rows import PresentSource
from sluice.publication.resolved_rejections import RejectedAt

SEEN = {"topic t of k": "T2", "input table raw.r": "R1"}
GENERATIONS = {
    1: {"topic t of k": "T1", "input table raw.r": "R1"},
    2: SEEN,
    3: {**SEEN, "topic t of k since batch": "7"},
    4: {"input table raw.r": "R1"},
}
OF_TOPIC = '{"topic":"t","partition":0,"offset":7}'
OF_SHARD = '{"stream":"s","shard":"0","sequence_number":"7"}'


def at(place: str, generation: int, batch: int = 0) -> RejectedAt:
    """A row that a batch has rejected."""
    return RejectedAt(place=place, generation=generation, batch=batch)


@pytest.mark.parametrize(
    ("row", "is_present", "is_another"),
    [
        (at(OF_TOPIC, 1), False, True),
        (at(OF_TOPIC, 2), True, False),
        (at(OF_TOPIC, 3, 6), False, True),
        (at(OF_TOPIC, 3, 7), True, False),
        (at(OF_TOPIC, 4), False, False),
        (at(OF_TOPIC.replace('"t"', '"gone"'), 2), False, False),
        (at('{"id":7}', 1), False, None),
        (at('{"id":7}', 2), True, False),
        (at('payload {"topic":"t","partition":0,"offset":7}', 3, 6), False, None),
        (at(OF_SHARD, 1), False, None),
        (at(OF_SHARD, 2), True, False),
    ],
)
def test_a_record_is_of_what_its_generation_knew_by_the_same_id(
    row: RejectedAt, *, is_present: bool, is_another: bool | None
) -> None:
    known = cast(dict[int, Any], GENERATIONS)
    present = PresentSource(ledger=cast(Any, None), stream="s", seen=SEEN, known=known)
    assert (present.has(row), present.had_another(row)) == (is_present, is_another)


@pytest.mark.parametrize(("now", "is_present"), [("R1", True), ("R2", False)])
@pytest.mark.parametrize("place", [OF_TOPIC, OF_SHARD])
def test_a_position_of_a_topic_or_shard_in_a_table_is_of_the_table(place: str, now: str, *, is_present: bool) -> None:
    """As `bronze.flights` keeps where its rows were in Kafka."""
    seen, known = {"input table raw.r": now}, {1: {"input table raw.r": "R1"}}
    present = PresentSource(ledger=cast(Any, None), stream="s", seen=seen, known=cast(dict[int, Any], known))
    assert (present.has(at(place, 1)), present.had_another(at(place, 1))) == (is_present, not is_present)


@pytest.mark.parametrize("place", [OF_SHARD, '{"id":7}'])
def test_a_record_of_a_kinesis_stream_is_known_by_a_number_that_does_not_come_again(place: str) -> None:
    seen, known = {"Kinesis stream s of k": "K2"}, {1: {"Kinesis stream s of k": "K1"}}
    present = PresentSource(ledger=cast(Any, None), stream="s", seen=seen, known=cast(dict[int, Any], known))
    is_numbered = place == OF_SHARD
    assert (present.has(at(place, 1)), present.had_another(at(place, 1))) == (is_numbered, not is_numbered)


def test_a_record_of_files_has_nothing_that_could_be_another() -> None:
    present = PresentSource(ledger=cast(Any, None), stream="s", seen={}, known={1: {}})
    assert (present.has(at('{"id":7}', 1)), present.had_another(at('{"id":7}', 1))) == (True, False)
