"""Airflow's LocalExecutor, and what it leaves out: a task whose worker died before the task had begun.

A worker takes a task off the executor's queue, and Airflow calls the task queued until its own process has reported. A
worker that is killed in between takes the task with it, which stays queued and holds a slot of the executor until the
scheduler is started anew. Airflow asks executors to give up what was queued for longer than `[scheduler]
task_queued_timeout`, and then queues it once more; LocalExecutor answers that it cannot.

See docs/decisions/a-dead-workers-task-is-queued-again.md.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from airflow.executors.local_executor import LocalExecutor

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance


class RevokingLocalExecutor(LocalExecutor):
    """A LocalExecutor that gives up the tasks of workers that died."""

    _seen_workers: frozenset[int] = frozenset()
    _worker_lost_at: datetime | None = None

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
        NotImplementedError: when no worker has died since the task was queued, or the task may still lie in the queue.
            Airflow leaves the task alone then, as it does with its own LocalExecutor.
        """
        lost_at = self._worker_lost_at
        if lost_at is None or ti.queued_dttm is None or ti.queued_dttm > lost_at or not self.activity_queue.empty():
            raise NotImplementedError
        self.log.warning("The worker of %s died before the task began: it is queued once more", ti)
        self.running.discard(ti.key)
