"""What the tasks of the DAG `ledger_upkeep` do when they run: keep the ledger, the logs and the checkpoints small."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.configuration import conf

from sluice.launching.driver_records import remove_driver_logs, remove_task_logs
from sluice.ledger.connection import database_time
from sluice.ledger.events import Actor
from sluice.ledger.retention import apply_retention, retention_of
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import newest_runs
from sluice.leftovers.observe_leftovers import Leftovers
from sluice.leftovers.remove_leftovers import clean
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice_airflow.composition import load_deployment

_log = logging.getLogger(__name__)


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
