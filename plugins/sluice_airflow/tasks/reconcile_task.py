"""What the task of the DAG `stream_reconciler` does when it runs."""

from __future__ import annotations

import logging

from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import SluiceError
from sluice.supervision.reconciler import reconcile
from sluice.supervision.supervisor import Supervisor
from sluice_airflow.adapters.paused_dags import paused_state
from sluice_airflow.composition import load_deployment

_log = logging.getLogger(__name__)


def reconcile_streams(*, launched_by: str) -> None:
    """Reconcile all continuous streams, one after the other.

    Raises
    ------
    AirflowFailException: when a stream could not be reconciled, or has become stalled or late; the others were
        reconciled.
    """
    is_paused = paused_state(get_current_context()["ti"])
    deployment = load_deployment()
    declarations = load_declarations(deployment.settings.pipelines)
    problems: list[str] = []
    with deployment.open_ledger() as ledger:
        supervisor = deployment.supervisor(ledger, launched_by=launched_by)
        for name in sorted(declarations.streams):
            stream = declarations.streams[name]
            if stream.declaration.mode == "continuous":
                problems.extend(_reconcile(supervisor, stream, is_paused=is_paused(name)))
    if problems:
        raise AirflowFailException(" ".join(problems))


def _reconcile(supervisor: Supervisor, stream: LoadedStream, *, is_paused: bool | None) -> list[str]:
    """Reconcile one stream. Returns its problems, so that one stream never keeps the others waiting."""
    try:
        done = reconcile(supervisor, stream, is_paused=is_paused)
    except SluiceError as error:
        _log.error("stream=%s %s", stream.name, error)
        return [f"{stream.name}: {error}"]
    decision = done.supervised.decision
    for change in done.changed:
        _log.info("stream=%s %s", stream.name, change)
    log = _log.info if decision.is_healthy or done.acted else _log.warning
    log("stream=%s acted=%s reason=%s %s", stream.name, done.acted, decision.reason, decision.explanation)
    return [f"{stream.name}: {done.alert}"] if done.alert else []
