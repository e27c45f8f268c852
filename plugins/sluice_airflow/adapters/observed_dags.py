"""What Airflow says about the DAGs of streams, by its Execution API: tasks cannot read its database."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta

from airflow.sdk.exceptions import AirflowRuntimeError
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import GetPreviousDagRun, PreviousDagRunResult

from sluice.ledger.airflow_owner import DagObservation

_log = logging.getLogger(__name__)

_AHEAD = timedelta(days=1)
"""The newest DAG run is the one before a moment that no run has reached, however the clocks differ."""


def observe_dag(dag_id: str, *, airflow: str) -> DagObservation | None:
    """Observe the DAG of a stream; none for one that Airflow does not know.

    Only a paused DAG is asked for its newest runs. A run that was triggered without a logical date has no place in
    their order; while it runs the DAG has not failed.

    Parameters
    ----------
    airflow: the id of this Airflow.
    """
    try:
        if not task_runner.RuntimeTaskInstance.get_dag(dag_id).is_paused:
            return DagObservation(airflow=airflow, is_paused=False)
        has_runs = task_runner.RuntimeTaskInstance.get_dr_count(dag_id) > 0
        return DagObservation(airflow=airflow, is_paused=True, has_failed=_has_failed(dag_id), has_runs=has_runs)
    except AirflowRuntimeError as error:
        _log.info("stream=%s Airflow does not know its DAG: %s", dag_id, error)
        return None


def _has_failed(dag_id: str) -> bool:
    """Whether the newest run of a DAG failed and none runs."""
    if task_runner.RuntimeTaskInstance.get_dr_count(dag_id, states=["running"]):
        return False
    query = GetPreviousDagRun(dag_id=dag_id, logical_date=datetime.now(UTC) + _AHEAD)
    answer = task_runner.SUPERVISOR_COMMS.send(query)
    return isinstance(answer, PreviousDagRunResult) and answer.dag_run is not None and answer.dag_run.state == "failed"


def knows_dag_run(dag_id: str, run_id: str) -> bool:
    """Whether Airflow has a DAG run. When it does not answer, it is believed to: nothing follows then."""
    try:
        return task_runner.RuntimeTaskInstance.get_dr_count(dag_id, run_ids=[run_id]) > 0
    except AirflowRuntimeError as error:
        _log.info("Whether Airflow knows run %s of %s is unknown: %s", run_id, dag_id, error)
        return True
