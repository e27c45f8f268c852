"""Airflow's Spark connection: in the launcher's words, for the submission of drivers, and where drivers may run.

Bounded jobs read the same connection through the Spark provider, so this follows the provider's reading of it. Drivers
are submitted through its hook, which knows connections best: queue, principal, keytab. Neither the hook's `conf` nor
its `env_vars` is used: it writes both into the argv of `spark-submit`.

A driver is a detached process of the machine that launched it. Executors that give every task a container or function
of its own end everything in it as soon as the task defers, so no driver is started there. Source:
https://airflow.apache.org/docs/apache-airflow-providers-apache-spark/6.3.4/connections/spark-submit.html
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from sluice.errors import LaunchError, SettingsError
from sluice.launching.spark_submit import DEFAULT_CONNECTION, SparkConnection, resource_managers_of, variable_of

if TYPE_CHECKING:
    from airflow.sdk import Connection

    from sluice.launching.submission import Submission


_BINARIES = ("spark-submit", "spark2-submit", "spark3-submit")
"""What the Spark provider allows as `spark-binary`; streams and jobs are to take the same connections."""

_DEPLOY_MODES = (None, "client", "cluster")


def read_spark_connection(name: str = DEFAULT_CONNECTION) -> SparkConnection:
    """Look a connection up in Airflow.

    Raises
    ------
    SettingsError: when there is no such connection, or it cannot be used.
    """
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        connection = BaseHook.get_connection(name)
    except AirflowNotFoundException as error:
        raise SettingsError(
            f"Airflow has no connection {name}, which says where Spark runs.",
            next_step="Create it, of type Spark, for example with the host local[2].",
        ) from error
    return spark_connection_of(connection)


def spark_connection_of(connection: Connection) -> SparkConnection:
    """Read a Spark connection.

    Raises
    ------
    SettingsError: when it has no host, or names a program or a mode that is not allowed. Login and password stay out of
        the message.
    """
    name = connection.conn_id
    if not connection.host:
        raise _wrong(
            name, "it has no host", "The host is Spark's master, for example local[2], yarn or spark://host:7077"
        )
    extra = connection.extra_dejson
    binary = extra.get("spark-binary", _BINARIES[0])
    if binary not in _BINARIES:
        raise _wrong(name, f"its spark-binary is {binary!r}", f"Allowed are {', '.join(_BINARIES)}")
    deploy_mode = extra.get("deploy-mode")
    if deploy_mode not in _DEPLOY_MODES:
        raise _wrong(name, f"its deploy-mode is {deploy_mode!r}", "Allowed are client and cluster")
    return SparkConnection(
        master=_master(connection),
        deploy_mode=deploy_mode,
        spark_binary=binary,
        queue=extra.get("queue"),
        resource_managers=resource_managers_of(extra),
        user=connection.login,
    )


def _master(connection: Connection) -> str:
    """From the form, the host holds the whole master; from a URI, the scheme has become the connection's type."""
    host = connection.host or ""
    is_whole = connection.conn_type == "spark" and ("://" in host or not connection.port)
    master = host if is_whole else f"{connection.conn_type}://{host}"
    return f"{master}:{connection.port}" if connection.port else master


def _wrong(name: str, problem: str, allowed: str) -> SettingsError:
    return SettingsError(
        f"The Airflow connection {name} cannot be used: {problem}. {allowed}.",
        next_step=f"Correct it in Airflow under Admin, Connections, or in the variable {variable_of(name)}.",
    )


_POD = "AIRFLOW_IS_K8S_EXECUTOR_POD"
"""Airflow sets it in every pod that runs one task."""

_ONE_TASK_EXECUTORS = frozenset({"KubernetesExecutor", "AwsEcsExecutor", "AwsBatchExecutor", "AwsLambdaExecutor"})
"""The executors of Airflow's providers that run each task in a container or function of its own, by their names."""


def require_lasting_worker(environ: Mapping[str, str], *, executor: str) -> None:
    """Refuse to start a driver where it would end together with the task that starts it.

    Parameters
    ----------
    environ: of the task's process.
    executor: Airflow's setting `[core] executor`; the first of several runs the tasks of Sluice.

    Raises
    ------
    SettingsError: when each task has a container or function of its own.
    """
    first = executor.split(";")[0].split(",")[0].split(":")[-1].strip()
    if _POD not in environ and first.rsplit(".", 1)[-1] not in _ONE_TASK_EXECUTORS:
        return
    name = "KubernetesExecutor" if _POD in environ else first.rsplit(".", 1)[-1]
    raise SettingsError(
        f"Airflow's {name} gives each task a place of its own, which ends when the task waits; a driver that was "
        "started there would end with it.",
        next_step="Run drivers on YARN by a Spark connection (docs/guides/cluster.md), or streams on workers that "
        "stay: LocalExecutor or CeleryExecutor.",
    )


def submit_by_provider(submission: Submission) -> None:
    """Submit, and return when the cluster has taken the application in. What `spark-submit` says is in the task's log.

    Raises
    ------
    LaunchError: when that did not come about.
    """
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
    from airflow.sdk.exceptions import AirflowException

    try:
        SparkSubmitHook(
            conn_id=submission.connection,
            name=submission.name,
            application_args=list(submission.arguments),
            properties_file=str(submission.properties_file),
        ).submit(submission.application)
    except (AirflowException, OSError, ValueError) as error:
        # The provider's exception repeats the command line and the output, which the log has already.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise LaunchError(
            f"{submission.name} could not be submitted through the connection {submission.connection}: {lines[-1]}",
            next_step="What spark-submit said is in the task's log.",
        ) from None
