"""The settings of everything that runs in the stack, and the private file that holds them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sluice.errors import StackError
from sluice.stack.airflow_settings import airflow_environment, database_url
from sluice.stack.credentials import KAFKA_USER
from sluice.stack.folder import StackFolder, write_private
from sluice.stack.stack_plan import Command, StackPlan

STACK_MARK = "SLUICE_STACK"
"""A variable in the environment of every process of a stack: the stack's data folder. Children inherit it, so drivers
and workers are found too. It is not in the environment file: a shell that sources the file does not belong to the
stack."""

START_MARK = "SLUICE_STACK_START"
"""A variable in the environment of every process of a stack: the id of the `up` that started it. The processes of an
interrupted `up` are found by it."""

CATALOG_NAME = "lakehouse"
TABLE_BUCKET = "lakehouse"
LANDING_BUCKET = "landing"

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_FROM_THE_SHELL = ("HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SSL_CERT_FILE")


def build_environment(plan: StackPlan, *, caller: Mapping[str, str]) -> dict[str, str]:
    """Every setting, made from the ports, credentials and tools of a plan.

    Parameters
    ----------
    plan: the stack; its own environment is not read.
    caller: the environment of the command that starts it.
    """
    return {
        **_program_environment(plan),
        # Before the stack's own: a caller that loaded the environment of an earlier start may hold old ports.
        **_passed_on(caller, "SLUICE_CONNECTIONS__"),
        **_sluice_environment(plan, pipelines=caller.get("SLUICE_PIPELINES")),
        **airflow_environment(plan),
        **_passed_on(caller, "AIRFLOW_CONN_", "AIRFLOW_VAR_"),
    }


def _passed_on(caller: Mapping[str, str], *prefixes: str) -> dict[str, str]:
    """What a user adds in the shell that calls `up`: connections of their streams and DAGs, variables of their DAGs."""
    return {name: value for name, value in caller.items() if name.startswith(prefixes)}


def _program_environment(plan: StackPlan) -> dict[str, str]:
    tools = plan.tools
    return {
        "PATH": f"{tools.python.parent}:{tools.java_home / 'bin'}:{_SYSTEM_PATH}",
        "JAVA_HOME": str(tools.java_home),
        "SPARK_HOME": str(tools.spark_home),
        "PYSPARK_PYTHON": str(tools.python),
        "PYTHONUNBUFFERED": "1",
        # setproctitle, which Airflow uses, would overwrite the environment from which the marks are read.
        "SPT_NOENV": "1",
        "GX_ANALYTICS_ENABLED": "false",
        # The files of a shuffle, and what Hadoop buffers before it uploads; their defaults lie in /tmp.
        "SPARK_LOCAL_DIRS": str(plan.folder.scratch),
        "LOCAL_DIRS": str(plan.folder.scratch),
    }


def _sluice_environment(plan: StackPlan, *, pipelines: str | None) -> dict[str, str]:
    secret = plan.credentials
    catalog = plan.url("iceberg")
    return {
        "SLUICE_HOME": str(plan.home),
        "SLUICE_PIPELINES": pipelines or str(plan.home / "include" / "pipelines"),
        "SLUICE_JARS": str(plan.tools.jars),
        "SLUICE_DATA": str(plan.folder.data),
        "SLUICE_LOGS": str(plan.folder.logs / "drivers"),
        "SLUICE_REPORTS": str(plan.folder.data / "reports"),
        "SLUICE_CHECKPOINTS": (plan.folder.data / "checkpoints").as_uri(),
        "SLUICE_LEDGER_URL": database_url(
            plan, driver="postgresql+psycopg", role="sluice", password=secret.ledger_password
        ),
        "SLUICE_CATALOG__NAME": CATALOG_NAME,
        "SLUICE_CATALOG__URI": catalog,
        "SLUICE_CATALOG__WAREHOUSE": f"s3://{TABLE_BUCKET}",
        "SLUICE_CATALOG__CREDENTIAL": f"{secret.access_key_id}:{secret.secret_access_key}",
        "SLUICE_CATALOG__OAUTH2_SERVER_URI": f"{catalog}/v1/oauth/tokens",
        "SLUICE_OBJECT_STORE__ENDPOINT": plan.url("s3"),
        "SLUICE_OBJECT_STORE__REGION": "us-east-1",
        "SLUICE_OBJECT_STORE__ACCESS_KEY_ID": secret.access_key_id,
        "SLUICE_OBJECT_STORE__SECRET_ACCESS_KEY": secret.secret_access_key,
        "SLUICE_CONNECTIONS__FLIGHTS_KAFKA__KIND": "kafka",
        "SLUICE_CONNECTIONS__FLIGHTS_KAFKA__BOOTSTRAP_SERVERS": plan.address("kafka"),
        "SLUICE_CONNECTIONS__FLIGHTS_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SLUICE_CONNECTIONS__FLIGHTS_KAFKA__SASL_MECHANISM": "PLAIN",
        "SLUICE_CONNECTIONS__FLIGHTS_KAFKA__USERNAME": KAFKA_USER,
        "SLUICE_CONNECTIONS__FLIGHTS_KAFKA__PASSWORD": secret.kafka_password,
        "SLUICE_CONNECTIONS__LANDING__KIND": "files",
        "SLUICE_CONNECTIONS__LANDING__ROOT": f"s3a://{LANDING_BUCKET}",
    }


def process_environment(
    command: Command, *, folder: StackFolder, start_id: str, caller: Mapping[str, str]
) -> dict[str, str]:
    """The whole environment of one process: its own settings, and the user's home, locale and time zone of the caller.

    Parameters
    ----------
    command: how the process is started.
    folder: the stack.
    start_id: the id of the `up` that starts it.
    caller: the environment of the command that starts it.
    """
    inherited = {name: caller[name] for name in _FROM_THE_SHELL if name in caller}
    marks = {STACK_MARK: str(folder.data), START_MARK: start_id}
    return {"PATH": _SYSTEM_PATH, "LANG": "C.UTF-8", **inherited, **command.environment, **marks}


def write_environment(path: Path, environment: Mapping[str, str]) -> None:
    """Write the file, one `KEY=value` line for each variable, readable by its owner alone.

    Raises
    ------
    StackError: when a value holds a line break, which the format cannot express.
    """
    for name, value in environment.items():
        if "\n" in value:
            raise StackError(f"The variable {name} holds a line break, which the stack's environment file cannot keep.")
    write_private(path, "".join(f"{name}={value}\n" for name, value in sorted(environment.items())))


def load_environment(data: Path) -> dict[str, str]:
    """Read the environment of the stack in a data folder.

    The mark of the stack is added. So a driver that is started with this environment belongs to the stack, and
    `sluice stack down` ends it.

    Parameters
    ----------
    data: the stack's data folder.

    Returns
    -------
    Every variable; the process's own environment is not changed.

    Raises
    ------
    StackError: when the stack was never started.
    """
    path = data / "environment"
    if not path.exists():
        raise StackError(
            f"There is no local stack in {data}: {path} does not exist.", next_step="Start it with `sluice stack up`."
        )
    lines = (line.partition("=") for line in path.read_text().splitlines() if line)
    return {**{name: value for name, _, value in lines}, STACK_MARK: str(data.resolve())}
