"""The task of a backfill beside a real ledger: what it asks for, and the results that it shows."""

from __future__ import annotations

import json
from datetime import UTC
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from airflow.sdk import Context
from pendulum import DateTime
from tests.fixtures.deployment import deployment_environment
from tests.fixtures.sample_declarations import write_continuous_stream

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.applications import beat, begin_application
from sluice.ledger.backfill_attempts import BackfillState, begin_attempt, end_attempt
from sluice.ledger.connection import Ledger
from sluice.ledger.work_items import ask, claim, end_item
from sluice.ledger.work_values import NewItem, Pool, WorkState
from sluice.work.requests import ReplaceInterval
from sluice_airflow.dag_builders.backfills import BackfillOperator, backfill_dag

FIFTH, SIXTH = DateTime(2013, 1, 5, tzinfo=UTC), DateTime(2013, 1, 6, tzinfo=UTC)


class Pushed(dict[str, Any]):
    """What a task pushes as XCom."""

    def xcom_push(self, key: str, value: object) -> None:
        self[key] = value


@pytest.fixture
def context(folder: Path) -> Context:
    """The context of the task in the run of the fifth of January."""
    write_continuous_stream(folder, "daily_flights", more="backfill: {column: at, interval: day, at_once: 3}\n")
    dag = backfill_dag(load_declarations(folder).stream("daily_flights"))
    return Context(
        dag=dag,
        dag_run=cast(Any, SimpleNamespace(dag_id=dag.dag_id, run_id="backfill__5", run_type="backfill", conf={})),
        run_id="backfill__5",
        ti=cast(Any, Pushed()),
        data_interval_start=FIFTH,
        data_interval_end=SIXTH,
    )


@pytest.fixture
def task(context: Context) -> BackfillOperator:
    """The task, with its templates rendered."""
    (task,) = context["dag"].tasks
    assert isinstance(task, BackfillOperator)
    task.render_template_fields(context)
    return task


def test_it_asks_for_the_interval_of_its_run(task: BackfillOperator) -> None:
    assert task.asked_by == "airflow: daily_flights__backfill, backfill__5"
    assert task.request == ReplaceInterval(
        stream="daily_flights", start="2013-01-05T00:00:00+00:00", end="2013-01-06T00:00:00+00:00"
    )


@pytest.mark.parametrize(
    ("conf", "allowed"),
    [
        ({"allow_fewer": True}, ("yes", "no")),
        ({"allow_fewer": "false", "allow_repeated": True}, ("no", "yes")),
        ({}, ("no", "no")),
        (None, ("no", "no")),
    ],
)
def test_the_conf_of_the_run_says_whether_fewer_and_repeated_rows_are_allowed(
    context: Context, conf: dict[str, object] | None, allowed: tuple[str, str]
) -> None:
    context["dag_run"].conf = conf
    (task,) = context["dag"].tasks
    assert isinstance(task, BackfillOperator)

    task.render_template_fields(context)

    assert task.request == ReplaceInterval(
        stream="daily_flights",
        start="2013-01-05T00:00:00+00:00",
        end="2013-01-06T00:00:00+00:00",
        allow_fewer=allowed[0],
        allow_repeated=allowed[1],
    )


def test_the_conf_of_the_run_says_which_declarations_were_agreed_to(context: Context) -> None:
    context["dag_run"].conf = {"agreed": "a" * 64}
    (task,) = context["dag"].tasks
    assert isinstance(task, BackfillOperator)

    task.render_template_fields(context)

    assert isinstance(task.request, ReplaceInterval)
    assert task.request.agreed == "a" * 64


def test_a_task_that_goes_on_on_a_worker_shows_the_results_of_its_run(
    task: BackfillOperator,
    context: Context,
    ledger: Ledger,
    ledger_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As it does after an outage of the ledger; else the trigger ends it, with the same results."""
    for name, value in deployment_environment(tmp_path, pipelines=tmp_path, ledger_url=ledger_url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    _replace_interval(ledger, task)

    task.look_again(context, {"seen": "the ledger is away"}, item=_done_item(ledger, task))

    assert context["ti"] == {  # type: ignore[comparison-overlap]  # Pushed is a dict
        "results": {
            "daily_flights": {
                "interval": "2013-01-05 00:00 to 2013-01-06 00:00 UTC",
                "attempt": 1,
                "state": "published",
                "snapshot": str(2**60),
                "rows": {"published": 3},
            }
        }
    }


def _replace_interval(ledger: Ledger, task: BackfillOperator) -> None:
    """Leave what the work on the task's interval leaves, and another run's result, which is not to be shown."""
    for launched_by, start, end in ((task.asked_by, FIFTH, SIXTH), ("another run", SIXTH, SIXTH.replace(day=7))):
        key = begin_attempt(ledger, task.subject, start=start, end=end, launched_by=launched_by)
        end_attempt(ledger, key, BackfillState.PUBLISHED, rows={"published": 3}, snapshot_id=2**60)


def _done_item(ledger: Ledger, task: BackfillOperator) -> str:
    wanted = NewItem(
        kind=task.request.kind,
        subject=task.subject,
        payload=task.request.payload(),
        asked_by=task.asked_by,
        pool=Pool(name="spark_default-0", digest="d"),
    )
    (item,) = ask(ledger, wanted)
    application = begin_application(ledger, item, started_by="a test")
    assert application is not None
    assert beat(ledger, application)
    (claimed,) = claim(ledger, application, lambda waiting: waiting)
    assert end_item(ledger, claimed, application, WorkState.DONE)
    return item
