"""The task that supervises a continuous stream: it observes, decides and acts, then waits without a worker slot.

`sluice_airflow.tasks` is imported when the task runs: the DAG file that imports this module is parsed all the time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from airflow.sdk import Context

    from sluice_airflow.tasks.stream_task import StreamTask
    from sluice_airflow.triggers.ledger_trigger import LedgerTrigger

POLL_SECONDS = 2.0
"""Between two looks at the ledger: one small query, and the end of a driver is noticed within this time."""


class StreamOperator(BaseOperator):
    """Keep a continuous stream in its desired state.

    The driver is not a child of this task. Whichever task runs next (after a restart of Airflow, a retry, a cleared
    task, in another DAG run) finds the run in the ledger and adopts it. While there is nothing to do the task is
    deferred: the triggerer polls the ledger, and no worker slot is held.

    Parameters
    ----------
    stream: the stream's name; its declaration is read when the task runs.
    poll_seconds: between two looks at the ledger while the task is deferred.
    """

    ui_color = "#d8ecf3"

    def __init__(self, *, stream: str, poll_seconds: float = POLL_SECONDS, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.stream = stream
        self.poll_seconds = poll_seconds

    def execute(self, context: Context) -> None:
        """Begin to supervise; see `StreamTask.begin`."""
        self._wait(self._task(context).begin(retries=self.retries or 0))

    def look_again(self, context: Context, event: Mapping[str, Any] | None = None) -> None:
        """Continue after a trigger fired. Airflow's database holds this name for every deferred task."""
        self._wait(self._task(context).resume(event))

    def _task(self, context: Context) -> StreamTask:
        from sluice_airflow.tasks.stream_task import StreamTask

        return StreamTask(stream=self.stream, poll_seconds=self.poll_seconds, context=context)

    def _wait(self, trigger: LedgerTrigger | None) -> None:
        if trigger is not None:
            self.defer(trigger=trigger, method_name=self.look_again.__name__)
