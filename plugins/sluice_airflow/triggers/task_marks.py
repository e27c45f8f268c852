"""Tells a task that a person has marked from one that was cleared, or only moved to another triggerer.

Airflow calls a trigger's `on_kill` when its task was cleared or marked, and (3.3, apache/airflow#73454) also when the
trigger was only given to another triggerer. So nothing is believed but the task's state, asked for afterwards.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from airflow.sdk.types import RuntimeTaskInstanceProtocol as TaskInstance

MARKED_STATES = frozenset({"failed", "skipped", "success"})
"""The states that a deferred task has after a person has marked it or its DAG run. Without the person it would be
deferred or running still; a cleared one has no state, or one on its way to be run again."""


async def is_marked(task: TaskInstance) -> bool:
    """Whether a deferred task was marked as done, one way or the other."""
    return await _state_of(task) in MARKED_STATES


async def _state_of(task: TaskInstance) -> str | None:
    from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

    states = await asyncio.to_thread(
        RuntimeTaskInstance.get_task_states, dag_id=task.dag_id, task_ids=[task.task_id], run_ids=[task.run_id]
    )
    state = states.get(task.run_id, {}).get(task.task_id)
    return None if state is None else str(state)


def hold_as_marked(ledger_url: str, stream: str, *, noticed_ago: timedelta) -> None:
    """Stop a stream gracefully, until a person clears the task, triggers or unpauses the DAG, or starts the stream.

    Parameters
    ----------
    noticed_ago: how long ago the trigger was told. On a busy machine it takes a minute until Airflow has said that the
        task was marked, and a person may have unpaused the DAG by then.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    from sluice.ledger.connection import open_ledger
    from sluice.ledger.desired_states import suspend
    from sluice.ledger.records.desired_state import SuspensionCause

    with open_ledger(ledger_url) as ledger:
        suspend(ledger, stream, SuspensionCause.MARKED, noticed_ago=noticed_ago)
