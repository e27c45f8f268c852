"""A change feed is merged: rows come, change and go, the newest change of a key counts, and none of it twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import pytest
from pyspark.sql import functions as fn
from tests.fixtures.drill import sampled
from tests.fixtures.streams_of_tables import dying_at, reading, writing
from tests.fixtures.workshop import Workshop

from sluice.errors import DeliveryError
from sluice.publication.crash_points import CrashPoint
from sluice.stored_keys import OPERATION_COLUMN
from sluice_spark.run.stop_request import StopReason, StopRequest

COLUMNS = {"order": "long", "at": "long", "word": "string"}  # a column named like a word of SQL, knowingly
Change = tuple[int, int | None, str | None, str | None]


@pytest.fixture
def stream_name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


REJECTING = """
    from pyspark.sql import functions as fn

    def transform(records):
        position = fn.to_json(fn.struct("order")).alias("position")
        reason = fn.lit("a negative number").alias("reason")
        rejected = records.where("`order` < 0").select(fn.col("word").alias("payload"), position, reason)
        return {"copies": records.where("`order` >= 0"), "quarantine": rejected}
"""


def declare(
    workshop: Workshop,
    name: str,
    *,
    source: dict[str, Any] | None = None,
    refuses: bool = False,
    python: str = "",
    **output: Any,
) -> None:
    """A stream that brings a table up to date with a feed; continuous when `source` is given: the reader's options.
    refuses: whether it has a quarantine. python: its transformation in place of a query."""
    feed = workshop.declare_table("source", {**COLUMNS, "op": "string"})
    target = workshop.declare_table("target", COLUMNS)
    read = reading(feed)
    how: dict[str, Any] = {}
    if source is not None:
        read["records"]["stream"]["iceberg"] |= source
        how = {"mode": "continuous", "trigger": {"processing_time": "10 milliseconds"}}
    merge = {"mode": "merge", "keys": ["order"], "operation_column": "op", "ordering_column": "at"}
    sql = "" if python else "SELECT `order`, at, word, op FROM records"
    workshop.declare_stream(
        name, python=python, sql=sql, inputs=read, outputs=writing(target, **merge | output), quarantine=refuses, **how
    )


def feed(workshop: Workshop, changes: Sequence[Change]) -> None:
    """Changes arrive: key, ordering, content, operation."""
    names = ("order", "at", "word", "op")
    workshop.append("source", [dict(zip(names, change, strict=True)) for change in changes])


def rows(workshop: Workshop) -> list[tuple[Any, ...]]:
    """What the target holds."""
    return [tuple(row.values()) for row in workshop.rows("target")]


def test_rows_come_change_and_go_and_a_late_change_changes_nothing(workshop: Workshop, stream_name: str) -> None:
    declare(workshop, stream_name)
    feed(workshop, [(1, 5, "a", "c"), (2, 5, "b", "r"), (3, 5, "c", "u"), (4, 5, "d", "c"), (4, 6, None, "d")])
    workshop.run(stream_name)
    assert rows(workshop) == [(1, 5, "a"), (2, 5, "b"), (3, 5, "c")]

    feed(
        workshop, [(1, 8, "newest", "u"), (1, 7, None, "d"), (2, 6, None, "d"), (3, None, None, "d"), (9, 1, None, "d")]
    )
    workshop.run(stream_name)
    assert rows(workshop) == [(1, 8, "newest"), (3, 5, "c")]

    feed(workshop, [(1, 7, "late", "u"), (3, 4, None, "d"), (8, 1, None, "d")])  # nothing of it has an effect
    (batch,) = workshop.run(stream_name).batches
    assert rows(workshop) == [(1, 8, "newest"), (3, 5, "c")]
    assert (batch.key.batch, batch.published_rows) == (2, {"copies": 3})

    feed(workshop, [(1, 9, None, "d")])
    workshop.run(stream_name)  # the mark went past the batch that changed nothing
    assert rows(workshop) == [(3, 5, "c")]
    assert workshop.table("target").schema().column_names == list(COLUMNS)
    staging = workshop.table(f"staging.{stream_name}__copies").schema().column_names
    assert staging == [*COLUMNS, OPERATION_COLUMN]


@pytest.mark.full
def test_without_the_guard_a_late_change_would_win(workshop: Workshop, stream_name: str) -> None:
    declare(workshop, stream_name)
    feed(workshop, [(1, 5, "new", "c")])
    workshop.run(stream_name)
    feed(workshop, [(1, 4, "late", "u")])

    with patch("sluice_spark.delivery.merge_statement._is_newer", return_value=fn.lit(True)):
        workshop.run(stream_name)

    assert rows(workshop) == [(1, 4, "late")]


@pytest.mark.full
def test_what_is_staged_keeps_its_meaning_for_the_driver_that_recovers_it(workshop: Workshop, stream_name: str) -> None:
    """The first driver dies with a batch staged; the next one has another declaration of what operations are called."""
    declare(workshop, stream_name, operations={"insert": ["I"], "update": ["U"], "delete": ["D"]})
    feed(workshop, [(1, 1, "a", "I"), (2, 1, "b", "I")])
    workshop.run(stream_name)
    feed(workshop, [(1, 2, None, "D"), (2, 2, "changed", "U")])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream_name, reached=dying_at(CrashPoint.STAGED))
    assert rows(workshop) == [(1, 1, "a"), (2, 1, "b")]
    declare(workshop, stream_name)

    workshop.run(stream_name)
    assert rows(workshop) == [(2, 2, "changed")]

    workshop.forget_last_commit(stream_name)
    workshop.run(stream_name)
    assert rows(workshop) == [(2, 2, "changed")]


@pytest.mark.full
def test_changes_of_one_time_are_ordered_by_a_second_column(workshop: Workshop, stream_name: str) -> None:
    """As Debezium writes a transaction: all of its changes have one time, and only their place in the log differs."""
    columns = {"order": "long", "at": "long", "place": "long", "word": "string"}
    source = workshop.declare_table("source", {**columns, "op": "string"})
    target = workshop.declare_table("target", columns)
    merge = {"mode": "merge", "keys": ["order"], "operation_column": "op", "ordering_columns": ["at", "place"]}
    workshop.declare_stream(
        stream_name,
        sql="SELECT `order`, at, place, word, op FROM records",
        inputs=reading(source),
        outputs=writing(target, **merge),
    )

    def send(*changes: tuple[Any, ...]) -> None:
        workshop.append("source", [dict(zip((*columns, "op"), change, strict=True)) for change in changes])
        workshop.run(stream_name)

    keys = range(20)
    send(*((key, 5, 1, "inserted", "c") for key in keys), *((key, 5, 2, f"updated {key}", "u") for key in keys))
    assert rows(workshop) == [(key, 5, 2, f"updated {key}") for key in keys]

    send((0, 6, 1, "again", "u"), (0, 6, 2, None, "d"), (1, 5, 1, "late", "u"), (2, 5, 3, "later", "u"))
    assert rows(workshop)[:2] == [(1, 5, 2, "updated 1"), (2, 5, 3, "later")]

    send((1, 5, 2, None, "d"), (2, 5, None, None, "d"), (3, None, 9, None, "d"))
    assert rows(workshop)[:2] == [(2, 5, 3, "later"), (3, 5, 2, "updated 3")]  # of a tie the later change counts


@pytest.mark.full  # every run: rows that tie without operations (`test_merges.py`)
def test_an_insert_and_a_delete_of_one_time_stop_the_batch(workshop: Workshop, stream_name: str) -> None:
    declare(workshop, stream_name)
    feed(workshop, [(1, 5, "a", "c"), (1, 5, "a", "d")])

    with pytest.raises(DeliveryError, match=r'two different rows of a batch have the key {"order":1} and the same at'):
        workshop.run(stream_name)


@pytest.mark.parametrize("operation", sampled(["x", None], [None], full=["x"]))
def test_an_unknown_operation_stops_the_batch_by_name(
    workshop: Workshop, stream_name: str, operation: str | None
) -> None:
    declare(workshop, stream_name)
    feed(workshop, [(1, 1, "a", "c"), (2, 1, "b", operation)])

    known = f"for {workshop.table_name('target')}, known are c, r, u, d, at `op`"
    with pytest.raises(DeliveryError, match=f"the operation of the change is unknown: {operation or 'null'}; {known}"):
        workshop.run(stream_name)

    assert rows(workshop) == []


@pytest.mark.full
def test_an_unknown_operation_goes_to_the_quarantine_of_a_stream_that_has_one(
    workshop: Workshop, stream_name: str
) -> None:
    declare(workshop, stream_name, source={"max_files_per_batch": 1}, refuses=True)
    feed(workshop, [(1, 1, "a", "c"), (2, 1, "b", "x"), (3, 7, "c", None)])
    feed(workshop, [(1, 2, None, "d"), (4, 1, "d", "c")])

    batches = workshop.run(stream_name, stop_when=lambda batch: batch.key.batch == 1).batches

    assert rows(workshop) == [(4, 1, "d")]
    refused = workshop.rows(f"quarantine.{stream_name}")
    unknown = "the operation of the change is unknown"
    known = f"; for {workshop.table_name('target')}, known are c, r, u, d, at `op`"
    assert [(row["batch"], row["reason"], row["position"], row["payload"]) for row in refused] == [
        (0, f"{unknown}: null{known}", '{"order":3,"at":7}', '{"order":3,"at":7,"word":"c"}'),
        (0, f"{unknown}: x{known}", '{"order":2,"at":1}', '{"order":2,"at":1,"word":"b","op":"x"}'),
    ]
    assert [(batch.published_rows, batch.refused_rows) for batch in batches] == [({"copies": 1}, 2), ({"copies": 2}, 0)]


@pytest.mark.full  # every run stops at an unknown operation
def test_unknown_operations_are_beside_the_rows_that_the_transformation_rejects_whatever_the_order_of_its_columns(
    workshop: Workshop, stream_name: str
) -> None:
    declare(workshop, stream_name, refuses=True, python=REJECTING)
    feed(workshop, [(1, 1, "a", "c"), (-2, 1, "b", "c"), (3, 1, "c", "x")])

    workshop.run(stream_name)

    assert rows(workshop) == [(1, 1, "a")]
    refused = workshop.rows(f"quarantine.{stream_name}")
    assert [(row["kind"], row["path"], row["quotes_data"], row["position"], row["payload"]) for row in refused] == [
        (None, None, None, '{"order":-2}', "b"),
        ("unknown_operation", "op", True, '{"order":3,"at":1}', '{"order":3,"at":1,"word":"c","op":"x"}'),
    ]


@pytest.mark.full
def test_the_newest_change_of_a_group_counts_whichever_batch_brought_it(workshop: Workshop, stream_name: str) -> None:
    declare(workshop, stream_name, source={"max_files_per_batch": 1}, publish_every="1 hour")
    feed(workshop, [(1, 9, "newest", "c"), (2, 1, "b", "c"), (3, 1, "c", "c")])
    feed(workshop, [(1, 8, None, "d"), (2, 2, None, "d"), (3, 1, "later", "u")])
    feed(workshop, [(1, 7, "old", "u")])
    stop, staged = StopRequest(), list[CrashPoint]()

    def reached(here: CrashPoint) -> None:
        staged.extend([here] if here is CrashPoint.STAGED else [])
        if len(staged) == 3:
            stop.make(StopReason.STOPPED)

    result = workshop.run(stream_name, stop=stop, reached=reached)

    assert rows(workshop) == [(1, 9, "newest"), (3, 1, "later")]
    assert len({batch.snapshot_ids["copies"] for batch in result.batches}) == 1
