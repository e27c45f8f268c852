"""The oracle by hand: small cases whose right end a reader can work out."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.differential.case import Case, Output, Row, Step, source_kinds
from tests.differential.oracle import Numbers, expected

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

PLAIN = Case(
    seed=0,
    source="iceberg",
    key="long",
    delay_seconds=None,
    shape="plain",
    where="",
    join=None,
    computed=None,
    step=Step(),
    outputs=(Output(mode="append"),),
    lookup=(),
    turns=(),
)


def row(number: int, **values: Any) -> Row:
    """A row in which all else is null."""
    return {**dict.fromkeys(source_kinds("long")), "n": number, **values}


def keys(case: Case, *batches: list[Row]) -> list[tuple[Any, ...]]:
    """The numbers and keys of the first output, in order."""
    return sorted((found[:2] for found in expected(case, batches).tables["output0"]), key=repr)


def test_a_merge_keeps_the_newest_row_of_a_key_and_a_null_is_one() -> None:
    case = replace(PLAIN, outputs=(Output(mode="merge", keys=("k",), ordering=("n",)),))

    assert keys(case, [row(1, k=1), row(2, k=1), row(3)], [row(4), row(5, k=2)]) == [(2, 1), (4, None), (5, 2)]


def test_rows_that_tie_are_refused_and_change_nothing() -> None:
    case = replace(PLAIN, outputs=(Output(mode="append"), Output(mode="merge", keys=("k",), ordering=("v",))))

    found = expected(case, [[row(1, k=1, v=1)], [row(2, k=1, v=1), row(3, k=1, v=1)], [row(4, k=2)]])

    assert found.refusal == "two different rows of a batch"
    assert len(found.batches) == 1
    assert {name: [held[0] for held in rows] for name, rows in found.tables.items()} == {"output0": [1], "output1": [1]}


def test_a_batch_sees_what_the_static_table_held_when_it_was_computed() -> None:
    case = replace(PLAIN, join="anti", lookup=({"k2": "x", "label": ""},), lookup_added=({"k2": "y", "label": ""},))
    batches = [[row(number, k2="x"), row(number + 1, k2="y")] for number in (1, 3, 5)]

    found = {
        at: [held[0] for held in expected(case, batches, lookup_changes_at=at).tables["output0"]] for at in (None, 0, 1)
    }

    assert found == {None: [2, 4, 6], 0: [], 1: [2]}


def test_a_feed_deletes_and_ignores_what_is_older() -> None:
    case = replace(PLAIN, outputs=(Output(mode="merge", keys=("k",), ordering=("v",), is_feed=True),))
    first = [row(1, k=1, v=5, op="c"), row(2, k=2, v=5, op="c"), row(3, k=3, v=5, op="c"), row(4, k=9, v=1, op="d")]
    second = [row(5, k=1, v=4, op="u"), row(6, k=2, v=6, op="d"), row(7, k=3, v=5, op="u")]

    assert keys(case, first, second) == [(1, 1), (7, 3)]


def test_windows_are_final_when_the_watermark_has_passed_them() -> None:
    window = Step(kind="window", size_seconds=10, slide_seconds=10)
    case = replace(PLAIN, step=window, delay_seconds=10)
    batches = [
        [row(1, moment=NOON), row(2, moment=NOON + timedelta(seconds=30)), row(3)],
        [row(4, moment=NOON + timedelta(seconds=9))],  # by the watermark of the batch before, which had none
        [row(5, moment=NOON + timedelta(seconds=9))],  # late
    ]

    found = expected(case, batches)

    assert [held[:3] for held in found.tables["output0"]] == [(NOON, NOON + timedelta(seconds=10), 2)]
    assert found.batches == [
        Numbers(input_rows=3, published={"output0": 0}, late=0, duplicate=0),
        Numbers(input_rows=1, published={"output0": 1}, late=0, duplicate=0),
        Numbers(input_rows=1, published={"output0": 0}, late=1, duplicate=0),
    ]


def test_only_the_partitions_of_a_batch_are_replaced() -> None:
    partitioning = (("k", "identity", None), ("day", "month", None))
    case = replace(PLAIN, outputs=(Output(mode="overwrite_partitions", partitioning=partitioning),))
    january, february = NOON.date(), NOON.date().replace(month=2)
    first = [row(1, k=1, day=january), row(2, k=1, day=february), row(3, day=january), row(4)]

    assert keys(case, first, [row(5, k=1, day=january), row(6)]) == [(2, 1), (3, None), (5, 1), (6, None)]


def test_each_distinct_row_counts_once() -> None:
    case = replace(PLAIN, step=Step(kind="dedupe", by=("k", "word")), outputs=(Output(mode="append"),) * 2)

    found = expected(case, [[row(1, k=1), row(2, k=1), row(3)], [row(4, k=1, word="a"), row(5)]])

    assert sorted(found.tables["output0"], key=repr) == [(1, "a"), (1, None), (None, None)]
    assert [(batch.published["output1"], batch.duplicate) for batch in found.batches] == [(2, 2), (1, 2)]
