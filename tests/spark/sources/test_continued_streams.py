"""Streams with state, and with several inputs, are taken past expired snapshots without losing either."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fixtures.continuations import expire, go_on, plan_of, run_recorded
from tests.fixtures.workshop import Workshop

from sluice.errors import InputGapError, UsageError
from sluice.ledger.batches import totals
from sluice.maintenance.continuation import ContinuationWay

COLUMNS: dict[str, Any] = {"id": "long", "word": "string"}
EVENTS: dict[str, Any] = {"id": "long", "at": "timestamptz"}
SPANS: dict[str, Any] = {"start": "timestamptz", "events": "long"}
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector."""

STATEFUL = """
    from pyspark.sql import functions as fn

    def transform(events):
        spans = events.groupBy(fn.window("at", "10 seconds").alias("span")).agg(fn.count("*").alias("events"))
        return {"spans": spans.select("span.start", "events"), "distinct": events.dropDuplicates(["id", "at"])}
"""


class Counting:
    """Two equal streams with state over one source. The second one is in time, and says what the first one has to do:
    an increment reads whatever is there in one batch, as a continuation does."""

    def __init__(self, workshop: Workshop) -> None:
        self.workshop = workshop
        self.source = workshop.declare_table("source", EVENTS)
        self.cut, self.whole = f"c{workshop.namespace}", f"w{workshop.namespace}"
        for stream in (self.cut, self.whole):
            tables = {"spans": SPANS, "distinct": EVENTS}
            named = {output: workshop.declare_table(f"{output}_{stream[0]}", tables[output]) for output in tables}
            workshop.declare_stream(
                stream,
                python=STATEFUL,
                inputs={
                    "events": {
                        "stream": {"iceberg": {"table": self.source}},
                        "watermark": {"column": "at", "delay": "10 seconds"},
                    }
                },
                outputs={output: {"iceberg": {"table": table}} for output, table in named.items()},
            )

    def append(self, *snapshots: Sequence[tuple[int, int]]) -> None:
        """Append snapshots of events: an id, and seconds after the epoch."""
        for events in snapshots:
            rows = [{"id": number, "at": EPOCH + timedelta(seconds=second)} for number, second in events]
            self.workshop.append("source", rows)

    def run(self, *streams: str) -> None:
        """Run streams over what is there."""
        for stream in streams:
            run_recorded(self.workshop, stream)

    def counts(self, stream: str) -> tuple[int, int, int]:
        """How many rows a stream has read, and how many of them came late or twice."""
        counted = totals(self.workshop.ledger, stream)
        return counted.input_rows, counted.late_rows, counted.duplicate_rows

    def results(self, stream: str) -> dict[str, list[dict[str, Any]]]:
        """What a stream has written, by output."""
        return {output: self.workshop.rows(f"{output}_{stream[0]}") for output in ("spans", "distinct")}


@pytest.mark.full
def test_a_stream_with_state_continues_with_its_state_and_its_watermark(workshop: Workshop) -> None:
    """Windows that are open on both sides of the gap are whole, what is repeated stays out, and what is late is."""
    counting = Counting(workshop)
    for events in ([(0, 0), (1, 1), (2, 25)], [(3, 26), (4, 31)]):
        counting.append(events)
        counting.run(counting.cut, counting.whole)
    counting.append([(5, 2)], [(2, 25), (6, 27)], [(7, 32), (8, 41)])
    counting.run(counting.whole)
    expire(workshop, counting.source)

    with pytest.raises(InputGapError):
        counting.run(counting.cut)
    plan = go_on(workshop, counting.cut)
    assert (plan.seen.way, plan.seen.rows_read, plan.seen.rows_left_out) == (ContinuationWay.EXACT, 5, 0)
    assert any(step.sentence.startswith("Copy its state: ") for step in plan.steps)
    counting.run(counting.cut)
    for events in ([(9, 90)], [(10, 120)]):
        counting.append(events)
        counting.run(counting.cut, counting.whole)

    assert counting.results(counting.cut) == counting.results(counting.whole)
    assert counting.counts(counting.cut) == counting.counts(counting.whole)
    ids = sorted(row["id"] for row in counting.results(counting.cut)["distinct"])
    assert ids == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10], "5 is late, and 2 came twice"


@pytest.mark.full
def test_state_is_not_continued_without_the_watermark_of_its_newest_batch(workshop: Workshop) -> None:
    counting = Counting(workshop)
    counting.append([(0, 0), (1, 25)])
    counting.run(counting.cut)
    workshop.forget_last_commit(counting.cut)
    counting.append([(2, 26)], [(3, 27)])
    expire(workshop, counting.source)

    with pytest.raises(UsageError, match=r"between the publication of batch \d+ and its commit in the checkpoint"):
        plan_of(workshop, counting.cut)


@pytest.mark.full
def test_of_two_inputs_only_the_one_that_is_cut_is_moved(workshop: Workshop) -> None:
    stream = f"s{workshop.namespace}"
    inputs = {name: workshop.declare_table(name, COLUMNS) for name in ("other", "records")}
    target = workshop.declare_table("target", COLUMNS)
    workshop.declare_stream(
        stream,
        sql="SELECT id, word FROM records UNION ALL SELECT id, word FROM other",
        inputs={name: {"stream": {"iceberg": {"table": table}}} for name, table in inputs.items()},
        outputs={"copies": {"iceberg": {"table": target}}},
    )

    def append(table: str, *numbers: int) -> None:
        for number in numbers:
            workshop.append(table, [{"id": number, "word": table}])

    append("records", 0, 1)
    append("other", 10)
    run_recorded(workshop, stream)
    append("records", 2, 3, 4)
    append("other", 11, 12)
    expire(workshop, inputs["records"])

    with pytest.raises(InputGapError, match=r"input records: .* 2 snapshots with 2 appended rows"):
        run_recorded(workshop, stream)
    plan = go_on(workshop, stream)
    assert [one.source.input for one in plan.seen.gaps] == ["records"]
    assert (plan.seen.way, plan.seen.rows_read) == (ContinuationWay.EXACT, 3)
    append("records", 5)
    run_recorded(workshop, stream)
    append("other", 13)
    run_recorded(workshop, stream)

    found = sorted((row["word"], row["id"]) for row in workshop.rows(target))
    assert found == [*(("other", number) for number in range(10, 14)), *(("records", number) for number in range(6))]
