"""The one place where ports meet adapters inside Airflow.

Nothing is read while this module is imported. Settings and secrets come from the environment of the Airflow process;
where Spark runs comes from an Airflow connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sluice.launching.cluster.cluster_launcher import ClusterLauncher
    from sluice.launching.spark_submit import SparkConnection
    from sluice.ledger.connection import Ledger
    from sluice.settings import Settings
    from sluice.supervision.supervisor import Supervisor


@dataclass(frozen=True, slots=True)
class Deployment:
    """What this Airflow works with. Each part is made when it is asked for."""

    settings: Settings

    @property
    def ledger_url(self) -> str:
        """The ledger's address with its password: for a connection, never for a log."""
        return self.settings.ledger_url.get_secret_value()

    def open_ledger(self) -> Ledger:
        """Open the ledger; a context manager."""
        from sluice.ledger.connection import open_ledger

        return open_ledger(self.ledger_url)

    def spark_connection(self, name: str) -> SparkConnection:
        """Where Spark runs, as an Airflow connection says.

        Raises
        ------
        SettingsError: when there is no such connection, or it is not one of Spark.
        """
        from sluice_airflow.adapters.spark_connection import read_spark_connection

        return read_spark_connection(name)

    def supervisor(self, ledger: Ledger, *, launched_by: str) -> Supervisor:
        """What the supervision of streams works with: the ledger, drivers on this host and on clusters, and Spark.

        Parameters
        ----------
        launched_by: who supervises, for a person.
        """
        from sluice.launching.launcher_by_connection import LauncherByConnection
        from sluice.launching.local_launcher import LocalLauncher
        from sluice.launching.spark_submit import driver_request
        from sluice.sources.source_heads import SourceHeads
        from sluice.supervision.supervisor import Supervisor

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
        from sluice.launching.launcher_by_connection import cluster_launcher
        from sluice_airflow.adapters.spark_submission import submit_by_provider

        connection = self.spark_connection(name)
        return cluster_launcher(name, connection, ledger=ledger, ledger_url=self.ledger_url, submit=submit_by_provider)


def load_deployment() -> Deployment:
    """Read the settings of this Airflow process.

    Raises
    ------
    SettingsError: when the environment does not describe a deployment.
    """
    from sluice.settings import load_settings

    return Deployment(load_settings())
