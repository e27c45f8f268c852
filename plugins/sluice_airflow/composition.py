"""The one place where ports meet adapters inside Airflow.

Operators and builders import this module when a task runs, because it imports the ledger and the launchers. Settings
and secrets come from the environment of the Airflow process; where Spark runs comes from an Airflow connection.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from airflow.configuration import conf

from sluice.launching.cluster_launcher import ClusterLauncher, cluster_launcher
from sluice.launching.launcher_port import LaunchRequest
from sluice.launching.launchers import LauncherByConnection, LocalLauncher
from sluice.launching.spark_submit import SparkConnection, driver_request
from sluice.ledger.connection import Ledger, open_ledger
from sluice.processes.process_identity import ProcessIdentity
from sluice.settings import Settings, load_settings
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.supervisor import Supervisor
from sluice.work.start_application import WorkQueue
from sluice_airflow.adapters.airflow_id import is_owner, owning_airflow
from sluice_airflow.adapters.spark_connection import read_spark_connection, require_lasting_worker, submit_by_provider


@dataclass(frozen=True, slots=True)
class Deployment:
    """The settings of this Airflow, and the parts made from them on demand."""

    settings: Settings

    @property
    def ledger_url(self) -> str:
        """The ledger's URL with its password: for a connection, never for a log."""
        return self.settings.ledger_url.get_secret_value()

    def open_ledger(self) -> Ledger:
        """Open the ledger to show it; a context manager. What may change it opens it by `open_owned_ledger`."""
        return open_ledger(self.ledger_url)

    def open_owned_ledger(self) -> Ledger:
        """Open the ledger of this Airflow; a context manager. The first Airflow that asks gets an unowned ledger.

        Raises
        ------
        SettingsError: when it belongs to another Airflow.
        """
        ledger = self.open_ledger()
        try:
            owning_airflow(ledger)
        except BaseException:  # whatever it is, it is raised again; no connection stays open
            ledger.close()
            raise
        return ledger

    async def owns_ledger(self) -> bool:
        """Whether this Airflow may change the ledger, for a trigger.

        Raises
        ------
        LedgerError: when the ledger cannot be reached.
        """
        return await is_owner(self.ledger_url)

    def spark_connection(self, name: str) -> SparkConnection:
        """Where Spark runs, by an Airflow connection.

        Raises
        ------
        SettingsError: when there is no such connection, or it is not one of Spark.
        """
        return read_spark_connection(name)

    def work_queue(self, ledger: Ledger, *, asked_by: str) -> WorkQueue:
        """The queue of bounded work, with applications on this host and on clusters.

        Parameters
        ----------
        asked_by: the run of a DAG that asks.
        """
        return WorkQueue(
            settings=self.settings,
            ledger=ledger,
            connections=self.spark_connection,
            launcher=self._launcher(ledger),
            asked_by=asked_by,
        )

    def supervisor(self, ledger: Ledger, *, launched_by: str) -> Supervisor:
        """The supervisor of streams, with drivers on this host and on clusters.

        Parameters
        ----------
        launched_by: the task or person that supervises, for messages.
        """
        return Supervisor(
            ledger=ledger,
            launcher=self._launcher(ledger),
            request_for=partial(
                driver_request, settings=self.settings, connections=self.spark_connection, ledger=ledger
            ),
            launched_by=launched_by,
            heads=SourceHeads(self.settings),
        )

    def _launcher(self, ledger: Ledger) -> LauncherByConnection:
        local = _WorkerLauncher(ledger_url=self.ledger_url)
        return LauncherByConnection(local=local, cluster=partial(self._cluster, ledger))

    def _cluster(self, ledger: Ledger, name: str) -> ClusterLauncher:
        connection = self.spark_connection(name)
        return cluster_launcher(name, connection, ledger=ledger, ledger_url=self.ledger_url, submit=submit_by_provider)


class _WorkerLauncher(LocalLauncher):
    """Starts drivers on the host of a worker that stays."""

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Start a driver.

        Raises
        ------
        SettingsError: when the driver would end together with the task that starts it.
        LaunchError: as `LocalLauncher` raises it.
        """
        require_lasting_worker(os.environ, executor=conf.get("core", "executor"))
        return super().launch(request)


def load_deployment() -> Deployment:
    """Read the settings of this Airflow process.

    Raises
    ------
    SettingsError: when the environment does not describe a deployment.
    """
    return Deployment(load_settings())
