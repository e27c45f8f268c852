"""The nightly search for gaps as Airflow runs it: its own task, with its templates rendered, on a real Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import tests.fixtures.airflow_home  # noqa: F401  # before Airflow is imported
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred
from tests.fixtures.backfills import COLUMNS, declare_read_stream, delete_days
from tests.fixtures.stack import Stack
from tests.fixtures.work import serve
from tests.fixtures.workshop import Workshop

from sluice.declarations.load_declarations import load_declarations
from sluice.work.start_application import WorkQueue
from sluice_airflow.dag_builders.backfills import DAYS, GapOperator, backfill_gaps_dag

CONNECTION = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}


@pytest.fixture(autouse=True)
def _airflows_environment(workshop: Workshop, services: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a task of Airflow."""
    for name, value in services.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_PIPELINES", str(workshop.folder))
    monkeypatch.setenv("AIRFLOW_VAR_SLUICE_AIRFLOW_ID", "the-airflow-of-this-test")  # no database has it here
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(CONNECTION))


def task_of(workshop: Workshop, stream: str) -> GapOperator:
    """The task of a stream in the DAG, for a run that looks back to 2013."""
    task = backfill_gaps_dag(load_declarations(workshop.folder)).get_task(stream)
    assert isinstance(task, GapOperator)
    task.render_template_fields(
        Context(
            dag=task.dag,
            run_id="manual__1",
            dag_run=SimpleNamespace(run_after=datetime.now(UTC)),
            params={DAYS: 20_000},
            macros=SimpleNamespace(timedelta=timedelta),
        )
    )
    return task


@pytest.mark.full  # every run: gaps in each backfill, and `test_work_commands.py`
def test_the_task_is_red_with_the_names_of_the_gaps(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task defers; the application is one of this process."""
    stream = declare_read_stream(workshop)
    delete_days(workshop, "target", "2013-01-05", "2013-01-06")
    task, items = task_of(workshop, stream), list[str]()
    monkeypatch.setattr(WorkQueue, "start_application", lambda _, item, *__: items.append(item))

    with pytest.raises(TaskDeferred) as deferred:
        task.execute(Context())
    serve(workshop, items)

    with pytest.raises(AirflowFailException, match=r"1 of 8 intervals .* 2013-01-05 .* is missing: 3 rows expected"):
        task.look_again(Context(), **(deferred.value.kwargs or {}))


def test_a_stream_that_has_published_nothing_is_skipped_with_words(workshop: Workshop) -> None:
    stream = f"s{workshop.namespace}"
    source, target = (workshop.declare_table(name, COLUMNS) for name in ("source", "target"))
    workshop.declare_stream(
        stream,
        sql="SELECT * FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"copies": {"iceberg": {"table": target}}},
        backfill={"column": "at"},
    )

    with pytest.raises(AirflowSkipException, match=f"^{stream} has published nothing yet, so there is nothing to comp"):
        task_of(workshop, stream).execute(Context())
