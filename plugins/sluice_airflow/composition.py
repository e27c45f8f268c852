"""The one place where ports meet adapters inside Airflow.

Operators and builders import this module when a task runs, because it imports the ledger and the launchers. Settings
and secrets come from the environment of the Airflow process; where Spark runs comes from an Airflow connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from sluice.launching.cluster.cluster_launcher import ClusterLauncher
from sluice.launching.launcher_by_connection import LauncherByConnection, cluster_launcher
from sluice.launching.local_launcher import LocalLauncher
from sluice.launching.spark_submit import SparkConnection, driver_request
from sluice.ledger.connection import Ledger, open_ledger
from sluice.settings import Settings, load_settings
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.supervisor import Supervisor
from sluice_airflow.adapters.spark_connection import read_spark_connection
from sluice_airflow.adapters.spark_submission import submit_by_provider


@dataclass(frozen=True, slots=True)
class Deployment:
    """The settings of this Airflow, and the parts made from them on demand."""

    settings: Settings

    @property
    def ledger_url(self) -> str:
        """The ledger's URL with its password: for a connection, never for a log."""
        return self.settings.ledger_url.get_secret_value()

    def open_ledger(self) -> Ledger:
        """Open the ledger; a context manager."""
        return open_ledger(self.ledger_url)

    def spark_connection(self, name: str) -> SparkConnection:
        """Where Spark runs, by an Airflow connection.

        Raises
        ------
        SettingsError: when there is no such connection, or it is not one of Spark.
        """
        return read_spark_connection(name)

    def supervisor(self, ledger: Ledger, *, launched_by: str) -> Supervisor:
        """The supervisor of streams, with drivers on this host and on clusters.

        Parameters
        ----------
        launched_by: the task or person that supervises, for messages.
        """
        return Supervisor(
            ledger=ledger,
            launcher=LauncherByConnection(
                local=LocalLauncher(ledger_url=self.ledger_url), cluster=partial(self._cluster, ledger)
            ),
            request_for=partial(driver_request, settings=self.settings, connections=self.spark_connection),
            launched_by=launched_by,
            heads=SourceHeads(self.settings),
        )

    def _cluster(self, ledger: Ledger, name: str) -> ClusterLauncher:
        connection = self.spark_connection(name)
        return cluster_launcher(name, connection, ledger=ledger, ledger_url=self.ledger_url, submit=submit_by_provider)


def load_deployment() -> Deployment:
    """Read the settings of this Airflow process.

    Raises
    ------
    SettingsError: when the environment does not describe a deployment.
    """
    return Deployment(load_settings())
