"""How a job is submitted with `spark-submit`: its arguments, the Spark connection, the request for a stream's driver.

Its arguments are a frozen value that Airflow and the command line turn into argv, and the job parses back. Every user
of the machine can read argv, so it contains names and no secret. A command runs a bounded job in the foreground.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.run_declaration import EngineDeclaration
from sluice.errors import LaunchError, SettingsError
from sluice.launching.job_output import FAILURE_MARK, last_after
from sluice.launching.launch_settings import job_environment, launch_conf, ui_environment
from sluice.launching.launcher_port import LaunchRequest
from sluice.ledger.run_values import RunObservation
from sluice.settings import Settings

if TYPE_CHECKING:
    from sluice.ledger.connection import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCommand:
    """One Spark application and its arguments. `application` is its file, relative to the project's root."""

    application: ClassVar[str]

    def arguments(self) -> list[str]:
        """Return the argv, one `--name=value` for each field, so that a value is never read as an option."""
        return [f"--{field.name.replace('_', '-')}={getattr(self, field.name)}" for field in fields(self)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStream(JobCommand):
    """Run a continuous stream as the run that the ledger has admitted."""

    application: ClassVar[str] = "jobs/run_stream.py"
    stream: str
    run_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunWork(JobCommand):
    """Do the bounded work of a pool.

    application_id: of the application, in the ledger.
    pool: for people who list processes.
    with_delta, repeats_tasks, ui: `yes` or `no`.
    cores: of a driver in local mode; empty for those of its launch.
    """

    application: ClassVar[str] = "jobs/run_work.py"
    application_id: str
    pool: str
    with_delta: str
    repeats_tasks: str
    ui: str
    cores: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidateStreams(JobCommand):
    """Let Spark analyse streams without running them. streams: names, comma separated."""

    application: ClassVar[str] = "jobs/validate_streams.py"
    folder: str
    streams: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviewStream(JobCommand):
    """Run a stream's transformation over a few rows of its inputs, without a checkpoint and without writing.

    sample: at most so many rows of an input are read.
    rows: at most so many rows of an output are shown.
    """

    application: ClassVar[str] = "jobs/preview_stream.py"
    folder: str
    stream: str
    sample: str
    rows: str


Command = TypeVar("Command", bound=JobCommand)


def parse_arguments(command: type[Command], argv: Sequence[str]) -> Command:
    """Read a job's arguments, the inverse of `JobCommand.arguments`.

    Exits with code 2 and a usage line when an argument is missing or unknown, as argparse does.
    """
    parser = argparse.ArgumentParser(description=command.__doc__, allow_abbrev=False)
    for field in fields(command):
        parser.add_argument(f"--{field.name.replace('_', '-')}", dest=field.name, required=True)
    return command(**vars(parser.parse_args(argv)))


SPARK_BINARY = "spark-submit"

DEFAULT_CONNECTION = "spark_default"
"""The Spark connection of streams and jobs that do not name one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkConnection:
    """Where Spark applications run: the content of Airflow's Spark connection.

    master: as Spark's `--master`.
    deploy_mode: `client` or `cluster`; unset leaves it to Spark.
    spark_binary: the program, a name on the PATH or a path.
    queue: the YARN queue; unset leaves it to YARN.
    resource_managers: the addresses of the web applications of YARN's ResourceManagers.
    user: the user who kills applications of YARN.
    """

    master: str = "local[*]"
    deploy_mode: str | None = None
    spark_binary: str = SPARK_BINARY
    queue: str | None = None
    resource_managers: tuple[str, ...] = ()
    user: str | None = None

    @property
    def is_cluster(self) -> bool:
        """Whether drivers run on the cluster's machines instead of the launching host."""
        return self.deploy_mode == "cluster"


def variable_of(connection: str) -> str:
    """Return the environment variable in which a deployment, or the local stack, sets an Airflow connection."""
    return f"AIRFLOW_CONN_{connection.upper()}"


def connection_in(environ: Mapping[str, str], name: str) -> SparkConnection:
    """Return the Spark connection of a name from the environment, so a command's drivers run where Airflow's run.

    Raises
    ------
    SettingsError: when it is not set, not JSON, or has no host. The connection itself stays out of the message.
    """
    variable = variable_of(name)
    if variable in environ:
        return connection_of(environ[variable], variable=variable)
    if name == DEFAULT_CONNECTION:
        return SparkConnection()
    raise SettingsError(
        f"{variable} is not set, so the Spark connection {name} is unknown to this command.",
        next_step="Set it, or start the stream by its DAG.",
    )


def connection_of(written: str, *, variable: str) -> SparkConnection:
    """Read an Airflow connection that is written as JSON, as in the variable AIRFLOW_CONN_SPARK_DEFAULT.

    Raises
    ------
    SettingsError: when it is not JSON, or has no host. The connection itself stays out of the message.
    """
    try:
        connection = json.loads(written)
        extra = connection.get("extra") or {}
        extra = json.loads(extra) if isinstance(extra, str) else extra
        extra = dict(extra)
        host, port = connection["host"], connection.get("port")
    except (ValueError, KeyError, AttributeError, TypeError):
        # `from None`: the cause would repeat the connection, and with it a password.
        raise SettingsError(
            f"{variable} is not a Spark connection that a command can read: a JSON object with a host.",
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
    """Return the addresses of YARN's REST API, under the Spark provider's key; of a pair both, comma separated."""
    addresses = str(extra.get("yarn_resourcemanager_webapp_address") or "")
    return tuple(address.strip() for address in addresses.split(",") if address.strip())


def driver_request(
    wanted: LoadedStream,
    run: RunObservation,
    *,
    settings: Settings,
    connections: Callable[[str], SparkConnection],
    ledger: Ledger,
) -> LaunchRequest:
    """Return the request that starts the driver of a continuous stream's run.

    The log is named after the time of the launch, so that a folder lists the runs of a stream in order.

    Parameters
    ----------
    connections: returns the Spark connection of a name.
    ledger: which gives the driver a pass, where drivers have a role of their own.

    Raises
    ------
    LaunchError: when `spark-submit` is not found.
    SettingsError: when the stream's Spark connection is missing or wrong.
    """
    engine, home = wanted.declaration.engine, settings.home
    name = engine.connection or DEFAULT_CONNECTION
    connection = connections(name)
    conf = launch_conf(home=home, jars=settings.jars, engine=engine, is_bounded=False, master=connection.master)
    job = RunStream(stream=run.stream, run_id=run.run_id)
    request = LaunchRequest(
        run_id=run.run_id,
        stream=run.stream,
        command=(str(home / job.application), *job.arguments()),
        environment={
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            **_ledger_of_driver(ledger, run.stream, settings),
            **ui_environment(engine, master=connection.master),
        },
        log_file=settings.logs / run.stream / f"{run.launched_at:%Y%m%dT%H%M%SZ}-{run.run_id[:8]}.log",
    )
    if connection.is_cluster:
        return replace(request, connection=name, conf=conf)
    command = spark_submit_command(connection, job, home=home, conf=conf, name=f"sluice {run.stream}")
    return replace(request, command=command)


def _ledger_of_driver(ledger: Ledger, stream: str, settings: Settings) -> dict[str, str]:
    """The variable with the ledger's URL for one driver, where drivers have a role of their own."""
    if settings.ledger_driver_url is None:
        return {}
    # SQLAlchemy, which commands that ask no ledger import this module without.
    from sluice.ledger.driver_access import give_pass, url_with_pass

    url = url_with_pass(settings.ledger_driver_url.get_secret_value(), give_pass(ledger, stream))
    return {"SLUICE_LEDGER_URL": url}


def spark_submit_command(
    connection: SparkConnection, command: JobCommand, *, home: Path, conf: Mapping[str, str], name: str
) -> tuple[str, ...]:
    """Return the argv that submits a job. Every user of the machine can read it, so it contains no secret.

    Parameters
    ----------
    home: the project's root, below which the job's application lies.
    conf: settings that must be known before the JVM starts (`sluice.launching.launch_settings.launch_conf`).
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
    """Return the full path of `spark-submit`: on the PATH, below SPARK_HOME, or inside the installed pyspark.

    Raises
    ------
    LaunchError: when none of them has it.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """The end of a job in the foreground.

    Parameters
    ----------
    exit_code: its exit status.
    output: what it wrote to stdout.
    failure: the class and message of the error that ended it; None when it named none.
    log: the file with everything that it and its JVM wrote. In client mode Spark joins the stderr of the Python process
        to its stdout, so that what the JVM wrote to stderr comes first.
    """

    exit_code: int
    output: str
    failure: str | None
    log: Path


def run_in_foreground(command: JobCommand, settings: Settings) -> JobEnd:
    """Submit a job to the default Spark and wait for its end. Its log goes to a file, which `JobEnd` names.

    Raises
    ------
    LaunchError: when `spark-submit` is not found.
    """
    conf = launch_conf(home=settings.home, jars=settings.jars, engine=EngineDeclaration(), is_bounded=True)
    argv = spark_submit_command(
        SparkConnection(), command, home=settings.home, conf=conf, name=f"sluice {command.application}"
    )
    settings.logs.mkdir(parents=True, exist_ok=True)
    log = settings.logs / f"{Path(command.application).stem}.log"
    with log.open("w", encoding="utf-8") as errors:
        ended = subprocess.run(  # noqa: S603  # built by us
            argv, stdout=subprocess.PIPE, stderr=errors, text=True, env=job_environment(os.environ)
        )
    with log.open("a", encoding="utf-8") as both:
        both.write(ended.stdout)
    failure = last_after(FAILURE_MARK, log.read_text(encoding="utf-8", errors="replace").splitlines())
    return JobEnd(exit_code=ended.returncode, output=ended.stdout, failure=failure, log=log)
