"""Which changes of a declaration a checkpoint can follow."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.streams import continuous_stream

from sluice.checkpoints.compatibility import (
    PROCESSOR_KEYS,
    STATE_MEANING,
    STATE_OPERATORS,
    STATE_VERSION,
    fingerprint_of,
    refused_changes,
)

KAFKA = {"connection": "flights_kafka", "topics": ["flights"]}


def described(
    *, operators: tuple[str, ...] | None = None, meaning: tuple[str, ...] | None = None, **more: Any
) -> dict[str, str]:
    """The fingerprint of the sample stream with some keys of its declaration changed."""
    return fingerprint_of(continuous_stream(**more).declaration, state_operators=operators, state_meaning=meaning)


def reading(**kafka: Any) -> dict[str, Any]:
    """An input that reads Kafka."""
    return {"inputs": {"records": {"stream": {"kafka": {**KAFKA, **kafka}}}}}


def test_before_the_first_start_everything_is_compatible() -> None:
    assert refused_changes({}, described()) == ()


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
    assert refused_changes(described(operators=()), described(**changed)) == ()


def test_where_a_table_was_begun_may_be_declared_anew_because_the_checkpoint_decides() -> None:
    table = {"table": "bronze.flights"}
    former = described(inputs={"records": {"stream": {"iceberg": table}}})
    for starting in ("latest", "2026-01-31T00:00:00Z", {"snapshot_id": 7}):
        wanted = described(inputs={"records": {"stream": {"iceberg": {**table, "starting": starting}}}})
        assert refused_changes(former, wanted) == ()


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
    assert refused_changes(described(), described(**changed)) == (phrase,)


def test_a_source_more_or_less_is_refused() -> None:
    two: dict[str, Any] = {"inputs": {**reading()["inputs"], "more": {"stream": {"rate": {}}}}}
    assert refused_changes(described(), described(**two)) == ("input more was `nothing` and is now `rate`",)
    assert refused_changes(described(**two), described()) == ("input more was `rate` and is now `nothing`",)


def test_the_store_and_the_parts_are_frozen_where_there_is_state() -> None:
    recorded = described(operators=("Aggregate carrier",), state={"shuffle_partitions": 4})
    assert refused_changes(recorded, described(state={"shuffle_partitions": 8, "provider": "hdfs"})) == (
        "state provider was `rocksdb` and is now `hdfs`",
        "state shuffle_partitions was `4` and is now `8`",
    )


def test_operators_and_keys_are_compared_where_the_query_was_planned() -> None:
    recorded = described(operators=("Aggregate carrier",))
    assert refused_changes(recorded, described()) == ()
    assert refused_changes(recorded, described(operators=("Aggregate carrier",))) == ()
    assert refused_changes(recorded, described(operators=("Aggregate carrier, origin",))) == (
        f"{STATE_OPERATORS} was `Aggregate carrier` and is now `Aggregate carrier, origin`",
    )
    assert refused_changes(described(operators=()), described(operators=("Deduplicate id",))) == (
        f"{STATE_OPERATORS} was `nothing` and is now `Deduplicate id`",
    )


def test_the_meaning_and_the_version_of_the_state_are_compared() -> None:
    sums = "Aggregate by k string: sum(a) bigint, sum(b) bigint"
    swapped = "Aggregate by k string: sum(b) bigint, sum(a) bigint"
    recorded = described(operators=("Aggregate k",), meaning=(sums,))
    assert refused_changes(recorded, described(operators=("Aggregate k",), meaning=(swapped,))) == (
        f"{STATE_MEANING} was `{sums}` and is now `{swapped}`",
    )
    assert refused_changes(recorded, described(state={"version": 2})) == (f"{STATE_VERSION} was `1` and is now `2`",)
    limited = described(operators=(), meaning=("GlobalLimit 3",))
    assert refused_changes(limited, described(state={"version": 2})) == (f"{STATE_VERSION} was `1` and is now `2`",)
    assert refused_changes(described(operators=(), meaning=()), described(state={"version": 2})) == ()


def test_a_checkpoint_is_bound_to_the_keys_of_its_processors() -> None:
    declaration = continuous_stream().declaration
    by_user, by_page = (fingerprint_of(declaration, processor_keys=(keys,)) for keys in ("user string", "page string"))
    assert refused_changes(by_user, by_page) == (f"{PROCESSOR_KEYS} was `user string` and is now `page string`",)
