"""From a Spark connection to the launcher of its cluster."""

from __future__ import annotations

import getpass

from sluice.errors import SettingsError
from sluice.launching.cluster.cluster_launcher import ClusterLauncher
from sluice.launching.cluster.submission import Submit
from sluice.launching.cluster.yarn import YarnCluster
from sluice.launching.cluster.yarn_conf import yarn_conf
from sluice.launching.spark_submit import SparkConnection
from sluice.ledger.connection import Ledger


def cluster_launcher(
    name: str, connection: SparkConnection, *, ledger: Ledger, ledger_url: str, submit: Submit
) -> ClusterLauncher:
    """The launcher of the cluster that a Spark connection leads to.

    Parameters
    ----------
    name: the connection's.
    ledger_url: what drivers reach the ledger by, from the cluster's machines.
    submit: submits through this connection.

    Raises
    ------
    SettingsError: when the connection is of a kind of cluster that does not work yet, or lacks what is needed.
    """
    if connection.master.startswith("k8s"):
        raise SettingsError(
            f"The Spark connection {name} leads to Kubernetes in cluster mode, which does not work yet: it was never "
            "run on one.",
            next_step="Use YARN, or the deploy-mode client with drivers on this host.",
        )
    if connection.master != "yarn" or not connection.is_cluster:
        raise SettingsError(
            f"The Spark connection {name} has the master {connection.master} and the deploy-mode "
            f"{connection.deploy_mode}; drivers of streams run on a cluster with yarn and cluster.",
            next_step="See docs/guides/cluster.md.",
        )
    if not connection.resource_managers:
        raise SettingsError(
            f"The Spark connection {name} does not say where YARN's ResourceManager is asked about its applications.",
            next_step='Write "yarn_resourcemanager_webapp_address": "http://host:8088" into its extra.',
        )
    wrong = [one for one in connection.resource_managers if not one.startswith(("http://", "https://"))]
    if wrong:
        raise SettingsError(
            f"The Spark connection {name} names the ResourceManager {wrong[0]}, which is no http or https address.",
            next_step="Write it like http://host:8088.",
        )
    return ClusterLauncher(
        connection=name,
        ledger=ledger,
        ledger_url=ledger_url,
        cluster=YarnCluster(addresses=connection.resource_managers, user=connection.user or getpass.getuser()),
        conf_for=yarn_conf,
        submit=submit,
    )
