"""The rows of a batch's inputs are counted once, by Spark where its own number is right and beside it elsewhere."""

from __future__ import annotations

import pytest
from tests.fixtures.streams_of_tables import COLUMNS, reading, writing
from tests.fixtures.workshop import Workshop

from sluice_spark.query.stream_inputs import INPUT_METRIC
from sluice_spark.query.stream_plan import plan_stream

ROWS = [{"id": number, "word": word} for number, word in enumerate(("one", "two", "three"))]


def declare(workshop: Workshop, sql: str) -> str:
    """A stream that reads three rows of a table; its name."""
    name = f"s{workshop.namespace}"
    source, target = workshop.declare_table("source", COLUMNS), workshop.declare_table("target", COLUMNS)
    workshop.declare_stream(name, sql=sql, inputs=reading(source), outputs=writing(target))
    workshop.append("source", ROWS)
    return name


def is_counted_beside_spark(workshop: Workshop, name: str) -> bool:
    """Whether the plan holds a count of our own."""
    plan = plan_stream(workshop.spark, workshop.stream(name), workshop.settings)
    return INPUT_METRIC in plan.rows._jdf.queryExecution().analyzed().toString()


@pytest.mark.parametrize(
    ("sql", "published"),
    [
        ("SELECT id, word FROM records", 3),
        ("SELECT id, word FROM records WHERE id > 0", 2),
        ("SELECT /*+ REPARTITION(3) */ id, word FROM records", 3),
    ],
    ids=["as they come", "filtered", "shuffled"],
)
def test_a_source_that_is_read_once_is_counted_by_spark(workshop: Workshop, sql: str, published: int) -> None:
    name = declare(workshop, sql)

    (batch,) = workshop.run(name).batches

    assert (batch.input_rows, batch.published_rows) == (3, {"copies": published})
    assert not is_counted_beside_spark(workshop, name)


@pytest.mark.parametrize(
    ("sql", "published"),
    [
        ("SELECT id, word FROM records UNION ALL SELECT id + 10, word FROM records", 6),
        ("SELECT id, word FROM (SELECT /*+ REPARTITION(3) */ * FROM records) WHERE id = 1 "
         "UNION ALL SELECT id, word FROM (SELECT /*+ REPARTITION(3) */ * FROM records) WHERE id = 2", 2),
    ],
    ids=["twice", "twice, shuffled"],
)  # fmt: skip
def test_a_source_that_is_read_twice_is_counted_beside_it(workshop: Workshop, sql: str, published: int) -> None:
    name = declare(workshop, sql)

    (batch,) = workshop.run(name).batches

    assert is_counted_beside_spark(workshop, name)
    assert (batch.input_rows, batch.published_rows) == (3, {"copies": published})


def test_rows_that_are_sorted_on_their_way_into_the_table_are_counted_once(workshop: Workshop) -> None:
    """Sorted over all files they would be sampled first, which reads the source a second time."""
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", COLUMNS, sort_order=[{"column": "id", "direction": "desc"}])
    workshop.declare_stream(name, sql="SELECT id, word FROM records", inputs=reading(source), outputs=writing(target))
    workshop.append("source", ROWS)

    (batch,) = workshop.run(name).batches

    assert (batch.input_rows, batch.published_rows) == (3, {"copies": 3})
