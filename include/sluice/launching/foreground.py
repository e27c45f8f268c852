"""Runs a bounded job in the foreground, for a command of the command line."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from sluice.declarations.engine_declaration import EngineDeclaration
from sluice.launching.job_command import JobCommand
from sluice.launching.job_environment import job_environment
from sluice.launching.launch_settings import launch_conf
from sluice.launching.spark_submit import SparkConnection, spark_submit_command
from sluice.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """The end of a job: its exit status and, when it was kept, its output."""

    exit_code: int
    output: str


def run_in_foreground(
    command: JobCommand, settings: Settings, *, keeps_output: bool, engine: EngineDeclaration | None = None
) -> JobEnd:
    """Submit a job to the default Spark and wait for its end. Its log goes to this process's stderr.

    Parameters
    ----------
    keeps_output: return the job's output instead of showing it.
    engine: the resources of the driver, as a stream declares them; the defaults if unset.

    Raises
    ------
    LaunchError: when `spark-submit` is not found.
    """
    argv = _submission(command, settings, engine)
    output = subprocess.PIPE if keeps_output else None
    ended = subprocess.run(argv, stdout=output, text=True, env=job_environment(os.environ))  # noqa: S603  # built by us
    return JobEnd(exit_code=ended.returncode, output=ended.stdout or "")


def _submission(command: JobCommand, settings: Settings, engine: EngineDeclaration | None) -> tuple[str, ...]:
    conf = launch_conf(home=settings.home, jars=settings.jars, engine=engine or EngineDeclaration(), is_bounded=True)
    return spark_submit_command(
        SparkConnection(), command, home=settings.home, conf=conf, name=f"sluice {command.application}"
    )
