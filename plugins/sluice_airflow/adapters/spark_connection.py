"""Airflow's Spark connection in the launcher's words.

Bounded jobs read the same connection through the Spark provider, so this follows the provider's reading of it.
Source: https://airflow.apache.org/docs/apache-airflow-providers-apache-spark/6.3.4/connections/spark-submit.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.errors import SettingsError
from sluice.launching.spark_submit import DEFAULT_CONNECTION, SparkConnection, resource_managers_of, variable_of

if TYPE_CHECKING:
    from airflow.sdk import Connection

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
