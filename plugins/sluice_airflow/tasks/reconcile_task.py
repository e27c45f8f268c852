"""What the task of the DAG `stream_reconciler` does when it runs."""

from __future__ import annotations

import logging

from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import SettingsError, SluiceError
from sluice.ledger.connection import Ledger
from sluice.ledger.records.dag_pause import DagObservation
from sluice.supervision.reconciler import reconcile
from sluice.supervision.supervisor import Supervisor
from sluice_airflow.adapters.airflow_id import owning_airflow
from sluice_airflow.adapters.observed_dags import observe_dag
from sluice_airflow.composition import load_deployment

_log = logging.getLogger(__name__)


def reconcile_streams(*, launched_by: str) -> None:
    """Reconcile all continuous streams, one after the other.

    Raises
    ------
    AirflowFailException: when a stream could not be reconciled, or has become stalled or late; the others were
        reconciled. When the ledger belongs to another Airflow; then nothing is done.
    """
    deployment = load_deployment()
    declarations = load_declarations(deployment.settings.pipelines)
    problems: list[str] = []
    with deployment.open_ledger() as ledger:
        airflow = _owning_airflow(ledger)
        supervisor = deployment.supervisor(ledger, launched_by=launched_by)
        for name in sorted(declarations.streams):
            stream = declarations.streams[name]
            if stream.declaration.mode == "continuous":
                problems.extend(_reconcile(supervisor, stream, dag=observe_dag(name, airflow=airflow)))
    if problems:
        raise AirflowFailException(" ".join(problems))


def _owning_airflow(ledger: Ledger) -> str:
    try:
        return owning_airflow(ledger)
    except SettingsError as error:
        raise AirflowFailException(str(error)) from error


def _reconcile(supervisor: Supervisor, stream: LoadedStream, *, dag: DagObservation | None) -> list[str]:
    """Reconcile one stream. Returns its problems, so that one stream never keeps the others waiting."""
    try:
        done = reconcile(supervisor, stream, dag=dag)
    except SluiceError as error:
        _log.error("stream=%s %s", stream.name, error)
        return [f"{stream.name}: {error}"]
    decision = done.supervised.decision
    for change in done.changed:
        _log.info("stream=%s %s", stream.name, change)
    log = _log.info if decision.is_healthy or done.acted else _log.warning
    log("stream=%s acted=%s reason=%s %s", stream.name, done.acted, decision.reason, decision.explanation)
    return [f"{stream.name}: {done.alert}"] if done.alert else []
