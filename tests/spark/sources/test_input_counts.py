"""The rows of a batch's inputs are counted once, by Spark where its own number is right and beside it elsewhere."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.streams_of_tables import COLUMNS, dying_at, reading, writing
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import recent_batches
from sluice.publication.crash_points import CrashPoint
from sluice.settings import FilesConnection
from sluice.sources.iceberg_positions import snapshot_of
from sluice_spark.query.stream_plan import plan_stream
from sluice_spark.query.stream_preview import observe_plan
from sluice_spark.sources.input_decoding import INPUT_METRIC

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
        pytest.param("SELECT id, word FROM records", 3, marks=pytest.mark.full),  # every stream of the other tests
        ("SELECT id, word FROM records WHERE id > 0", 2),
        pytest.param("SELECT /*+ REPARTITION(3) */ id, word FROM records", 3, marks=pytest.mark.full),
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
        pytest.param(
            "SELECT id, word FROM records UNION ALL SELECT id + 10, word FROM records", 6, marks=pytest.mark.full
        ),
        pytest.param(
            "SELECT id, word FROM (SELECT /*+ REPARTITION(3) */ * FROM records) WHERE id = 1 "
            "UNION ALL SELECT id, word FROM (SELECT /*+ REPARTITION(3) */ * FROM records) WHERE id = 2",
            2,
            marks=pytest.mark.full,
        ),
        ("WITH named AS (SELECT id, word FROM records) SELECT * FROM named WHERE id = 1 "
         "UNION ALL SELECT * FROM named WHERE id = 2", 2),
    ],
    ids=["twice", "twice, shuffled", "a common table expression, twice"],
)  # fmt: skip
def test_a_source_that_is_read_twice_is_counted_beside_it(workshop: Workshop, sql: str, published: int) -> None:
    name = declare(workshop, sql)

    (batch,) = workshop.run(name).batches

    assert is_counted_beside_spark(workshop, name)
    assert (batch.input_rows, batch.published_rows) == (3, {"copies": published})


@pytest.mark.parametrize(
    ("sql", "sources"),
    [
        ("WITH named AS (SELECT * FROM records), again AS (SELECT word, id FROM named) SELECT * FROM again", 1),
        pytest.param("SELECT id, word FROM records WHERE id IN (SELECT id FROM known)", 1, marks=pytest.mark.full),
        pytest.param(
            "SELECT id, word FROM records WHERE id < 2 UNION ALL SELECT id, word FROM records WHERE id >= 2",
            1,
            marks=pytest.mark.full,
        ),
        pytest.param("SELECT a.id, b.word FROM records a JOIN records b ON a.id = b.id", 2, marks=pytest.mark.full),
        pytest.param(
            "WITH named AS (SELECT * FROM records) SELECT a.id, b.word FROM named a JOIN named b ON a.id = b.id",
            2,
            marks=pytest.mark.full,
        ),
    ],
    ids=["common table expressions", "subquery", "union", "self join", "self join of a common table expression"],
)
def test_offsets_are_those_of_the_input_whatever_the_plan_looks_like(
    workshop: Workshop, sql: str, sources: int
) -> None:
    name = f"s{workshop.namespace}"
    source, target = workshop.declare_table("source", COLUMNS), workshop.declare_table("target", COLUMNS)
    known = workshop.declare_table("known", {"id": "long"})
    inputs = {**reading(source), "known": {"static": {"iceberg": {"table": known}}}}
    workshop.declare_stream(name, sql=sql, inputs=inputs, outputs=writing(target))
    workshop.append("source", ROWS)
    workshop.append("known", [{"id": row["id"]} for row in ROWS])

    (batch,) = workshop.run(name).batches

    assert list(batch.end_offsets) == ["records", "records (2)"][:sources]
    assert snapshot_of(batch.end_offsets["records"]) == workshop.table("source").metadata.current_snapshot_id
    assert (batch.input_rows, batch.published_rows) == (3, {"copies": 3})


@pytest.mark.full
def test_late_rows_above_a_common_table_expression_are_counted(workshop: Workshop) -> None:
    """The plan check describes the same query that a run starts."""
    name = f"s{workshop.namespace}"
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    source = workshop.declare_table("source", {"at": "timestamptz"})
    target = workshop.declare_table("target", {"start": "timestamptz", "n": "long"})
    inputs: dict[str, Any] = reading(source)
    inputs["records"]["watermark"] = {"column": "at", "delay": "1 minute"}
    workshop.declare_stream(
        name,
        sql="WITH named AS (SELECT at FROM records) "
        "SELECT window(at, '1 hour').start AS start, count(*) AS n FROM named GROUP BY window(at, '1 hour')",
        inputs=inputs,
        outputs=writing(target),
    )
    assert observe_plan(workshop.spark, workshop.stream(name), workshop.settings).problem is None
    late = []
    for hours in ([0, 3], [3], [0, 0, 3]):  # a row is late by the watermark of the batch before
        workshop.append("source", [{"at": noon + timedelta(hours=hour)} for hour in hours])
        late += [batch.late_rows for batch in workshop.run(name).batches]

    assert sum(late) == 2
    assert [row["n"] for row in workshop.rows("target")] == [1]


def test_rows_that_are_sorted_on_their_way_into_the_table_are_counted_once(workshop: Workshop) -> None:
    """Sorted over all files they would be sampled first, which reads the source a second time."""
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", COLUMNS, sort_order=[{"column": "id", "direction": "desc"}])
    workshop.declare_stream(name, sql="SELECT id, word FROM records", inputs=reading(source), outputs=writing(target))
    workshop.append("source", ROWS)

    (batch,) = workshop.run(name).batches

    assert (batch.input_rows, batch.published_rows) == (3, {"copies": 3})


@pytest.mark.parametrize(
    ("form", "content"),
    [
        ("csv", "word,id\none,1\ntwo,2\n"),
        pytest.param("json", '{"id": 1, "word": "one"}\n\n{"id": 2, "word": "two"}\n\n', marks=pytest.mark.full),
    ],
)
def test_the_header_of_a_file_and_its_blank_lines_are_no_rows(
    workshop: Workshop, tmp_path: Path, form: str, content: str
) -> None:
    here = FilesConnection(kind="files", root=tmp_path.as_uri())
    connections = {**workshop.settings.connections, "here": here}
    workshop = replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.{form}").write_text(content)
    columns = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
    source = {"connection": "here", "path": "in", "format": form, "columns": columns}
    name, target = f"s{workshop.namespace}", workshop.declare_table("target", COLUMNS)
    workshop.declare_stream(
        name,
        sql="SELECT id, word FROM records",
        inputs={"records": {"stream": {"files": source}}},
        outputs=writing(target),
    )

    (batch,) = workshop.run(name).batches

    assert (batch.input_rows, batch.published_rows) == (4, {"copies": 4})


def test_a_batch_that_was_staged_before_a_crash_is_counted_when_it_runs_again(workshop: Workshop) -> None:
    name = declare(workshop, "SELECT id, word FROM records WHERE id > 1")
    with pytest.raises(Exception, match="the driver dies here"):  # py4j wraps what is raised in a callback
        workshop.run(name, reached=dying_at(CrashPoint.STAGED))

    workshop.run(name, is_recorded=True)

    (batch,) = recent_batches(workshop.ledger, name, limit=10)
    assert (batch.input_rows, batch.published_rows) == (3, {"copies": 1})
    assert len(workshop.rows("target")) == 1
