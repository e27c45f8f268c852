"""What a person orders in Airflow: clear, mark, trigger, pause, unpause; through the public API, as the UI does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.faults.supervision.scene import Scene

TASK = "supervise"
_SUPERVISING = frozenset({"deferred", "running", "queued", "scheduled", "up_for_retry"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisingTask:
    """The task that supervises a stream. dag_run: its DAG run; state, attempt: as Airflow reports them now."""

    dag_run: str
    state: str
    attempt: int


def supervising_task(scene: Scene, stream: str) -> SupervisingTask | None:
    """The task of the stream's oldest DAG run that has not ended; none while there is none."""
    for run in reversed(scene.airflow.runs(stream)):
        if not run.has_ended:
            task = _task(scene, stream, run.run_id)
            if task["state"] in _SUPERVISING:
                return SupervisingTask(dag_run=run.run_id, state=task["state"], attempt=int(task["try_number"]))
    return None


def await_deferred(scene: Scene, stream: str, *, attempt: int = 0, dag_run: str | None = None) -> SupervisingTask:
    """The task once it waits beside its driver. attempt: of at least this number. dag_run: of this run and no other."""

    def deferred() -> SupervisingTask | None:
        task = supervising_task(scene, stream)
        if task is None or task.state != "deferred" or task.attempt < attempt:
            return None
        return task if dag_run in (None, task.dag_run) else None

    return scene.wait_for(deferred, f"the task of {stream} is deferred, attempt {attempt} or later")


def clear(scene: Scene, stream: str, dag_run: str) -> None:
    """Clear the supervising task of a DAG run."""
    body = {"dry_run": False, "dag_run_id": dag_run, "task_ids": [TASK], "only_failed": False}
    scene.airflow.request("POST", f"/api/v2/dags/{stream}/clearTaskInstances", json=body)


def task_instance_id(scene: Scene, stream: str, dag_run: str) -> str:
    """The id that Airflow gives the supervising task until its next try; its worker's process carries it."""
    return str(_task(scene, stream, dag_run)["id"])


def mark(scene: Scene, stream: str, dag_run: str, state: str) -> None:
    """Mark the supervising task of a DAG run as `failed` or `success`."""
    path = f"/api/v2/dags/{stream}/dagRuns/{dag_run}/taskInstances/{TASK}"
    scene.airflow.request("PATCH", path, json={"new_state": state})


def pause(scene: Scene, stream: str, *, is_paused: bool) -> None:
    """Pause or unpause the DAG of a stream."""
    scene.airflow.request("PATCH", f"/api/v2/dags/{stream}", json={"is_paused": is_paused})


def is_paused(scene: Scene, stream: str) -> bool:
    """Whether the DAG of a stream is paused."""
    return bool(scene.airflow.request("GET", f"/api/v2/dags/{stream}")["is_paused"])


def remove_dag_run(scene: Scene, stream: str, dag_run: str) -> None:
    """Take back a DAG run that waits in the queue: said to be done, it starts nothing."""
    scene.airflow.request("PATCH", f"/api/v2/dags/{stream}/dagRuns/{dag_run}", json={"state": "success"})


def _task(scene: Scene, stream: str, dag_run: str) -> dict[str, Any]:
    path = f"/api/v2/dags/{stream}/dagRuns/{dag_run}/taskInstances/{TASK}"
    return dict(scene.airflow.request("GET", path))
