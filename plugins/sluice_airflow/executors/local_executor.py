"""Airflow's LocalExecutor, and what it leaves out: tasks whose worker died before they had begun, and deferred tasks.

A worker takes a task off the executor's queue, and Airflow calls the task queued until its own process has reported. A
worker that is killed in between takes the task with it, which stays queued until the scheduler is restarted. Airflow
asks executors to give up what was queued for longer than `[scheduler] task_queued_timeout`, and then queues it once
more; LocalExecutor answers that it cannot.

See decision 0030.

A task that was deferred may be called back and queued again before the scheduler has read that its first turn on a
worker has ended. The scheduler then takes that end for the second turn's, whose task has not reported, and fails the
try. Here the end of a turn is reported only when no later one has been handed to a worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.executors.local_executor import LocalExecutor

if TYPE_CHECKING:
    from airflow.executors.workloads.types import WorkloadKey, WorkloadState
    from airflow.models.taskinstance import TaskInstance


class RevokingLocalExecutor(LocalExecutor):
    """A LocalExecutor that gives up the tasks of workers that died, and knows the turns of a task apart."""

    _seen_workers: frozenset[int] = frozenset()
    _worker_lost_at: datetime | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]  # Airflow's
        self._turns: Counter[WorkloadKey] = Counter()

    def change_state(
        self, key: WorkloadKey, state: WorkloadState, info: Any = None, remove_running: bool = True
    ) -> None:
        """Report how a turn of a task ended, unless the task was deferred, and a worker has its next turn already."""
        self._turns[key] -= 1
        if self._turns[key] > 0:
            self.log.info("A turn of %s has ended (%s); a worker has its next one", key, state)
            return
        del self._turns[key]
        super().change_state(key, state, info, remove_running)

    def sync(self) -> None:
        """Read results, replace workers that died, and remember that some did."""
        super().sync()
        workers = frozenset(self.workers)
        if self._seen_workers - workers:
            self._worker_lost_at = datetime.now(UTC)
        self._seen_workers = workers

    def revoke_task(self, *, ti: TaskInstance) -> None:
        """Give up a task that a worker took with it when it died.

        A task that waits for a worker is not given up, nor one that starts slowly while all workers live: it would run
        twice.

        Parameters
        ----------
        ti: has been queued for too long.

        Raises
        ------
        NotImplementedError: when no worker has died since the task was queued, or the task may not have reached one.
            By this word Airflow leaves a task alone, as it does with its own LocalExecutor.
        """
        if self._may_wait(ti) or not self._may_be_lost(ti):
            raise NotImplementedError
        del self._turns[ti.key]
        self.log.warning("The worker of %s died before the task began: it is queued once more", ti)

    def _process_workloads(self, workload_list: Sequence[Any]) -> None:
        self._turns.update(workload.key for workload in workload_list)
        super()._process_workloads(workload_list)  # type: ignore[no-untyped-call]  # Airflow's

    def _may_wait(self, ti: TaskInstance) -> bool:
        """Whether a task may not have reached a worker: it waits in the executor, or in the queue of the workers.

        `running` does not show it: Airflow 3.3's LocalExecutor adds no task to it.
        """
        return ti.key in self.queued_tasks or not self.activity_queue.empty()

    def _may_be_lost(self, ti: TaskInstance) -> bool:
        """Whether a worker has died since a task was queued."""
        lost_at, queued_at = self._worker_lost_at, ti.queued_dttm
        return lost_at is not None and queued_at is not None and queued_at <= lost_at
