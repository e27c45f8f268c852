"""Spark's own analysis refuses what only the plan tells; a preview shows what a transformation does to a few rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import pytest
from tests.fixtures.replays import deploy
from tests.fixtures.stack import Stack
from tests.fixtures.workshop import Workshop

import preview_stream
from sluice.cli import preview as preview_command
from sluice.cli.app import main
from sluice.errors import DeclarationError
from sluice.launching.spark_submit import JobEnd, PreviewStream
from sluice.settings import Settings
from sluice_spark.query.stream_preview import observe_plan, preview

COLUMNS = {"id": "long", "word": "string", "at": "timestamptz"}
WATERMARK = {"column": "at", "delay": "10 minutes"}
COUNTED = "SELECT word, count(*) AS n FROM records GROUP BY word"


def at(minute: int) -> datetime:
    """A time of the test's day."""
    return datetime(2024, 1, 1, 12, minute, tzinfo=UTC)


def declare(workshop: Workshop, name: str, *, watermark: bool = False, **parts: Any) -> None:
    """Declare a stream that reads the words."""
    source: dict[str, Any] = {"stream": {"iceberg": {"table": workshop.declare_table("words", COLUMNS)}}}
    if watermark:
        source["watermark"] = WATERMARK
    workshop.declare_stream(name, inputs={"records": source}, **parts)


@pytest.mark.parametrize(
    ("sql", "mode", "reason"),
    [
        (COUNTED, "append", "mode: append.* aggregations without watermark"),
        ("SELECT word FROM records", "complete", "mode: complete.* for no streaming aggregations"),
        (
            "SELECT a.word FROM records a FULL JOIN records b ON a.id = b.id",
            "append",
            "Stream-stream FullOuter join",
        ),
        ("SELECT absent FROM records", "append", r"Spark refuses it: \[UNRESOLVED_COLUMN"),
    ],
)
def test_what_spark_cannot_run_is_refused_with_its_place(workshop: Workshop, sql: str, mode: str, reason: str) -> None:
    name = f"s{workshop.namespace}"
    declare(workshop, name, sql=sql, outputs={"kept": {"memory": {"mode": mode}}})
    file = workshop.folder / f"{name}.stream.yaml"

    problem = observe_plan(workshop.spark, workshop.stream(name), workshop.settings).problem

    assert problem is not None
    assert problem.file == str(file)
    assert problem.line is not None
    assert "sql: " in file.read_text().splitlines()[problem.line - 1]
    workshop.append("words", [{"id": 1, "word": "a", "at": at(0)}])
    with pytest.raises(DeclarationError, match=rf"{file.name}:\d+: `transformation.sql`: .*{reason}"):
        workshop.run(name)


def test_a_plan_shows_inputs_operators_state_watermark_mode_and_trigger(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    sql = "SELECT window.start AS start, count(*) AS n FROM records WHERE id > 0 GROUP BY window(at, '5 minutes')"
    declare(workshop, name, watermark=True, sql=sql, outputs={"kept": {"memory": {"mode": "update"}}})

    plan = observe_plan(workshop.spark, workshop.stream(name), workshop.settings)

    assert plan.problem is None
    assert (plan.trigger, plan.output_mode, plan.state) == ("available_now", "update", "rocksdb, changelog")
    assert plan.stateful == ("Aggregate",)
    assert [(given.name, given.kind, given.is_stream, given.watermark) for given in plan.inputs] == [
        ("records", "iceberg", True, "at, 600 seconds")
    ]
    words = [step.split()[0].lstrip("~") for _, step in plan.operators]
    assert words[0] == "Aggregate"
    assert {"Filter", "EventTimeWatermark"} <= set(words)
    (output,) = plan.outputs
    assert (output.place, dict(output.columns)) == ("the driver's memory", {"start": "timestamp", "n": "bigint"})


def declare_words(workshop: Workshop) -> str:
    """A stream of two good words, of which one comes twice, and two that it refuses; its name."""
    name = f"s{workshop.namespace}"
    python = """
        from pyspark.sql import functions as fn

        def transform(records):
            good = records.where("id > 0").dropDuplicatesWithinWatermark(["id"])
            refused = records.where("id <= 0").select(
                fn.lit("id is not positive").alias("reason"), fn.lit("{}").alias("position"),
                fn.col("word").alias("payload"),
            )
            return {"good": good, "quarantine": refused}
    """
    target = workshop.declare_table("good", COLUMNS)
    declare(
        workshop, name, watermark=True, python=python, outputs={"good": {"iceberg": {"table": target}}}, quarantine=True
    )
    words = [(1, "a", 0), (1, "a", 40), (2, None, 1), (-1, "c", 2), (0, "d", 3)]
    workshop.append("words", [{"id": id_, "word": word, "at": at(minute)} for id_, word, minute in words])
    return name


@pytest.mark.full  # every run has the command below, with a row
def test_a_preview_applies_the_transformation_to_a_few_rows_and_writes_nothing(workshop: Workshop) -> None:
    name = declare_words(workshop)

    seen = preview(workshop.spark, workshop.stream(name), workshop.settings, sample=1000, shown=1)

    assert [(given.name, given.kind, given.rows) for given in seen.inputs] == [("records", "iceberg", 5)]
    (output,) = seen.outputs
    assert (output.name, output.rows, len(output.first)) == ("good", 2, 1)
    assert set(output.first[0]) == set(COLUMNS) == set(output.columns)
    assert seen.refused == {"id is not positive": 2}
    assert [sentence.split(";")[0] for sentence in seen.differences] == [
        "A batch has no watermark: no row is late here, and windows are shown that the stream still keeps open.",
        "Duplicates are dropped however far apart they are",
        "State begins empty and sees the sample alone",
    ]
    assert workshop.rows("good") == []
    assert not workshop.checkpoint(name).exists()


@pytest.mark.full  # every run has the command below, with a row
def test_a_preview_rejects_rows_ahead_of_the_clock_and_says_when_there_may_be_more(workshop: Workshop) -> None:
    name = declare_words(workshop)
    workshop.append("words", [{"id": 3, "word": "e", "at": datetime(2999, 1, 1, tzinfo=UTC)}])
    bounded = preview(workshop.spark, workshop.stream(name), workshop.settings, sample=1000, shown=1)
    ahead = [reason for reason in bounded.refused if reason.endswith(" is more than 1 day, 0:00:00 ahead, at `at`")]
    assert {reason: bounded.refused[reason] for reason in ahead} == dict.fromkeys(ahead, 1)
    assert len(ahead) == 1
    assert bounded.outputs[0].rows == 2

    cut = preview(workshop.spark, workshop.stream(name), workshop.settings, sample=2, shown=1)
    assert [given.rows for given in cut.inputs] == [2]
    assert cut.differences[0] == "records: the first 2 rows only; there may be more."


@pytest.mark.full
def test_tables_that_are_not_created_yet_are_planned_as_declared(workshop: Workshop, services: Stack) -> None:
    good, bad = f"good{workshop.namespace}", f"bad{workshop.namespace}"
    there = workshop.declare_table("there", COLUMNS)
    absent = workshop.declare_table("absent", COLUMNS)
    target = workshop.declare_table("target", {"id": "long", "n": "long"})
    outputs = {"counts": {"iceberg": {"table": target}}}
    inputs = {
        "records": {"stream": {"iceberg": {"table": absent}}},
        "names": {"static": {"iceberg": {"table": there}}},
    }
    joined = "SELECT records.id, {} AS n FROM records JOIN names USING (id)"
    workshop.declare_stream(good, inputs=inputs, sql=joined.format("names.id"), outputs=outputs)
    workshop.declare_stream(bad, inputs=inputs, sql=joined.format("names.word"), outputs=outputs)
    catalog = workshop.catalog
    for name in (absent, target):
        catalog.drop_table(name)
    environment = {**os.environ, **services.environment(), "SLUICE_PIPELINES": str(workshop.folder)}
    command = [sys.executable, "-m", "sluice.cli.app", "validate", str(workshop.folder), "--plan", "--json"]

    ended = subprocess.run(command, env=environment, capture_output=True, text=True)  # noqa: S603  # our own

    assert ended.stdout, ended.stderr
    plans = {plan["stream"]: plan for plan in json.loads(ended.stdout)["plans"]}
    assert ended.returncode == 2
    assert plans[good]["problem"] is None
    assert plans[good]["tables_to_create"] == [absent, target]
    assert "n: declared bigint, got string" in plans[bad]["problem"]["message"]
    assert not any(catalog.table_exists(name) for name in (absent, target))


def test_the_command_prints_what_its_job_has_seen(
    workshop: Workshop, services: Stack, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The job has the session of the ring."""
    name = f"s{workshop.namespace}"
    declare(workshop, name, sql="SELECT word FROM records", outputs={"shown": {"console": {}}})
    workshop.append("words", [{"id": 1, "word": "a", "at": at(0)}])
    deploy(workshop, services, monkeypatch)
    monkeypatch.setattr(preview_stream, "open_session", lambda *_, **__: workshop.spark)

    def run_here(command: PreviewStream, settings: Settings) -> JobEnd:
        with redirect_stdout(StringIO()) as said:
            preview_stream._run(command)
        return JobEnd(exit_code=0, output=said.getvalue(), failure=None, log=settings.logs / "job.log")

    monkeypatch.setattr(preview_command, "run_in_foreground", run_here)
    with pytest.raises(SystemExit) as ended:
        main(["preview", name, "--rows", "5", "--json"])

    assert not ended.value.code
    seen = json.loads(capsys.readouterr().out)
    assert seen["outputs"] == [{"name": "shown", "columns": {"word": "string"}, "rows": 1, "first": [{"word": "a"}]}]


@pytest.mark.full  # every run has the command and its job in the session of the ring
def test_a_preview_starts_spark_and_prints_json(workshop: Workshop, services: Stack) -> None:
    good = f"good{workshop.namespace}"
    declare(workshop, good, sql="SELECT word FROM records", outputs={"shown": {"console": {}}})
    workshop.append("words", [{"id": 1, "word": "a", "at": at(0)}])
    environment = {**os.environ, **services.environment(), "SLUICE_PIPELINES": str(workshop.folder)}

    def sluice(*words: str) -> tuple[int, Any]:
        command = [sys.executable, "-m", "sluice.cli.app", *words]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True)  # noqa: S603  # our own
        assert ended.stdout, ended.stderr
        assert ended.stderr == ""
        return ended.returncode, json.loads(ended.stdout)

    code, seen = sluice("preview", good, "--rows", "5", "--json")
    assert code == 0
    assert seen["outputs"] == [{"name": "shown", "columns": {"word": "string"}, "rows": 1, "first": [{"word": "a"}]}]
