"""The launch of a stream's driver: from an admitted run to the request that a launcher carries out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace

from sluice.declarations.loaded import LoadedStream
from sluice.launching.engine import launch_conf
from sluice.launching.job_command import RunStream
from sluice.launching.launcher_port import LaunchRequest
from sluice.launching.spark_submit import DEFAULT_CONNECTION, SparkConnection, spark_submit_command
from sluice.ledger.records.run import RunObservation
from sluice.settings import Settings


def driver_request(
    wanted: LoadedStream, run: RunObservation, *, settings: Settings, connections: Callable[[str], SparkConnection]
) -> LaunchRequest:
    """The request that starts the driver of a continuous stream's run.

    Its log is named after the moment of the launch, so that a folder lists the runs of a stream in order.

    Parameters
    ----------
    connections: the Spark connection of a name.

    Raises
    ------
    LaunchError: when `spark-submit` is not found.
    SettingsError: when the stream's Spark connection is missing or wrong.
    """
    name = wanted.declaration.engine.connection or DEFAULT_CONNECTION
    connection = connections(name)
    conf = launch_conf(
        home=settings.home,
        jars=settings.jars,
        engine=wanted.declaration.engine,
        is_bounded=False,
        master=connection.master,
    )
    job = RunStream(stream=run.stream, run_id=run.run_id)
    request = LaunchRequest(
        run_id=run.run_id,
        stream=run.stream,
        command=(str(settings.home / job.application), *job.arguments()),
        environment={"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        log_file=settings.logs / run.stream / f"{run.launched_at:%Y%m%dT%H%M%SZ}-{run.run_id[:8]}.log",
    )
    if connection.is_cluster:
        return replace(request, connection=name, conf=conf)
    command = spark_submit_command(connection, job, home=settings.home, conf=conf, name=f"sluice {run.stream}")
    return replace(request, command=command)
