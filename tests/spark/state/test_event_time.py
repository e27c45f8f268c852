"""What comes late, twice and out of order: windows, sessions, de-duplication and joins equal a model of them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.fixtures import event_time as model
from tests.fixtures.event_time import EPOCH, Event
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import BatchObservation, record_batch, totals

CONTINUOUS: dict[str, Any] = {"mode": "continuous", "trigger": {"processing_time": "500 milliseconds"}}
DELAY = 10

EXAMPLES = int(os.environ.get("SLUICE_TEST_EVENT_STREAMS", "1"))
IS_DRILL = EXAMPLES > 1

on_random_streams = settings(
    max_examples=EXAMPLES,
    phases=(Phase.explicit, Phase.generate),  # a smaller seed is no smaller stream
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # each example makes a workshop of its own of it
)
"""Each stream costs a minute of Spark on a busy machine; `make drill` runs more of them, and longer ones."""

COUNTS = {"key": "string", "start": "timestamptz", "end": "timestamptz", "events": "long", "total": "long"}
EVENTS = {"id": "long", "key": "string", "at": "timestamptz"}

WINDOWS = """
    from pyspark.sql import functions as fn

    def transform(events):
        def counted(window):
            groups = events.groupBy("key", window.alias("span")).agg(
                fn.count("*").alias("events"), fn.sum("id").alias("total")
            )
            return groups.select("key", "span.start", "span.end", "events", "total")

        return {
            "tumbling": counted(fn.window("at", "10 seconds")),
            "sliding": counted(fn.window("at", "20 seconds", "5 seconds")),
            "sessions": counted(fn.session_window("at", "4 seconds")),
            "distinct": events.dropDuplicates(["id", "at"]),
            "within": events.dropDuplicatesWithinWatermark(["id"]),
        }
"""


def streamed(
    workshop: Workshop, name: str, streams: dict[str, list[list[Event]]], *, restart_after: int
) -> list[BatchObservation]:
    """Run a stream over batches of its inputs, with a restart in between; what it did, batch by batch."""
    (length,) = {len(stream) for stream in streams.values()}
    done: list[BatchObservation] = []
    for numbers in (range(restart_after), range(restart_after, length)):
        for number in numbers:
            for table, stream in streams.items():
                workshop.append(table, [event.row() for event in stream[number]])
        is_last = numbers.stop == length
        done += workshop.run(name, stop_after_batches=len(numbers) + is_last).batches
    for batch in done:
        record_batch(workshop.ledger, batch)
    return done


def with_empty_batches(stream: list[list[Event]], done: Sequence[BatchObservation]) -> list[list[Event]]:
    """The stream as Spark cut it: batches without rows follow those that move the watermark."""
    rows = iter(stream)
    cut = [next(rows) if batch.input_rows else [] for batch in done]
    assert next(rows, None) is None
    return cut


def watermarks(done: Sequence[BatchObservation]) -> list[int]:
    """The watermark of each batch, in seconds after the model's epoch."""
    return [int((batch.watermark - EPOCH).total_seconds()) if batch.watermark else 0 for batch in done]


def found(workshop: Workshop, table: str) -> list[tuple[object, ...]]:
    """A table's rows, as the model writes them."""
    return sorted(
        (
            tuple(int((value - EPOCH).total_seconds()) if hasattr(value, "hour") else value for value in row.values())
            for row in workshop.rows(table)
        ),
        key=repr,
    )


@on_random_streams
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.full  # every run: random streams (`test_differential.py`)
def test_windows_sessions_and_distinct_events_are_those_of_the_model(workshop: Workshop, seed: int) -> None:
    workshop = replace(workshop, namespace=f"n{uuid4().hex[:12]}")
    name = f"s{workshop.namespace}"
    stream = model.random_stream(model.random_of(seed), batches=6 if IS_DRILL else 4, rows=40)
    source = workshop.declare_table("events", EVENTS)
    kinds = {"tumbling": COUNTS, "sliding": COUNTS, "sessions": COUNTS, "distinct": EVENTS, "within": EVENTS}
    workshop.declare_stream(
        name,
        python=WINDOWS,
        inputs={
            "events": {
                "stream": {"iceberg": {"table": source, "max_files_per_batch": 1}},
                "watermark": {"column": "at", "delay": f"{DELAY} seconds"},
            }
        },
        outputs={
            output: {"iceberg": {"table": workshop.declare_table(output, columns)}} for output, columns in kinds.items()
        },
        **CONTINUOUS,
    )

    done = streamed(workshop, name, {"events": stream}, restart_after=2)

    cut = with_empty_batches(stream, done)
    assert watermarks(done) == model.watermarks_of(cut, delay=DELAY)
    batches = model.judged(cut, watermarks(done))
    verdicts = {
        "tumbling": model.windows(batches, size=10, slide=10),
        "sliding": model.windows(batches, size=20, slide=5),
        "sessions": model.sessions(batches, gap=4),
        "distinct": model.distinct(batches),
        "within": model.distinct_within(batches, delay=DELAY),
    }
    for output, verdict in verdicts.items():
        assert found(workshop, output) == verdict.sorted_rows(), output
    late = [sum(verdict.late_by_batch[number] for verdict in verdicts.values()) for number in range(len(done))]
    assert [batch.late_rows for batch in done] == late
    rows = sum(len(batch) for batch in stream)
    counted = totals(workshop.ledger, name)
    assert (counted.input_rows, counted.late_rows) == (rows, sum(late))
    assert counted.duplicate_rows == sum(verdict.duplicate for verdict in verdicts.values())
    for output in ("distinct", "within"):
        kept, verdict = counted.published_rows[output], verdicts[output]
        assert rows == kept + sum(verdict.late_by_batch) + verdict.duplicate


HOWS = {"both": "inner", "all": "full"} | ({"lefts": "left", "rights": "right"} if IS_DRILL else {})
"""The outputs of the joins, with their kinds. The full join has the rows of both outer ones."""

JOINS = f"""
    from pyspark.sql import functions as fn

    def transform(orders, payments):
        left, right = orders.alias("l"), payments.alias("r")
        fits = fn.expr("l.key = r.key AND r.at BETWEEN l.at AND l.at + INTERVAL 8 SECONDS")

        def joined(how):
            rows = left.join(right, fits, how)
            return rows.select("l.id", "l.at", fn.col("r.id").alias("other"), fn.col("r.at").alias("other_at"))

        outputs = {{output: joined(how) for output, how in {HOWS!r}.items()}}
        return outputs | {{"matched": left.join(right, fits, "left_semi").select("id", "at")}}
"""


@on_random_streams
@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.full  # every run: windows and sessions
def test_joins_of_streams_are_those_of_the_model(workshop: Workshop, seed: int) -> None:
    workshop = replace(workshop, namespace=f"n{uuid4().hex[:12]}")
    name = f"s{workshop.namespace}"
    random = model.random_of(seed)
    streams = {table: model.random_stream(random, batches=4, rows=25) for table in ("orders", "payments")}
    pair = {"id": "long", "at": "timestamptz", "other": "long", "other_at": "timestamptz"}
    tables = {**dict.fromkeys(HOWS, pair), "matched": {"id": "long", "at": "timestamptz"}}
    workshop.declare_stream(
        name,
        python=JOINS,
        inputs={
            table: {
                "stream": {"iceberg": {"table": workshop.declare_table(table, EVENTS), "max_files_per_batch": 1}},
                "watermark": {"column": "at", "delay": f"{DELAY} seconds"},
            }
            for table in streams
        },
        outputs={
            output: {"iceberg": {"table": workshop.declare_table(output, columns)}}
            for output, columns in tables.items()
        },
        **CONTINUOUS,
    )

    done = streamed(workshop, name, streams, restart_after=2)

    cut = [with_empty_batches(stream, done) for stream in streams.values()]
    assert watermarks(done) == model.watermarks_of(*cut, delay=DELAY)
    verdict = model.joined(*(model.judged(one, watermarks(done)) for one in cut), within=8)
    pairs: list[tuple[object, ...]] = [(left.id, left.at, right.id, right.at) for left, right in verdict.pairs]
    lefts: list[tuple[object, ...]] = [(left.id, left.at, None, None) for left in verdict.left_alone]
    rights: list[tuple[object, ...]] = [(None, None, right.id, right.at) for right in verdict.right_alone]
    wanted: dict[str, list[tuple[object, ...]]] = {
        "both": pairs,
        "lefts": pairs + lefts,
        "rights": pairs + rights,
        "all": pairs + lefts + rights,
        "matched": [(left.id, left.at) for left in verdict.left_matched],
    }
    for output in tables:
        assert found(workshop, output) == sorted(wanted[output], key=repr), output
    assert [batch.late_rows for batch in done] == [len(tables) * late for late in verdict.late_by_batch]
    assert verdict.pairs
    assert lefts
    assert rights
    assert sum(verdict.late_by_batch) > 0
