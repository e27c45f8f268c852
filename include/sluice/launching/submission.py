"""The submission of an application to a cluster, with its settings in private files:

    spark-submit --master yarn --deploy-mode cluster --name 'sluice flights' --properties-file F jobs/run_stream.py …

Every user of the machine can read argv; only its owner can read a file, which is removed after the submission. What is
a Spark setting stands in event logs and on Spark's page of the environment. So the deployment's variables are not: they
are a file of the application, which its driver reads before anything else (`sluice.settings.take_settings_file`).
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import LaunchError
from sluice.launching.driver_records import open_log
from sluice.launching.launch_settings import job_environment
from sluice.launching.spark_submit import SparkConnection, find_spark_submit

SUBMITTED_WITHIN_SECONDS = 300.0
"""How long a submission may take, including the upload of files. An application that the cluster does not know so long
after its run was bound to it does not exist."""

_NOT_FOR_DRIVERS = frozenset({"SLUICE_STACK", "SLUICE_STACK_START", "SLUICE_DATA"})
"""The local stack that a process belongs to; an application of a cluster does not belong to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One application to submit.

    connection: the Spark connection's name.
    application: the file with its `main`.
    arguments: without secrets.
    properties_file: its settings; this user can read them during the submission.
    log_file: takes the output of the submitting program, unless Airflow's task log does.
    """

    connection: str
    name: str
    application: str
    arguments: tuple[str, ...]
    properties_file: Path
    log_file: Path


Submit = Callable[[Submission], None]
"""Submits, and returns when the cluster has accepted the application. Raises LaunchError when it did not, or when that
is unknown: the launcher asks the cluster then."""


def driver_environment(environ: Mapping[str, str], *, own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a driver on another machine: the deployment's settings, and the run's own variables.

    Parameters
    ----------
    environ: of the launching process; only `SLUICE_*` is passed on, and none of Airflow's secrets.
    own: the variables of this run, which take precedence.
    """
    settings = {name: value for name, value in job_environment(environ).items() if name.startswith("SLUICE_")}
    return {name: value for name, value in settings.items() if name not in _NOT_FOR_DRIVERS} | dict(own)


def private_properties(conf: Mapping[str, str]) -> AbstractContextManager[Path]:
    """Write these settings of Spark into a private file."""
    lines = (f"{_escaped(key)}={_escaped(value)}\n" for key, value in sorted(conf.items()))
    return private_file("".join(lines), suffix=".properties")


@contextmanager
def private_file(content: str, *, suffix: str) -> Iterator[Path]:
    """Write a file that only this user can read; it is removed when the block ends.

    Raises
    ------
    LaunchError: when it cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix="sluice-", suffix=suffix)  # with mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
    except OSError as error:
        raise LaunchError(
            f"The settings of the application cannot be written: {error}.",
            next_step=f"See that {tempfile.gettempdir()} can be written and has space.",
        ) from error
    try:
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


def _escaped(text: str) -> str:
    """Escape a text for java.util.Properties. Source: its `load(Reader)`."""
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"}
    escaped = "".join(escapes.get(character, character) for character in text)
    return escaped if not escaped.startswith(" ") else f"\\{escaped}"


def submit_by_program(connection: SparkConnection) -> Submit:
    """Return a function that submits with `spark-submit` itself, for commands outside Airflow."""

    def submit(submission: Submission) -> None:
        command = [find_spark_submit(connection.spark_binary), "--master", connection.master]
        command += ["--deploy-mode", "cluster", "--name", submission.name]
        command += ["--queue", connection.queue] if connection.queue else []
        command += ["--properties-file", str(submission.properties_file)]
        try:
            with open_log(submission.log_file) as log:
                ended = subprocess.run(  # noqa: S603  # our own command line, and no shell
                    [*command, submission.application, *submission.arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    timeout=SUBMITTED_WITHIN_SECONDS,
                )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LaunchError(
                f"{submission.name} could not be submitted: {error}.", next_step=f"See {submission.log_file}."
            ) from error
        if ended.returncode != 0:
            raise LaunchError(
                f"{submission.name} could not be submitted: spark-submit ended with {ended.returncode}.",
                next_step=f"See its output in {submission.log_file}.",
            )

    return submit
