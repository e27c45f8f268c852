"""The command line of `spark-submit`: how a Spark connection, launch settings and a job's arguments become an argv."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sluice.errors import LaunchError, SettingsError
from sluice.launching.job_command import JobCommand

SPARK_BINARY = "spark-submit"

DEFAULT_CONNECTION = "spark_default"
"""The Spark connection of streams and jobs that name none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConnection:
    """Where Spark applications run; in Airflow the Spark connection says it.

    master: as Spark's `--master`.
    deploy_mode: `client` or `cluster`; unset leaves it to Spark.
    spark_binary: the program, a name on the PATH or a path.
    queue: the YARN queue; unset leaves it to YARN.
    resource_managers: where the web applications of YARN's ResourceManagers are.
    user: in whose name applications of YARN are ended.
    """

    master: str = "local[*]"
    deploy_mode: str | None = None
    spark_binary: str = SPARK_BINARY
    queue: str | None = None
    resource_managers: tuple[str, ...] = ()
    user: str | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether drivers run on the cluster's own machines, away from whoever launches them."""
        return self.deploy_mode == "cluster"


def variable_of(connection: str) -> str:
    """Where a deployment, and the local stack, write an Airflow connection."""
    return f"AIRFLOW_CONN_{connection.upper()}"


def connection_in(environ: Mapping[str, str], name: str) -> SparkConnection:
    """The Spark connection of a name, as a command finds it: so its drivers run where those of Airflow run.

    Raises
    ------
    SettingsError: when it is not set, not JSON, or names no host. The connection itself stays out of the message.
    """
    variable = variable_of(name)
    if variable in environ:
        return connection_of(environ[variable], variable=variable)
    if name == DEFAULT_CONNECTION:
        return SparkConnection()
    raise SettingsError(
        f"{variable} is not set, so a command cannot know where the Spark connection {name} leads.",
        next_step="Set it, or start the stream by its DAG.",
    )


def connection_of(written: str, *, variable: str) -> SparkConnection:
    """Read an Airflow connection that is written as JSON, as in the variable AIRFLOW_CONN_SPARK_DEFAULT.

    Raises
    ------
    SettingsError: when it is not JSON, or names no host. The connection itself stays out of the message.
    """
    try:
        connection = json.loads(written)
        extra = connection.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
        host, port = connection["host"], connection.get("port")
    except (ValueError, KeyError, AttributeError):
        # `from None`: the cause would repeat the connection, and with it a password.
        raise SettingsError(
            f"{variable} is not a Spark connection as a command reads it: a JSON object with a host.",
            next_step='Write it like {"conn_type": "spark", "host": "local[2]"}, or start the stream by its DAG.',
        ) from None
    return SparkConnection(
        master=f"{host}:{port}" if port else host,
        deploy_mode=extra.get("deploy-mode"),
        spark_binary=extra.get("spark-binary", SPARK_BINARY),
        queue=extra.get("queue"),
        resource_managers=resource_managers_of(extra),
        user=connection.get("login"),
    )


def resource_managers_of(extra: Mapping[str, Any]) -> tuple[str, ...]:
    """Where YARN's REST API is, by the provider's own word for it; of a pair both, comma separated."""
    told = str(extra.get("yarn_resourcemanager_webapp_address") or "")
    return tuple(address.strip() for address in told.split(",") if address.strip())


def spark_submit_command(
    connection: SparkConnection, command: JobCommand, *, home: Path, conf: Mapping[str, str], name: str
) -> tuple[str, ...]:
    """The argv that submits a job. Everybody on the machine may read it, so nothing secret is in it.

    Parameters
    ----------
    home: the project's root, below which the job's application lies.
    conf: settings that must be known before the JVM starts (`sluice.launching.engine.launch_conf`).
    name: the application's name in Spark's listings.

    Raises
    ------
    LaunchError: when `spark-submit` is not found.
    """
    deploy_mode = ("--deploy-mode", connection.deploy_mode) if connection.deploy_mode else ()
    settings = (part for key, value in sorted(conf.items()) for part in ("--conf", f"{key}={value}"))
    return (
        *(find_spark_submit(connection.spark_binary), "--master", connection.master, *deploy_mode, "--name", name),
        *settings,
        str(home / command.application),
        *command.arguments(),
    )


def find_spark_submit(binary: str) -> str:
    """The full path of `spark-submit`: on the PATH, below SPARK_HOME, or inside the installed pyspark.

    Raises
    ------
    LaunchError: when it is in none of them.
    """
    places = [Path(os.environ["SPARK_HOME"]) / "bin"] if "SPARK_HOME" in os.environ else []
    pyspark = find_spec("pyspark")  # finds the package without importing it
    if pyspark is not None and pyspark.submodule_search_locations:
        places.append(Path(pyspark.submodule_search_locations[0]) / "bin")
    candidates = [shutil.which(binary), *(shutil.which(binary, path=str(place)) for place in places)]
    for candidate in candidates:
        if candidate is not None:
            return candidate
    raise LaunchError(
        f"{binary} is not found: not on the PATH, not below SPARK_HOME ({os.environ.get('SPARK_HOME', 'unset')}), "
        "not in an installed pyspark.",
        next_step="See the binary of the Spark connection.",
    )
