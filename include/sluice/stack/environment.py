"""The settings of everything that runs in the stack, and the private file that holds them.

Airflow's own settings are `AIRFLOW__*` variables.
Source: https://airflow.apache.org/docs/apache-airflow/3.3.2/configurations-ref.html
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from sluice.errors import StackError
from sluice.stack.credentials import AIRFLOW_USER, KAFKA_USER
from sluice.stack.folder import StackFolder, write_private
from sluice.stack.stack_plan import Command, StackPlan
from sluice.stack.surroundings import SPARK_CONNECTION, Surroundings, demo_pipelines

FIXED_SETTINGS: Mapping[str, str] = {
    "AIRFLOW__CORE__EXECUTOR": "sluice_airflow.executors.local_executor.RevokingLocalExecutor",
    # It forks all its workers at once. The task of a continuous stream defers, so four at a time are enough.
    "AIRFLOW__CORE__PARALLELISM": "4",
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__CORE__AUTH_MANAGER": "airflow.api_fastapi.auth.managers.simple.simple_auth_manager.SimpleAuthManager",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
    "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{AIRFLOW_USER}:admin",
    # The default asks the network for this machine's name and waits for an answer where there is no network.
    "AIRFLOW__CORE__HOSTNAME_CALLABLE": "socket.gethostname",
    # A task whose worker died before it began is queued again. The timeout also limits how long a task takes to start.
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT": "120",
    "AIRFLOW__SCHEDULER__TASK_QUEUED_TIMEOUT_CHECK_INTERVAL": "15",
    "AIRFLOW__API__WORKERS": "1",
    # A task calls the API server before its first line and after its last. On a busy machine the single worker's first
    # answer takes longer than the default of 5 seconds, and a task without an answer fails its try.
    "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "30",
    "AIRFLOW__API__EXPOSE_CONFIG": "False",
    # New files appear within seconds; a changed YAML file, which Airflow does not watch, within half a minute.
    "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "30",
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
}
"""The settings that are the same on every machine; docker-compose.yaml has them too."""

SUPERVISION_POOL = "supervision"

SUPERVISION_POOL_SLOTS = 16
"""How many tasks that supervise streams run at a time: each takes seconds, and starts no JVM of its own."""

SPARK_POOL = "spark"

SPARK_POOL_SLOTS = 2
"""How many bounded Spark jobs run at a time. Each waits about half of its time, so two of them fill what three live
drivers leave of two cores, and stay within 10 GB together with these."""


DRIVERS_ROLE = "sluice_drivers"
"""The role of continuous drivers in the ledger's database, which writes the rows of their own stream alone."""


def database_url(plan: StackPlan, *, driver: str, role: str, password: str, database: str = "") -> str:
    """The SQLAlchemy URL of a database.

    Parameters
    ----------
    plan: the stack.
    driver: the dialect and driver, for example postgresql+psycopg.
    role: the role.
    password: the role's password.
    database: its name; that of the role when not given.
    """
    return f"{driver}://{role}:{quote(password, safe='')}@{plan.address('postgres')}/{database or role}"


def airflow_environment(plan: StackPlan) -> dict[str, str]:
    """Every Airflow setting of one stack."""
    secret = plan.credentials
    home = plan.folder.data / "airflow"
    url = plan.url("airflow")

    def database(driver: str) -> str:
        return database_url(plan, driver=driver, role="airflow", password=secret.airflow_database_password)

    return {
        **FIXED_SETTINGS,
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__DAGS_FOLDER": str(plan.home / "dags"),
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(plan.home / "plugins"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(home / "passwords.json"),
        "AIRFLOW__CORE__FERNET_KEY": secret.airflow_fernet_key,
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database("postgresql+psycopg2"),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC": database("postgresql+asyncpg"),
        "AIRFLOW__API__BASE_URL": url,
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(plan.ports["airflow"]),
        "AIRFLOW__API__SECRET_KEY": secret.airflow_secret_key,
        "AIRFLOW__API_AUTH__JWT_SECRET": secret.airflow_jwt_secret,
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(plan.folder.logs / "tasks"),
        "AIRFLOW__LOGGING__DAG_PROCESSOR_CHILD_PROCESS_LOG_DIRECTORY": str(plan.folder.logs / "dag_processor"),
        "AIRFLOW_CONN_SPARK_DEFAULT": SPARK_CONNECTION,
    }


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


def build_environment(plan: StackPlan, *, surroundings: Surroundings) -> dict[str, str]:
    """Every setting, made from the ports, credentials and tools of a plan.

    Parameters
    ----------
    plan: the stack; its own environment is not read.
    surroundings: the declarations, connections and variables of the person who starts it.
    """
    return {
        **_program_environment(plan),
        **_sluice_environment(plan, pipelines=surroundings.pipelines),
        **airflow_environment(plan),
        **surroundings.variables,
    }


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


def _sluice_environment(plan: StackPlan, *, pipelines: Path | None) -> dict[str, str]:
    secret = plan.credentials
    catalog = plan.url("iceberg")
    return {
        "SLUICE_HOME": str(plan.home),
        "SLUICE_PIPELINES": str(pipelines or demo_pipelines(plan.home)),
        "SLUICE_JARS": str(plan.tools.jars),
        "SLUICE_DATA": str(plan.folder.data),
        "SLUICE_LOGS": str(plan.folder.logs / "drivers"),
        "SLUICE_REPORTS": str(plan.folder.data / "reports"),
        "SLUICE_CHECKPOINTS": (plan.folder.data / "checkpoints").as_uri(),
        "SLUICE_LEDGER_URL": database_url(
            plan, driver="postgresql+psycopg", role="sluice", password=secret.ledger_password
        ),
        "SLUICE_LEDGER_DRIVER_URL": database_url(
            plan,
            driver="postgresql+psycopg",
            role=DRIVERS_ROLE,
            password=secret.ledger_driver_password,
            database="sluice",
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
        **_kafka_connection(plan, "flights_kafka"),
        **_kafka_connection(plan, "local_kafka"),
        "SLUICE_CONNECTIONS__LANDING__KIND": "files",
        "SLUICE_CONNECTIONS__LANDING__ROOT": f"s3a://{LANDING_BUCKET}",
    }


def _kafka_connection(plan: StackPlan, name: str) -> dict[str, str]:
    settings = {
        "KIND": "kafka",
        "BOOTSTRAP_SERVERS": plan.address("kafka"),
        "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SASL_MECHANISM": "PLAIN",
        "USERNAME": KAFKA_USER,
        "PASSWORD": plan.credentials.kafka_password,
    }
    return {f"SLUICE_CONNECTIONS__{name.upper()}__{key}": value for key, value in settings.items()}


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
    """Write the file, one `KEY=value` for each variable, readable by its owner alone.

    Values are quoted as a POSIX shell reads them, so that a shell can source the file.
    """
    write_private(path, "".join(f"{line}\n" for line in shell_lines(environment)))


def shell_lines(environment: Mapping[str, str]) -> list[str]:
    """The assignment of each variable in the words of a POSIX shell, by name."""
    return [f"{name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


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
    StackError: when the stack was never started, or the file is damaged.
    """
    path = data / "environment"
    if not path.exists():
        raise StackError(
            f"There is no local stack in {data}: {path} does not exist.", next_step="Start it with `sluice stack up`."
        )
    try:
        words = shlex.split(path.read_text())
    except ValueError as error:
        raise _damaged(path) from error
    assignments = [_ASSIGNMENT.fullmatch(word) for word in words]
    if None in assignments:
        raise _damaged(path)
    return {**{one[1]: one[2] for one in assignments if one is not None}, STACK_MARK: str(data.resolve())}


_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


def _damaged(path: Path) -> StackError:
    return StackError(
        f"{path} is damaged, or of an earlier version: it is not a list of variables as a shell reads them.",
        next_step="Set the connections that the stack shall have, and run `sluice stack up --declarations-from-here`.",
    )
