"""Runs for the decisions of persons that no schedule brings: of a stream that runs when its tables have new rows.

A run of the stream carries out what was decided about its held batch. One that the clock starts comes by itself; where
tables alone start it, the decision would wait for rows that may never come. So the reconciler triggers one run for each
decision, by Airflow's Execution API. Its id says which, so that it is triggered once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from airflow.sdk.exceptions import AirflowRuntimeError, ErrorType
from airflow.sdk.execution_time import task_runner
from airflow.sdk.execution_time.comms import ErrorResponse, TriggerDagRun

from sluice.ledger.held_batches import HeldBatch

_log = logging.getLogger(__name__)


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
