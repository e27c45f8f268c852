"""The task of a backfill beside a real ledger: when it starts an application, and what it makes of the end of one."""

from __future__ import annotations

import gc
import json
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, TaskDeferred
from sluice.ledger.backfill_requests import application_lock, observe_request, take_request
from sluice.ledger.records.backfill_request import RequestState
from sluice_airflow.triggers.request_trigger import RequestTrigger
from tests.fixtures.deployment import deployment_environment
from tests.fixtures.sample_declarations import write_continuous_stream

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.connection import Ledger
from sluice_airflow.dag_builders.backfills import backfill_dag
from sluice_airflow.operators.backfill_operator import BackfillOperator

SPARK_SUBMIT = """\
import os, sys, pathlib, psycopg
pathlib.Path(os.environ["SEEN"]).write_text(" ".join(sys.argv))
with psycopg.connect(os.environ["SLUICE_LEDGER_URL"].replace("+psycopg", "")) as connection:
    if os.environ["REPLACES"]:
        connection.execute("UPDATE sluice.backfill_requests SET state = 'done', ended_at = now()")
print("sluice: failed: OSError: the application died", file=sys.stderr)
sys.exit(int(os.environ["EXITS_WITH"]))
"""


@pytest.fixture
def started(tmp_path: Path, folder: Path, ledger_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file that a `spark-submit` leaves when it starts: an application that dies, with its interval replaced."""
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{SPARK_SUBMIT}")
    program.chmod(0o755)
    for name, value in deployment_environment(tmp_path, pipelines=folder, ledger_url=ledger_url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path / "started"))
    monkeypatch.setenv("EXITS_WITH", "1")
    monkeypatch.setenv("REPLACES", "yes")
    connection = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    yield tmp_path / "started"
    with warnings.catch_warnings():  # the provider leaves the pipe of its process to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Pushed(dict[str, Any]):
    """What a task pushes as XCom."""

    def xcom_push(self, key: str, value: object) -> None:
        self[key] = value


def task_of_a_run(folder: Path) -> tuple[BackfillOperator, Context]:
    """The task of a run of the fifth of January, with its templates rendered, and its context."""
    write_continuous_stream(folder, "daily_flights", more="backfill: {column: at, interval: day, at_once: 3}\n")
    (task,) = backfill_dag(load_declarations(folder).stream("daily_flights")).tasks
    assert isinstance(task, BackfillOperator)
    run = SimpleNamespace(dag_id="daily_flights__backfill", run_id="backfill__5", run_type="backfill")
    task.application_args = [
        *("--stream=daily_flights", "--start=2013-01-05T00:00:00+00:00", "--end=2013-01-06T00:00:00+00:00"),
        "--launched-by=airflow: daily_flights__backfill, backfill__5",
    ]
    return task, Context(dag_run=run, ti=Pushed())  # type: ignore[typeddict-item]  # what the operator uses of a run


def number_of(task: BackfillOperator) -> int:
    """The request of a task."""
    assert task._number is not None
    return task._number


def test_it_starts_an_application_and_is_done_when_its_own_interval_is(
    started: Path, folder: Path, ledger: Ledger
) -> None:
    """The application has died at the interval of another run."""
    task, context = task_of_a_run(folder)

    task.execute(context)

    assert "--start=2013-01-05T00:00:00+00:00" in started.read_text()
    assert observe_request(ledger, number_of(task)).state is RequestState.DONE
    assert context["ti"] == {"results": {}}  # type: ignore[comparison-overlap]  # Pushed is a dict


def test_it_fails_when_its_application_dies_before(
    started: Path, folder: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REPLACES", "")
    task, context = task_of_a_run(folder)

    with pytest.raises(AirflowException, match="the application died"):
        task.execute(context)

    assert observe_request(ledger, number_of(task)).state is RequestState.WITHDRAWN, (
        "another run need not wait for this one"
    )


def test_beside_an_application_it_is_deferred_and_when_that_has_died_it_starts_the_next(
    started: Path, folder: Path, ledger: Ledger
) -> None:
    task, context = task_of_a_run(folder)
    with application_lock(ledger, "daily_flights"):
        with pytest.raises(TaskDeferred) as deferred:
            task.execute(context)
        assert take_request(ledger, "daily_flights", digest=load_declarations(folder).digest) is not None
    assert isinstance(trigger := deferred.value.trigger, RequestTrigger)
    assert trigger.number == number_of(task)
    assert trigger.launched_by == "airflow: daily_flights__backfill, backfill__5"
    assert not started.exists()

    task.look_again(context, {"seen": "taken"}, **(deferred.value.kwargs or {}))

    assert started.exists(), "the application has died: this run starts the next one"


def test_a_killed_task_asks_no_more(started: Path, folder: Path, ledger: Ledger) -> None:
    task, context = task_of_a_run(folder)
    with application_lock(ledger, "daily_flights"), pytest.raises(TaskDeferred):
        task.execute(context)

    task.on_kill()

    assert observe_request(ledger, number_of(task)).state is RequestState.WITHDRAWN
