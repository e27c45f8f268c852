"""Rows are merged by keys of every kind: a null is a value, and Iceberg may order a type otherwise than Spark.

Every run merges by numbers (`test_change_feeds.py`), and by text and nulls in random streams (`test_differential.py`).
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fixtures.streams_of_tables import reading, writing
from tests.fixtures.workshop import Workshop


@pytest.fixture
def stream_name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


@pytest.mark.drill  # every test run has streams of `test_differential.py` whose keys are null
def test_a_null_in_a_key_is_a_value_like_any_other(workshop: Workshop, stream_name: str) -> None:
    """Also where the key is a partition, and where all keys of a batch are null."""
    columns = {"region": "string", "at": "timestamptz", "turn": "long"}
    source = workshop.declare_table("source", columns)
    outputs = {}
    for table, partitioning in (
        ("plain", []),
        ("by_region", [{"column": "region"}]),
        ("by_day", [{"column": "at", "transform": "day"}]),
    ):
        more: dict[str, Any] = {"partitioning": partitioning} if partitioning else {}
        name = workshop.declare_table(table, columns, **more)
        outputs[table] = {"iceberg": {"table": name, "mode": "merge", "keys": ["region", "at"]}}
    workshop.declare_stream(
        stream_name,
        python="""
            def transform(records):
                return {"plain": records, "by_region": records, "by_day": records}
        """,
        inputs=reading(source),
        outputs=outputs,
    )
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    keys = [(None, None), ("here", None), (None, noon), ("here", noon)]

    for turn, some in enumerate((keys, keys, keys[:1])):
        workshop.append("source", [{"region": region, "at": at, "turn": turn} for region, at in some])
        workshop.run(stream_name)

    rows = [("here", noon, 1), ("here", None, 1), (None, noon, 1), (None, None, 2)]
    for table in outputs:
        assert [tuple(row.values()) for row in workshop.rows(table)] == rows


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "transform", "first", "again"),
    [
        pytest.param(
            "uuid",
            "bucket",
            ["ffffffff-0000-4000-8000-00000000000a", "00000000-0000-0000-0000-000000000001"],
            [],
        ),
        pytest.param(
            "uuid",
            "identity",
            ["ffffffff-0000-4000-8000-00000000000a", "00000000-0000-0000-0000-000000000001"],
            [],
        ),
        ("double", "identity", ["-0.0", "7.5"], ["0.0", "7.5"]),
    ],
)
def test_keys_whose_order_is_another_in_iceberg_are_found_again(
    workshop: Workshop, stream_name: str, kind: str, transform: str, first: list[str], again: list[str]
) -> None:
    part = {"column": "key", "transform": transform, **({"width": 2} if transform == "bucket" else {})}
    source = workshop.declare_table("source", {"key": "string", "at": "long"})
    target = workshop.declare_table("target", {"key": kind, "at": "long"}, partitioning=[part])
    text = "SELECT key, at FROM records" if kind == "uuid" else "SELECT CAST(key AS double) AS key, at FROM records"
    outputs = writing(target, mode="merge", keys=["key"], ordering_column="at")
    workshop.declare_stream(stream_name, sql=text, inputs=reading(source), outputs=outputs)
    for at, keys in enumerate((first, again or first)):
        workshop.append("source", [{"key": key, "at": at} for key in keys])
        workshop.run(stream_name)

    assert [row["at"] for row in workshop.rows("target")] == [1, 1]
