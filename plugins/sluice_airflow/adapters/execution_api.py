"""What tasks ask Airflow by its Execution API, because they cannot read its database: how the DAGs of streams are, and
runs for the decisions of persons.

A run of a stream carries out what was decided about its held batch. One that the clock starts comes by itself; where
tables alone start it, the decision would wait for rows that may never come. So the reconciler triggers one run for each
decision. Its id says which, so that it is triggered once.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, GetPreviousDagRun, PreviousDagRunResult, TriggerDagRun

from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.held_batches import HeldBatch

_log = logging.getLogger(__name__)

_AHEAD = timedelta(days=1)
"""The newest DAG run is the one before a moment that no run has reached, however the clocks differ."""


def observe_dag(dag_id: str, *, airflow: str, counted: Collection[str] | None = None) -> DagObservation | None:
    """Observe the DAG of a stream; none for one that Airflow does not know.

    Only a paused DAG is asked for its newest runs. A run that was triggered without a logical date has no place in
    their order: what has failed is counted, too, when the DAG is paused, and once when it was unpaused.

    Parameters
    ----------
    airflow: the id of this Airflow.
    counted: the DAGs whose failed runs were counted since they were unpaused; unset: those of no unpaused DAG are.
    """
    count = task_runner.RuntimeTaskInstance.get_dr_count
    try:
        if not task_runner.RuntimeTaskInstance.get_dag(dag_id).is_paused:
            is_to_count = counted is not None and dag_id not in counted
            failed = count(dag_id, states=["failed"]) if is_to_count else None
            return DagObservation(airflow=airflow, is_paused=False, failed_runs=failed)
        runs = count(dag_id, states=["running"]) > 0
        return DagObservation(
            airflow=airflow,
            is_paused=True,
            has_failed=not runs and _has_failed(dag_id),
            has_runs=count(dag_id) > 0,
            failed_runs=None if runs else count(dag_id, states=["failed"]),
        )
    except AirflowRuntimeError as error:
        _log.info("stream=%s Airflow does not know its DAG: %s", dag_id, error)
        return None


def _has_failed(dag_id: str) -> bool:
    """Whether the newest run of a DAG with a logical date failed."""
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


def run_id_of(held: HeldBatch) -> str:
    """The id of the run for a decision: one that was withdrawn and made again gets another run."""
    decided_at = "" if held.decided_at is None else f"{held.decided_at:%Y-%m-%dT%H:%M:%S.%f}"
    return f"decision__{held.key.number}__{decided_at}"


def trigger_decisions(decided: Sequence[HeldBatch]) -> None:
    """Trigger a run of the DAG of each of these streams, unless it is paused or the run is there already. What Airflow
    refuses is logged, and asked for again with the next pass."""
    for held in decided:
        dag_id, run_id = held.key.stream, run_id_of(held)
        try:
            if _is_needless(dag_id, run_id):
                continue
            answer = task_runner.SUPERVISOR_COMMS.send(
                TriggerDagRun(
                    dag_id=dag_id,
                    run_id=run_id,
                    note=f"{held.decided_by} has {held.decision} batch {held.key.number}, which was held.",
                )
            )
        except AirflowRuntimeError as error:
            _log.warning("stream=%s no run is triggered for what was decided about its batch: %s", dag_id, error)
            continue
        if isinstance(answer, ErrorResponse) and answer.error is not ErrorType.DAGRUN_ALREADY_EXISTS:
            _log.warning("stream=%s no run is triggered for what was decided: %s", dag_id, answer.error)
        else:
            _log.info("stream=%s run %s carries out what was decided about its held batch", dag_id, run_id)


def _is_needless(dag_id: str, run_id: str) -> bool:
    """A paused DAG would have the run later, when its stream may have done it in another one."""
    if task_runner.RuntimeTaskInstance.get_dag(dag_id).is_paused:
        return True
    return task_runner.RuntimeTaskInstance.get_dr_count(dag_id, run_ids=[run_id]) > 0
