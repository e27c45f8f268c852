"""Airflow's settings in the local stack, as `AIRFLOW__*` variables.

Source: https://airflow.apache.org/docs/apache-airflow/3.3.2/configurations-ref.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote

from sluice.stack.credentials import AIRFLOW_USER
from sluice.stack.stack_plan import StackPlan

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

SPARK_POOL = "spark"

SPARK_POOL_SLOTS = 2
"""How many bounded Spark jobs run at a time. Each waits about half of its time, so two of them fill what three live
drivers leave of two cores, and stay within 10 GB together with these."""

SPARK_CONNECTION = json.dumps(
    {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client", "spark-binary": "spark-submit"}}
)
"""The connection `spark_default`: Spark inside the driver's own JVM, two threads."""


def database_url(plan: StackPlan, *, driver: str, role: str, password: str) -> str:
    """The SQLAlchemy URL of a role's own database of the same name.

    Parameters
    ----------
    plan: the stack.
    driver: the dialect and driver, for example postgresql+psycopg.
    role: the role; its database has the same name.
    password: the role's password.
    """
    return f"{driver}://{role}:{quote(password, safe='')}@{plan.address('postgres')}/{role}"


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
