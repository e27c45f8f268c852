"""The executor of the local stack, with workers that are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
import tests.fixtures.airflow_home  # noqa: F401  # before Airflow is imported
from airflow.models.taskinstance import TaskInstance
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from tests.fixtures.drivers import await_condition

from sluice_airflow.executors.local_executor import RevokingLocalExecutor

MINUTE = timedelta(minutes=1)


@pytest.fixture
def executor() -> Iterator[RevokingLocalExecutor]:
    """An executor with one worker, which waits for work."""
    executor = RevokingLocalExecutor(parallelism=1)  # type: ignore[no-untyped-call]  # Airflow's
    executor.start()
    executor.sync()
    yield executor
    executor.end()


def queued(executor: RevokingLocalExecutor, *, at: datetime) -> TaskInstance:
    """A task that a worker has taken, and that has not begun."""
    with DAG("flights") as dag:
        EmptyOperator(task_id="supervise")
    task = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)).get_task("supervise")
    instance = TaskInstance(task=task, run_id="scheduled", dag_version_id=uuid4())
    instance.queued_dttm = at
    executor.running.add(instance.key)
    return instance


def kill_worker(executor: RevokingLocalExecutor) -> None:
    """SIGKILL for the worker, until the executor has seen it."""
    (worker,) = executor.workers.values()
    assert worker.pid is not None
    os.kill(worker.pid, signal.SIGKILL)
    worker.join()
    executor.sync()
    assert executor.workers == {}


def test_a_task_whose_worker_died_is_given_up_and_frees_its_slot(executor: RevokingLocalExecutor) -> None:
    task = queued(executor, at=datetime.now(UTC))
    kill_worker(executor)
    executor.revoke_task(ti=task)
    assert executor.running == set()


def test_a_slow_task_is_left_alone(executor: RevokingLocalExecutor) -> None:
    task = queued(executor, at=datetime.now(UTC) - MINUTE)
    with pytest.raises(NotImplementedError):
        executor.revoke_task(ti=task)
    assert executor.running == {task.key}


def test_a_task_that_was_queued_after_the_death_is_left_alone(executor: RevokingLocalExecutor) -> None:
    kill_worker(executor)
    with pytest.raises(NotImplementedError):
        executor.revoke_task(ti=queued(executor, at=datetime.now(UTC) + MINUTE))


def test_a_task_that_was_not_handed_to_a_worker_is_left_alone(executor: RevokingLocalExecutor) -> None:
    task = queued(executor, at=datetime.now(UTC))
    executor.running.clear()
    kill_worker(executor)
    with pytest.raises(NotImplementedError):
        executor.revoke_task(ti=task)


def test_nothing_is_given_up_while_the_queue_holds_work(executor: RevokingLocalExecutor) -> None:
    task = queued(executor, at=datetime.now(UTC))
    kill_worker(executor)
    executor.activity_queue.put(None)  # what ends a worker, the smallest piece of work
    await_condition(lambda: not executor.activity_queue.empty(), within_seconds=10)
    with pytest.raises(NotImplementedError):
        executor.revoke_task(ti=task)
