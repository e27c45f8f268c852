"""What the task of the DAG `stream_reconciler` does when it runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial

from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import SettingsError
from sluice.ledger.connection import Ledger
from sluice.supervision.alerts import Alert
from sluice.supervision.reconciler import reconcile_all
from sluice_airflow.adapters.airflow_id import owning_airflow
from sluice_airflow.adapters.observed_dags import observe_dag
from sluice_airflow.composition import load_deployment

_log = logging.getLogger(__name__)


class StreamsUnhealthyError(AirflowFailException):
    """Streams are not as they were asked to be. It is `context["exception"]` of a failure callback.

    Parameters
    ----------
    alerts: what a person is to look at. Those that were in an earlier failed run already have `is_new` unset.
    """

    def __init__(self, alerts: Sequence[Alert]) -> None:
        super().__init__(" ".join(f"{alert.stream}: {alert.sentence}" for alert in alerts))
        self.alerts = tuple(alerts)


def reconcile_streams(*, launched_by: str) -> None:
    """Reconcile all continuous streams, and the runs that fit no declaration.

    Raises
    ------
    StreamsUnhealthyError: when a stream is unhealthy for longer than it may be, or could not be reconciled; the others
        were reconciled.
    AirflowFailException: when the ledger belongs to another Airflow; then nothing is done.
    """
    deployment = load_deployment()
    declarations = load_declarations(deployment.settings.pipelines)
    with deployment.open_ledger() as ledger:
        airflow = _owning_airflow(ledger)
        alerts = reconcile_all(
            deployment.supervisor(ledger, launched_by=launched_by),
            declarations,
            observe_dag=partial(observe_dag, airflow=airflow),
            number=int(time.time() // 60),
        )
    for alert in alerts:
        _log.error("stream=%s state=%s %s", alert.stream, alert.reason, alert.sentence)
    if alerts:
        raise StreamsUnhealthyError(alerts)


def _owning_airflow(ledger: Ledger) -> str:
    try:
        return owning_airflow(ledger)
    except SettingsError as error:
        raise AirflowFailException(str(error)) from error
