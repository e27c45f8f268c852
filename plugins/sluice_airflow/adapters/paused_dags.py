"""Whether DAGs are paused, by Airflow's Execution API."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

_log = logging.getLogger(__name__)


def paused_state(task_instance: Any) -> Callable[[str], bool | None]:
    """A question to Airflow's Execution API: whether a DAG is paused; None for one that Airflow does not know."""

    def is_paused(dag_id: str) -> bool | None:
        try:
            return bool(task_instance.get_dag(dag_id).is_paused)
        except AirflowRuntimeError as error:
            _log.info("stream=%s Airflow does not know its DAG: %s", dag_id, error)
            return None

    return is_paused
