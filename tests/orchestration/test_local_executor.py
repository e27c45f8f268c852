"""The executor of the local stack, with workers that are killed."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from multiprocessing import Process
from pathlib import Path
from uuid import uuid4

import psutil
import pytest
import tests.fixtures.airflow_home  # noqa: F401  # before Airflow is imported
from airflow.executors.workloads.base import BundleInfo
from airflow.executors.workloads.task import ExecuteTask, TaskInstanceDTO
from airflow.models.taskinstance import TaskInstance
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization
from airflow.utils.state import TaskInstanceState
from sqlalchemy.orm import Session
from tests.fixtures.drivers import await_condition

from sluice_airflow.executors.local_executor import RevokingLocalExecutor

MINUTE = timedelta(minutes=1)


@pytest.fixture
def executor() -> Iterator[RevokingLocalExecutor]:
    """An executor with one worker, which waits for work."""
    executor = RevokingLocalExecutor(parallelism=1)
    executor.start()
    executor.sync()
    yield executor
    for worker in list(executor.workers.values()):  # one that has a task would try for long to reach Airflow's API
        end(worker)
    while not executor.activity_queue.empty():  # nor is there to be work for another one
        executor.activity_queue.get()
    executor.sync()
    executor.end()


def workload_of(instance: TaskInstance) -> ExecuteTask:
    """What the scheduler hands to the executor for a task."""
    return ExecuteTask(
        token="",
        ti=TaskInstanceDTO.model_validate(instance, from_attributes=True),
        dag_rel_path=Path("flights.py"),
        bundle_info=BundleInfo(name="dags-folder"),
        log_path=None,
    )


def handed_over(executor: RevokingLocalExecutor, *, at: datetime) -> TaskInstance:
    """A task that was queued at a time, as the scheduler queues it."""
    with DAG("flights") as dag:
        EmptyOperator(task_id="supervise")
    task = DagSerialization.deserialize_dag(DagSerialization.serialize_dag(dag)).get_task("supervise")
    instance = TaskInstance(task=task, run_id=f"scheduled_{uuid4()}", dag_version_id=uuid4())
    instance.id, instance.try_number, instance.pool_slots = uuid4(), 1, 1
    instance.queued_dttm = at
    executor.queue_workload(workload_of(instance), session=Session())
    return instance


def taken(executor: RevokingLocalExecutor, *, at: datetime) -> TaskInstance:
    """A task that a worker has taken, and that has not begun."""
    instance = handed_over(executor, at=at)
    executor.heartbeat()
    await_condition(executor.activity_queue.empty, within_seconds=10)
    return instance


def end(worker: Process) -> None:
    """SIGKILL for a worker and what it has started."""
    leader = psutil.Process(worker.pid)
    for process in (leader, *leader.children(recursive=True)):
        process.kill()
    worker.join()


def kill_worker(executor: RevokingLocalExecutor) -> None:
    """SIGKILL for the worker, which has a task, until the executor has seen it."""
    (worker,) = executor.workers.values()
    end(worker)
    executor.sync()
    assert executor.workers == {}


def test_a_task_whose_worker_died_is_given_up(executor: RevokingLocalExecutor) -> None:
    task = taken(executor, at=datetime.now(UTC))
    kill_worker(executor)
    executor.revoke_task(ti=task)


def test_a_slow_task_is_left_alone(executor: RevokingLocalExecutor) -> None:
    task = taken(executor, at=datetime.now(UTC) - MINUTE)
    with pytest.raises(NotImplementedError):
        executor.revoke_task(ti=task)


def test_a_task_that_was_queued_after_the_death_is_left_alone(executor: RevokingLocalExecutor) -> None:
    taken(executor, at=datetime.now(UTC))
    kill_worker(executor)
    task = taken(executor, at=datetime.now(UTC) + MINUTE)
    with pytest.raises(NotImplementedError):
        executor.revoke_task(ti=task)


def test_a_task_that_was_not_handed_to_a_worker_is_left_alone(executor: RevokingLocalExecutor) -> None:
    taken(executor, at=datetime.now(UTC))
    kill_worker(executor)
    task = handed_over(executor, at=datetime.now(UTC) - MINUTE)
    with pytest.raises(NotImplementedError):
        executor.revoke_task(ti=task)


def test_nothing_is_given_up_while_the_queue_holds_work(executor: RevokingLocalExecutor) -> None:
    task = taken(executor, at=datetime.now(UTC))
    kill_worker(executor)
    executor.activity_queue.put(None)  # what ends a worker, the smallest piece of work
    await_condition(lambda: not executor.activity_queue.empty(), within_seconds=10)
    with pytest.raises(NotImplementedError):
        executor.revoke_task(ti=task)


def test_the_end_of_a_turn_is_not_taken_for_that_of_the_next_one(executor: RevokingLocalExecutor) -> None:
    """The task was deferred, called back, and handed to a worker again before the first end was read."""
    task = taken(executor, at=datetime.now(UTC))
    executor.queue_workload(workload_of(task), session=Session())
    executor.heartbeat()

    executor.change_state(task.key, TaskInstanceState.SUCCESS)
    assert executor.get_event_buffer() == {}
    executor.change_state(task.key, TaskInstanceState.FAILED)
    assert executor.get_event_buffer() == {task.key: (TaskInstanceState.FAILED, None)}


def test_a_task_that_was_given_up_has_one_turn_again(executor: RevokingLocalExecutor) -> None:
    task = taken(executor, at=datetime.now(UTC))
    kill_worker(executor)
    executor.revoke_task(ti=task)
    executor.queue_workload(workload_of(task), session=Session())
    executor.heartbeat()

    executor.change_state(task.key, TaskInstanceState.SUCCESS)
    assert executor.get_event_buffer() == {task.key: (TaskInstanceState.SUCCESS, None)}
