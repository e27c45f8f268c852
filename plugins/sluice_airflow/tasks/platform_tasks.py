"""What the tasks of the DAGs `stream_reconciler` and `ledger_upkeep` do when they run."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from airflow.configuration import conf
from airflow.sdk import get_current_context
from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations
from sluice.errors import SettingsError
from sluice.launching.driver_records import remove_driver_logs, remove_task_logs
from sluice.ledger.airflow_owner import begin_pass, counted_dags, end_pass, forget_dags, missing_for
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import Actor
from sluice.ledger.held_batches import decided_batches
from sluice.ledger.retention import apply_retention, retention_of
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import newest_runs
from sluice.ledger.stream_troubles import clear_trouble, record_report, record_trouble
from sluice.leftovers.observe_leftovers import Leftovers
from sluice.leftovers.remove_leftovers import clean
from sluice.messages import in_words
from sluice.processes.deadline import wait_until
from sluice.settings import Settings
from sluice.supervision.alerts import Alert
from sluice.supervision.reconciler import reconcile_all
from sluice.tables.catalog import open_catalog
from sluice_airflow.adapters.airflow_id import owning_airflow
from sluice_airflow.adapters.execution_api import knows_dag_run, observe_dag, trigger_decisions
from sluice_airflow.composition import load_deployment

_log = logging.getLogger(__name__)

RECONCILER = "stream_reconciler"
"""The DAG of this task."""


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
    """Reconcile all continuous streams, and the runs that fit no declaration. What was decided about held batches of
    streams without a clock gets its run.

    Raises
    ------
    StreamsUnhealthyError: when a stream is unhealthy for longer than it may be, or could not be reconciled; the others
        were reconciled.
    AirflowFailException: when the ledger belongs to another Airflow; then nothing is done.
    """
    deployment = load_deployment()
    declarations = load_declarations(deployment.settings.pipelines)
    try:
        owned = deployment.open_owned_ledger()
    except SettingsError as error:
        raise AirflowFailException(str(error)) from error
    with owned as ledger:
        airflow = owning_airflow(ledger)
        dag_run = str(get_current_context()["run_id"])
        _begin(ledger, airflow=airflow, dag_run=dag_run)
        alerts = reconcile_all(
            deployment.supervisor(ledger, launched_by=launched_by),
            declarations,
            observe_dag=partial(
                observe_dag,
                airflow=airflow,
                counted=counted_dags(ledger, list(declarations.streams), airflow=airflow),
            ),
            number=int(time.time() // 60),
        )
        trigger_decisions(decided_batches(ledger, _without_clock(declarations)))
        end_pass(ledger, dag_run)
    for alert in alerts:
        _log.error("stream=%s state=%s %s", alert.stream, alert.reason, alert.sentence)
    if alerts:
        raise StreamsUnhealthyError(alerts)


def _without_clock(declarations: Declarations) -> list[str]:
    """The streams that run when their tables have new rows, and not otherwise."""
    schedules = {name: stream.declaration.schedule for name, stream in declarations.streams.items()}
    return [name for name, schedule in schedules.items() if schedule is not None and schedule.is_by_tables_alone]


def _begin(ledger: Ledger, *, airflow: str, dag_run: str) -> None:
    """Record that a pass begins. A metadata database that does not know the pass before is not the one that made it:
    what that one said about its DAGs does not count."""
    before = begin_pass(ledger, dag_run)
    if before is not None and not knows_dag_run(RECONCILER, before.dag_run):
        forgotten = forget_dags(ledger, airflow)
        _log.warning(
            "Airflow does not know the pass %s: what it said of %d DAGs is forgotten", before.dag_run, forgotten
        )


def await_pass(ledger: Ledger, *, seconds: float, poll_seconds: float = 5.0) -> timedelta | None:
    """How long the reconciler is missing when it was waited for; none when it is there. One that is there is not waited
    for."""
    return wait_until(
        lambda: missing_for(ledger), lambda missing: missing is None, seconds=seconds, poll_seconds=poll_seconds
    )


THE_RECONCILER = "the reconciler"
"""The subject of its own trouble; no stream can have this name."""


PASS_WITHIN_SECONDS = 120.0
"""How long a reconciler that is missing is waited for: after a start of Airflow both DAGs are due at once."""


def require_reconciler(*, by: str) -> None:
    """Fail when the reconciler makes no passes: another DAG watches the one that watches the streams.

    Raises
    ------
    StreamsUnhealthyError: when its newest pass began too long ago, and none begins in `PASS_WITHIN_SECONDS`.
    """
    with load_deployment().open_owned_ledger() as ledger:
        missing = await_pass(ledger, seconds=PASS_WITHIN_SECONDS)
        if missing is None:
            clear_trouble(ledger, THE_RECONCILER, by=by)
            return
        sentence = (
            f"The DAG {RECONCILER} has begun no pass for {in_words(missing)}: no stream is restarted or alerted. See "
            "that it is unpaused, that the pool `supervision` exists and has a free slot, and that the scheduler runs."
        )
        trouble = record_trouble(ledger, THE_RECONCILER, reason="no passes", explanation=sentence, by=by)
        is_new = record_report(ledger, trouble, by=by)
    raise StreamsUnhealthyError([Alert(stream=THE_RECONCILER, sentence=sentence, reason="no passes", is_new=is_new)])


def tidy_ledger(*, dags: Collection[str]) -> None:
    """Forget, archive and delete what the ledger keeps for long enough, and the old logs on this host.

    Parameters
    ----------
    dags: whose tasks end within minutes, so that their old logs are deleted.
    """
    deployment = load_deployment()
    settings, now = deployment.settings, datetime.now(UTC)
    with deployment.open_owned_ledger() as ledger:
        try:
            done = apply_retention(ledger, retention_of(settings))
            _log.info("%d batches deleted, %d runs archived", done.batches, done.runs)
            _log.info("%d events, %d work items, %d other records deleted", done.events, done.work_items, done.records)
        finally:  # the logs are cleaned whatever became of the ledger
            _remove_logs(settings, newest_runs(ledger), now=now, dags=dags)


def remove_leftovers() -> None:
    """Remove what streams left behind and nothing needs any more, once its grace is over."""
    deployment = load_deployment()
    with deployment.open_owned_ledger() as ledger:
        left = Leftovers(
            catalog=open_catalog(deployment.settings),
            ledger=ledger,
            settings=deployment.settings,
            now=database_time(ledger),
        )
        removed = clean(left, actor=Actor.component("airflow: ledger_upkeep"))
    _log.info("%d leftovers removed: %s", len(removed), [one.place for one in removed])


def _remove_logs(settings: Settings, newest: Sequence[RunObservation], *, now: datetime, dags: Collection[str]) -> None:
    before = now - timedelta(days=settings.driver_logs_kept_days)
    _log.info("%d log files of drivers deleted", remove_driver_logs(settings.logs, before=before, newest_runs=newest))
    before = now - timedelta(days=settings.airflow_logs_kept_days)
    logs = Path(conf.get("logging", "base_log_folder"))
    _log.info("%d logs of tasks deleted", remove_task_logs(logs, before=before, dags=dags))
