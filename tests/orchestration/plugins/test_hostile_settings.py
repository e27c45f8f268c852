"""The DAGs that supervise streams under the defaults that a deployment may have chosen for its own DAGs."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from airflow.sdk import DAG, BaseOperator
from tests.fixtures.sample_declarations import write_continuous_stream

from sluice.declarations.load_declarations import load_declarations
from sluice_airflow.dag_builders.platform_dags import checkpoint_health_dag, stream_reconciler_dag
from sluice_airflow.dag_builders.streams import SUPERVISION_POOL, URGENT, continuous_stream_dag

HOSTILE = {
    "AIRFLOW__CORE__MAX_CONSECUTIVE_FAILED_DAG_RUNS_PER_DAG": "3",
    "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
    "AIRFLOW__CORE__MAX_ACTIVE_RUNS_PER_DAG": "7",
    "AIRFLOW__CORE__MAX_ACTIVE_TASKS_PER_DAG": "9",
    "AIRFLOW__CORE__DEFAULT_TASK_RETRIES": "5",
    "AIRFLOW__CORE__DEFAULT_TASK_EXECUTION_TIMEOUT": "1",
    "AIRFLOW__CORE__DEFAULT_TASK_WEIGHT_RULE": "upstream",
    "AIRFLOW__SCHEDULER__CATCHUP_BY_DEFAULT": "True",
}


@pytest.fixture
def _hostile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Defaults that would pause the reconciler, or cut its task off."""
    for name, value in HOSTILE.items():
        monkeypatch.setenv(name, value)


def only_task(dag: DAG) -> BaseOperator:
    """The one task of a DAG."""
    (task,) = dag.tasks
    assert isinstance(task, BaseOperator)
    return task


@pytest.mark.usefixtures("_hostile")
def test_no_default_of_the_deployment_pauses_or_starves_the_reconciler() -> None:
    dag = stream_reconciler_dag()
    task = only_task(dag)
    assert dag.max_consecutive_failed_dag_runs == 0, "one unhealthy stream reddens it each minute"
    assert (dag.is_paused_upon_creation, dag.catchup, dag.max_active_runs, dag.max_active_tasks) == (False, False, 1, 1)
    assert (task.retries, task.execution_timeout) == (0, timedelta(minutes=10))
    assert (task.pool, task.priority_weight, task.depends_on_past) == (SUPERVISION_POOL, URGENT, False)
    assert "absolute" in str(task.weight_rule).lower()


@pytest.mark.usefixtures("_hostile")
def test_nor_the_task_of_a_stream(folder: Path) -> None:
    write_continuous_stream(folder, "silver_flights")
    dag = continuous_stream_dag(load_declarations(folder).stream("silver_flights"))
    task = only_task(dag)
    assert (dag.max_consecutive_failed_dag_runs, dag.catchup, dag.max_active_runs) == (1, False, 1)
    assert (task.pool, task.priority_weight, task.execution_timeout) == (
        SUPERVISION_POOL,
        URGENT,
        timedelta(minutes=10),
    )


@pytest.mark.usefixtures("_hostile")
def test_nor_the_dag_that_watches_the_reconciler(folder: Path) -> None:
    dag = checkpoint_health_dag(load_declarations(folder))
    assert (dag.max_consecutive_failed_dag_runs, dag.is_paused_upon_creation) == (0, False)
