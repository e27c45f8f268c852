"""Opens the ledger: a small pool of connections, and database errors turned into `LedgerError`.

Every function that reads or writes a ledger raises `LedgerError` when it cannot be reached; its own `Raises` section
names only what else can happen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import version
from types import TracebackType
from typing import Any, Self

from psycopg import ProgrammingError
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr
from sqlalchemy import Connection, Engine, create_engine, event, func, select, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as NoFreeConnectionError

from sluice.errors import LedgerError, LedgerUnreachableError, SettingsError
from sluice.ledger.run_values import version_numbers
from sluice.ledger.stored_values import StorableTextDumper, storable_json

CONNECT_TIMEOUT_SECONDS = 5
"""How long one attempt to connect may take: longer than a busy server needs, short enough for a person to wait."""

STATEMENT_TIMEOUT_SECONDS = 30
"""How long one statement may take. All of them touch few rows; one that takes longer waits for a lock."""

_NOTICES_A_DEAD_NETWORK = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
"""Seconds, and milliseconds for the last: without these a connection to a host that is gone hangs for hours."""

OLDEST_READER = "oldest reader: "
"""Before the version that may read the ledger, in the comment on the table of its own version."""

_OLDEST_READER = "SELECT obj_description(to_regclass('sluice.alembic_version'), 'pg_class')"

_NO_TABLES = frozenset({"42P01", "3F000", "42703"})
"""The SQLSTATEs of a missing table, schema and column: the ledger's schema is older than the program."""

_TOOK_TOO_LONG = frozenset({"57014", "55P03"})
"""The SQLSTATEs of a statement that took longer than it may, and of a lock that did not become free in time."""

_MAY_NOT = "42501"
"""The SQLSTATE of what a role lacks the privilege for: a migration, or a table that was made without admitting it."""

_READ_ONLY = "25006"
"""The SQLSTATE of a write that a standby refuses: while a database fails over, clients still reach the old server."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """An open ledger. A context manager: leaving it closes its connections."""

    engine: Engine

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One transaction: committed when the block ends, rolled back when it raises.

        Raises
        ------
        LedgerError: when the ledger cannot be reached, or its tables are missing or too old.
        """
        with ledger_errors(self.engine.url), self.engine.begin() as connection:
            yield connection

    def close(self) -> None:
        """Close the connections."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_ledger(ledger_url: str | SecretStr, *, is_brief: bool = False) -> Ledger:
    """Open the ledger. It connects with the first query.

    Parameters
    ----------
    ledger_url: SQLAlchemy URL, `postgresql+psycopg://user:password@host:port/database`, as the settings have it.
    is_brief: whether it is closed again within minutes. Then its connections are not tested before each use.

    Raises
    ------
    SettingsError: when it is not such a URL.
    """
    checked = checked_url(ledger_url)
    options = engine_options(is_brief=is_brief, more=str(checked.query.get("options", "")))
    engine = create_engine(checked, pool_size=2, max_overflow=3, **options)
    event.listen(engine, "connect", _begin_connection)
    return Ledger(engine)


def _begin_connection(connection: Any, _: object) -> None:
    """Prepare a new connection, and refuse a ledger that a newer program has made too different for this one.

    Raises
    ------
    LedgerError: when the ledger names an oldest reader that is newer than this program.
    """
    connection.adapters.register_dumper(str, StorableTextDumper)
    named = connection.execute(_OLDEST_READER).fetchone()[0]
    connection.rollback()
    oldest, ours = str(named or "").removeprefix(OLDEST_READER), version("sluice")
    if version_numbers(oldest) > version_numbers(ours):
        raise LedgerError(
            f"The ledger is for Sluice {oldest} and later, and this is Sluice {ours}: it was upgraded since.",
            next_step=f"Use Sluice {oldest}, or a later one.",
        )


def oldest_reader(connection: Connection) -> str:
    """The oldest version of Sluice that may read this ledger; empty when it names none."""
    return str(connection.execute(text(_OLDEST_READER)).scalar_one() or "").removeprefix(OLDEST_READER)


def database_time(ledger: Ledger) -> datetime:
    """The time on the database's clock, which judges every heartbeat and age."""
    with ledger.transaction() as connection:
        return connection.execute(select(func.now())).scalar_one()


def in_steps(ledger: Ledger, change: Callable[[Connection], int], *, at_once: int) -> int:
    """Change rows some at a time, so that no statement takes longer than one may, and none waits long for it.

    Parameters
    ----------
    change: changes at most `at_once` rows in a transaction, and returns how many.

    Returns
    -------
    How many rows were changed in all.
    """
    changed = 0
    while True:
        with ledger.transaction() as connection:
            some = change(connection)
        changed += some
        if some < at_once:
            return changed


def checked_url(ledger_url: str | SecretStr) -> URL:
    """Read the ledger's URL.

    Raises
    ------
    SettingsError: when it is not the URL of a PostgreSQL database for psycopg; the URL itself stays out of the message.
    """
    wanted = "Allowed is postgresql+psycopg://user:password@host:port/database."
    try:
        url = make_url(ledger_url.get_secret_value() if isinstance(ledger_url, SecretStr) else ledger_url)
    except (ArgumentError, ValueError):
        # `from None`: the cause repeats the URL, and with it the password.
        raise SettingsError(f"SLUICE_LEDGER_URL is not a URL. {wanted}") from None
    if url.drivername != "postgresql+psycopg":
        raise SettingsError(f"SLUICE_LEDGER_URL names the driver {url.drivername}. {wanted}")
    if "@" in (url.host or ""):  # SQLAlchemy takes the first `@` for the end of the password
        raise SettingsError(
            f"SLUICE_LEDGER_URL has more than one `@`. {wanted}", next_step="Write an `@` in a password as `%40`."
        )
    try:
        make_conninfo("", **dict.fromkeys(url.query, "1"))
    except ProgrammingError:
        names = ", ".join(sorted(url.query))
        raise SettingsError(
            f"SLUICE_LEDGER_URL has an option after `?` that PostgreSQL's client does not know, among {names}. {wanted}"
        ) from None
    return url


def engine_options(*, is_brief: bool = False, more: str = "") -> dict[str, Any]:
    """The options that the synchronous and the asynchronous engine share. more: options of the server, from the URL."""
    return {
        "pool_pre_ping": not is_brief,  # a restarted database costs one reconnect instead of one error
        "hide_parameters": True,
        "json_serializer": storable_json,
        "connect_args": {
            "connect_timeout": CONNECT_TIMEOUT_SECONDS,
            "application_name": "sluice",
            **_NOTICES_A_DEAD_NETWORK,
            "options": f"-c timezone=UTC -c statement_timeout={STATEMENT_TIMEOUT_SECONDS}s {more}".strip(),
        },
    }


@contextmanager
def ledger_errors(url: URL) -> Iterator[None]:
    """Turn the errors of the database driver into a `LedgerError`.

    Parameters
    ----------
    url: where the ledger is; its user and password stay out of the message.

    Raises
    ------
    LedgerUnreachableError: when the ledger does not answer, or not in time, takes no writes while it fails over, or
        has no connection free in time.
    LedgerError: when its schema is older than this program, or its role may not do this. Other errors of the database
        are defects of the caller and stay as they are.
    KeyboardInterrupt: when a Ctrl-C came while the driver pinged its connection.
    """
    try:
        yield
    except (OperationalError, InterfaceError) as error:
        if _hides_interruption(error):
            raise KeyboardInterrupt from error
        if getattr(error.orig, "sqlstate", None) in _TOOK_TOO_LONG:
            raise LedgerUnreachableError(
                f"The ledger at {_place(url)} answers, and broke a statement off: {_first_line(error)}.",
                next_step="See what holds its locks, or keeps it busy: `SELECT * FROM pg_stat_activity`.",
            ) from error
        raise LedgerUnreachableError(
            f"The ledger at {_place(url)} does not answer: {_first_line(error)}.",
            next_step="See that its PostgreSQL runs (`sluice stack status` for the local one).",
        ) from error
    except NoFreeConnectionError as error:
        raise LedgerUnreachableError(
            f"No connection to the ledger at {_place(url)} became free in time: it answers slowly or not at all.",
            next_step="See that its PostgreSQL runs (`sluice stack status` for the local one).",
        ) from error
    except DBAPIError as error:
        if _hides_interruption(error):
            raise KeyboardInterrupt from error
        sqlstate = getattr(error.orig, "sqlstate", None)
        if sqlstate == _READ_ONLY:
            raise LedgerUnreachableError(
                f"The ledger at {_place(url)} takes no writes now: {_first_line(error)}.",
                next_step="Wait for its fail-over; see that SLUICE_LEDGER_URL leads to the primary server.",
            ) from error
        if sqlstate == _MAY_NOT:
            raise LedgerError(
                f"The ledger at {_place(url)} does not allow this to the role of the URL: {_first_line(error)}.",
                next_step="Migrate as the owner: `sluice ledger upgrade` with SLUICE_LEDGER_OWNER_URL; for the local "
                "stack `sluice stack up`, in compose `docker compose up`.",
            ) from error
        if sqlstate not in _NO_TABLES:
            raise
        raise LedgerError(
            f"The ledger at {_place(url)} lacks tables of this version: {_first_line(error)}.",
            next_step="Run `sluice ledger upgrade`.",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionUse:
    """How many connections of the ledger's server are in use, by all of its databases, and how many it allows."""

    used: int
    allowed: int


def connection_use(ledger: Ledger) -> ConnectionUse:
    """Count the connections of the ledger's server."""
    used = text("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'")
    allowed = text("SELECT current_setting('max_connections')::int")
    with ledger.transaction() as connection:
        return ConnectionUse(
            used=connection.execute(used).scalar_one(), allowed=connection.execute(allowed).scalar_one()
        )


def _hides_interruption(error: DBAPIError) -> bool:
    """Whether a Ctrl-C is behind an error of the database: one that breaks off SQLAlchemy's ping leaves a connection
    in the middle of a query, the ping's own clean-up fails on that, and its error takes the interruption's place.
    """
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, KeyboardInterrupt):
        seen = seen.__cause__ or seen.__context__
    return seen is not None


def _place(url: URL) -> str:
    """Where the ledger is, for a person: a unix socket's folder comes as the query argument `host`."""
    host = url.host or url.query.get("host") or "the local socket"
    return f"{host}:{url.port or 5432}/{url.database}"


def _first_line(error: DBAPIError) -> str:
    return (str(error.orig).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
