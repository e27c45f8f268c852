"""Whether a rejected record is of the topic or table that has its name now."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sluice.backfill.present_source import PresentSource
from sluice.publication.resolved_rejections import RejectedAt

SEEN = {"topic t of k": "T2", "input table raw.r": "R1"}
GENERATIONS = {
    1: {"topic t of k": "T1", "input table raw.r": "R1"},
    2: SEEN,
    3: {**SEEN, "topic t of k since batch": "7"},
    4: {"input table raw.r": "R1"},
}
OF_TOPIC = '{"topic":"t","partition":0,"offset":7}'


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
        (at('{"id":7}', 1), False, True),
        (at('{"id":7}', 2), True, False),
        (at('payload {"topic":"t","partition":0,"offset":7}', 3, 6), False, True),
        (at('{"stream":"s","shard":"0","sequence_number":"7"}', 1), True, False),
    ],
)
def test_a_record_is_of_what_its_generation_knew_by_the_same_id(
    row: RejectedAt, *, is_present: bool, is_another: bool
) -> None:
    known = cast(dict[int, Any], GENERATIONS)
    present = PresentSource(ledger=cast(Any, None), stream="s", seen=SEEN, known=known)
    assert (present.has(row), present.had_another(row)) == (is_present, is_another)


@pytest.mark.parametrize(("now", "is_present"), [("R1", True), ("R2", False)])
def test_a_position_of_a_topic_in_a_table_is_of_the_table(now: str, *, is_present: bool) -> None:
    """As `bronze.flights` keeps where its rows were in Kafka."""
    seen, known = {"input table raw.r": now}, {1: {"input table raw.r": "R1"}}
    present = PresentSource(ledger=cast(Any, None), stream="s", seen=seen, known=cast(dict[int, Any], known))
    assert (present.has(at(OF_TOPIC, 1)), present.had_another(at(OF_TOPIC, 1))) == (is_present, not is_present)


def test_a_record_of_files_has_nothing_that_could_be_another() -> None:
    present = PresentSource(ledger=cast(Any, None), stream="s", seen={}, known={1: {}})
    assert (present.has(at('{"id":7}', 1)), present.had_another(at('{"id":7}', 1))) == (True, False)
