"""What is submitted to a cluster, and by what: the settings of an application, which hold secrets, in a private file.

    spark-submit --master yarn --deploy-mode cluster --name 'sluice flights' --properties-file F jobs/run_stream.py …

Everybody on the machine reads an argv; the file is readable for its owner only, and gone when the submission is over.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sluice.errors import LaunchError
from sluice.launching.spark_submit import SparkConnection, find_spark_submit

SUBMITTED_WITHIN_SECONDS = 300.0
"""How long a submission may take before it is given up: files are uploaded meanwhile. An application that the cluster
does not know so long after its run was bound to it does not exist."""

_NOT_FOR_DRIVERS = frozenset({"SLUICE_STACK", "SLUICE_STACK_START", "SLUICE_DATA"})
"""Which stack of this machine a process belongs to; an application of a cluster belongs to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """One application that is to be submitted.

    connection: the Spark connection's name. application: the file with its `main`. arguments: its argv, nothing secret.
    properties_file: its settings; readable while the submission lasts, for this user only.
    log_file: takes what the submitting program says, where nothing else does.
    """

    connection: str
    name: str
    application: str
    arguments: tuple[str, ...]
    properties_file: Path
    log_file: Path


Submit = Callable[[Submission], None]
"""Submits, and returns when the cluster has taken the application in. Raises LaunchError when that did not come about,
or when nobody knows whether it did: the launcher asks the cluster then."""


def driver_environment(environ: Mapping[str, str], *, own: Mapping[str, str]) -> dict[str, str]:
    """The environment of a driver on another machine: the settings of this deployment, and what is the run's own.

    Parameters
    ----------
    environ: of the launching process; of it only `SLUICE_*` goes along, and none of Airflow's secrets.
    own: what is said of this run; it wins.
    """
    settings = {name: value for name, value in environ.items() if name.startswith("SLUICE_")}
    return {name: value for name, value in settings.items() if name not in _NOT_FOR_DRIVERS} | dict(own)


@contextmanager
def private_properties(conf: Mapping[str, str]) -> Iterator[Path]:
    """A file with these settings that only this user can read, gone when the block ends.

    Raises
    ------
    LaunchError: when it cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix="sluice-", suffix=".properties")  # with mode 0600
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in sorted(conf.items()))
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
    """As java.util.Properties reads it back. Source: its `load(Reader)`."""
    escapes = {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "=": "\\=", ":": "\\:", "#": "\\#", "!": "\\!"}
    escaped = "".join(escapes.get(character, character) for character in text)
    return escaped if not escaped.startswith(" ") else f"\\{escaped}"


def submit_by_program(connection: SparkConnection) -> Submit:
    """Submit by `spark-submit` itself, where there is no Airflow whose provider would do it."""

    def submit(submission: Submission) -> None:
        command = [find_spark_submit(connection.spark_binary), "--master", connection.master]
        command += ["--deploy-mode", "cluster", "--name", submission.name]
        command += ["--queue", connection.queue] if connection.queue else []
        command += ["--properties-file", str(submission.properties_file)]
        try:
            submission.log_file.parent.mkdir(parents=True, exist_ok=True)
            with submission.log_file.open("ab") as log:
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
                next_step=f"Its words are in {submission.log_file}.",
            )

    return submit
