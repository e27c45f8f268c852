"""The launcher of each driver: this host's, or that of the cluster which the stream's Spark connection names."""

from __future__ import annotations

import getpass
import logging
from collections.abc import Callable
from dataclasses import dataclass

from sluice.errors import LaunchError, SettingsError
from sluice.launching.cluster.cluster_launcher import ClusterLauncher
from sluice.launching.cluster.submission import Submit
from sluice.launching.cluster.yarn import YarnCluster, yarn_conf
from sluice.launching.launcher_port import Launcher, LaunchRequest
from sluice.launching.spark_submit import SparkConnection
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import DriverExit
from sluice.processes.process_identity import ProcessIdentity, ProcessState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherByConnection:
    """A launcher that delegates each driver to the launcher of its host or cluster.

    local: the launcher for drivers of this host.
    cluster: returns the launcher of a Spark connection; raises SettingsError when the connection is missing or wrong.
    """

    local: Launcher
    cluster: Callable[[str], Launcher]

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Start the driver where its request says.

        Raises
        ------
        LaunchError: as the launcher raises it, and when the connection cannot be used.
        """
        if request.connection is None:
            return self.local.launch(request)
        try:
            launcher = self.cluster(request.connection)
        except SettingsError as error:
            raise LaunchError(
                f"{request.described} was not started: {error.message}",
                next_step=error.next_step,
            ) from error
        return launcher.launch(request)

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """Observe whether a driver lives; UNKNOWN when its connection can no longer be used."""
        launcher = self._launcher_of(process)
        return ProcessState.UNKNOWN if launcher is None else launcher.observe(process)

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """Return how a driver that is gone has ended; none when its launcher does not know."""
        launcher = self._launcher_of(process)
        return None if launcher is None else launcher.exit_of(process)

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """End a driver; UNKNOWN when its connection can no longer be used.

        Raises
        ------
        LaunchError: when the driver survives it.
        """
        launcher = self._launcher_of(process)
        return ProcessState.UNKNOWN if launcher is None else launcher.stop(process, grace_seconds=grace_seconds)

    def _launcher_of(self, process: ProcessIdentity) -> Launcher | None:
        if process.application is None:
            return self.local
        try:
            return self.cluster(process.host)
        except SettingsError as error:
            _log.warning("application=%s %s", process.application, error)
            return None


def cluster_launcher(
    name: str, connection: SparkConnection, *, ledger: Ledger, ledger_url: str, submit: Submit
) -> ClusterLauncher:
    """Return the launcher of the cluster that a Spark connection leads to.

    Parameters
    ----------
    name: the connection's.
    ledger_url: the address of the ledger for drivers, which run on the cluster's machines.
    submit: submits through this connection.

    Raises
    ------
    SettingsError: when the connection leads to a kind of cluster that is not supported, or is incomplete.
    """
    return ClusterLauncher(
        connection=name,
        ledger=ledger,
        ledger_url=ledger_url,
        cluster=_yarn_of(name, connection),
        conf_for=yarn_conf,
        submit=submit,
    )


def _yarn_of(name: str, connection: SparkConnection) -> YarnCluster:
    _require_usable(name, connection)
    return YarnCluster(addresses=connection.resource_managers, user=connection.user or getpass.getuser())


def _require_usable(name: str, connection: SparkConnection) -> None:
    if connection.master.startswith("k8s"):
        raise SettingsError(
            f"The Spark connection {name} leads to Kubernetes in cluster mode, which does not work yet: it was never "
            "run on a Kubernetes cluster.",
            next_step="Use YARN, or the deploy-mode client with drivers on this host.",
        )
    if connection.master != "yarn" or not connection.is_cluster:
        raise SettingsError(
            f"The Spark connection {name} has the master {connection.master} and the deploy-mode "
            f"{connection.deploy_mode}; on a cluster Sluice runs with yarn and cluster.",
            next_step="See docs/guides/cluster.md.",
        )
    if not connection.resource_managers:
        raise SettingsError(
            f"The Spark connection {name} does not have the address of YARN's ResourceManager.",
            next_step='Write "yarn_resourcemanager_webapp_address": "http://host:8088" into its extra.',
        )
    wrong = [one for one in connection.resource_managers if not one.startswith(("http://", "https://"))]
    if wrong:
        raise SettingsError(
            f"The Spark connection {name} names the ResourceManager {wrong[0]}, which is not an http or https address.",
            next_step="Write it like http://host:8088.",
        )
