"""Which changes of a declaration a checkpoint can follow."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.streams import continuous_stream

from sluice.checkpoints.compatibility import STATE_OPERATORS, fingerprint_of, refused_changes

KAFKA = {"connection": "flights_kafka", "topics": ["flights"]}


def told(*, operators: tuple[str, ...] | None = None, **more: Any) -> dict[str, str]:
    """The fingerprint of the sample stream with some keys of its declaration changed."""
    return fingerprint_of(continuous_stream(**more).declaration, state_operators=operators)


def reading(**kafka: Any) -> dict[str, Any]:
    """An input that reads Kafka."""
    return {"inputs": {"records": {"stream": {"kafka": {**KAFKA, **kafka}}}}}


def test_before_the_first_start_everything_is_compatible() -> None:
    assert refused_changes({}, told()) == ()


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"trigger": {"processing_time": "9 seconds"}},
        {"description": "Other words"},
        {"outputs": {"rows": {"iceberg": {"table": "silver.other"}}}},
        {"transformation": {"python": "transformations.py:other"}},
        {"state": {"provider": "hdfs", "shuffle_partitions": 7}},
        reading(max_offsets_per_batch=5),
        reading(starting="latest"),
    ],
)
def test_what_a_stateless_checkpoint_does_not_hold_may_change(changed: dict[str, Any]) -> None:
    assert refused_changes(told(operators=()), told(**changed)) == ()


@pytest.mark.parametrize(
    ("changed", "phrase"),
    [
        (
            reading(topics=["others"]),
            "input records was `kafka connection=flights_kafka topics=flights` "
            "and is now `kafka connection=flights_kafka topics=others`",
        ),
        (
            {"inputs": {"records": {"stream": {"rate": {}}}}},
            "input records was `kafka connection=flights_kafka topics=flights` and is now `rate`",
        ),
    ],
)
def test_another_source_is_refused(changed: dict[str, Any], phrase: str) -> None:
    assert refused_changes(told(), told(**changed)) == (phrase,)


def test_a_source_more_or_less_is_refused() -> None:
    two: dict[str, Any] = {"inputs": {**reading()["inputs"], "more": {"stream": {"rate": {}}}}}
    assert refused_changes(told(), told(**two)) == ("input more was `nothing` and is now `rate`",)
    assert refused_changes(told(**two), told()) == ("input more was `rate` and is now `nothing`",)


def test_the_store_and_the_parts_are_frozen_where_there_is_state() -> None:
    recorded = told(operators=("Aggregate carrier",), state={"shuffle_partitions": 4})
    assert refused_changes(recorded, told(state={"shuffle_partitions": 8, "provider": "hdfs"})) == (
        "state provider was `rocksdb` and is now `hdfs`",
        "state shuffle_partitions was `4` and is now `8`",
    )


def test_operators_and_keys_are_compared_where_the_query_was_planned() -> None:
    recorded = told(operators=("Aggregate carrier",))
    assert refused_changes(recorded, told()) == ()
    assert refused_changes(recorded, told(operators=("Aggregate carrier",))) == ()
    assert refused_changes(recorded, told(operators=("Aggregate carrier, origin",))) == (
        f"{STATE_OPERATORS} was `Aggregate carrier` and is now `Aggregate carrier, origin`",
    )
    assert refused_changes(told(operators=()), told(operators=("Deduplicate id",))) == (
        f"{STATE_OPERATORS} was `nothing` and is now `Deduplicate id`",
    )
