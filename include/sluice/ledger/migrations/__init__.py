"""The versions of the ledger's schema, as Alembic migrations, and the one call that brings a ledger up to date."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from sluice.errors import LedgerError, LedgerUnreachableError

if TYPE_CHECKING:
    from alembic.config import Config
    from alembic.script import ScriptDirectory
    from sqlalchemy import Connection

LOCK_SECONDS = 2
"""How long a migration may wait for a lock: a heartbeat behind it waits as long, and drivers stop after two minutes."""

_TRIES, _PAUSE_SECONDS = 60, 5.0
"""Five to seven minutes in all; between two tries everything that has waited gets its turn."""

_BEFORE_THE_BASELINE = re.compile(r"\d{4}")
"""The versions of the schema before 0.2.0, of which nothing was released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerVersion:
    """The version of a ledger's schema (unset before the first migration), and the one this program needs.

    is_newer: whether a newer program has made it, and lets this one work with it.
    """

    found: str | None
    needed: str
    is_newer: bool = False

    @property
    def is_current(self) -> bool:
        """Whether the ledger is ready for this program."""
        return self.found == self.needed or self.is_newer


def upgrade(ledger_url: str, *, worker: str | None = None, drivers: str | None = None) -> LedgerVersion:
    """Bring the ledger's schema up to date. Quick when there is nothing to do, and safe when many ask at once.

    Each migration is a transaction of its own: a ledger is never between two of them. One that does not get its lock
    within seconds lets the drivers go first, and is tried again.

    Parameters
    ----------
    ledger_url: SQLAlchemy URL of the ledger; its role will own what is made.
    worker: another role that may read and write rows from then on, and change nothing else: that of Airflow and of the
        drivers. Unset, or the role of the URL itself: the owner does all.
    drivers: the role of continuous drivers, which may write the rows of the stream whose pass they carry.

    Returns
    -------
    The version found before, and the one it has now.

    Raises
    ------
    LedgerUnreachableError: when a lock did not become free in all tries, as beside a backup of an hour.
    LedgerError: when the ledger cannot be reached, or its version is none of this program's.
    SettingsError: when the URL is not one of a PostgreSQL database.
    """
    from sluice.ledger.driver_access import admit_drivers

    version = observe_version(ledger_url)
    if not version.is_current:
        while _migrates(ledger_url):
            pass
    if worker is not None:
        _admit(ledger_url, worker, _rights_of_workers)
    if drivers is not None:
        _admit(ledger_url, drivers, admit_drivers)
    return version


def _migrates(ledger_url: str) -> bool:
    """Carry the next migration out, trying again while a lock does not become free. Returns whether there was one."""
    for _ in range(_TRIES - 1):
        with suppress(LedgerUnreachableError):  # the last try raises it
            return _migrate_once(ledger_url)
        time.sleep(_PAUSE_SECONDS)
    return _migrate_once(ledger_url)


def _migrate_once(ledger_url: str) -> bool:
    from alembic import command
    from sqlalchemy import text

    from sluice.ledger.connection import OLDEST_READER, open_ledger
    from sluice.ledger.ledger_table import SCHEMA
    from sluice.ledger.locks import lock_schema

    with open_ledger(ledger_url) as ledger, ledger.transaction() as connection:
        # The limit of a statement is made for rows; the index of a large table takes minutes.
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        lock_schema(connection)
        # A change of a table that waits for its lock keeps every heartbeat waiting behind it, as beside a backup.
        connection.execute(text(f"SET LOCAL lock_timeout = '{LOCK_SECONDS}s'"))
        following = _after(_found_version(connection))  # another program may have migrated the ledger meanwhile
        if following is None:
            return False
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, following)
        oldest = getattr(_scripts().get_revision(following).module, "oldest_reader", None)
        if oldest is not None:  # else those that may read it now still may
            connection.execute(text(f"COMMENT ON TABLE {SCHEMA}.alembic_version IS '{OLDEST_READER}{oldest}'"))
    return True


def _after(found: str | None) -> str | None:
    """The revision that follows one; none when it is the newest, or newer than this program."""
    revisions = [script.revision for script in _scripts().walk_revisions()]  # newest first
    if found is not None and found not in revisions:
        return None
    older = revisions.index(found) if found is not None else len(revisions)
    return revisions[older - 1] if older else None


def _admit(ledger_url: str, name: str, rights: Callable[[str], Iterable[str]]) -> None:
    """Give a role its rights, unless it is the owner itself: what is taken from that, its next migration lacks."""
    from sqlalchemy import text

    from sluice.ledger.connection import open_ledger
    from sluice.ledger.locks import lock_schema

    with open_ledger(ledger_url) as ledger, ledger.transaction() as connection:
        if connection.execute(text("SELECT current_user")).scalar_one() == name:
            return
        lock_schema(connection)
        for statement in rights(connection.dialect.identifier_preparer.quote(name)):
            connection.execute(text(statement))


def _rights_of_workers(role: str) -> Iterator[str]:
    """Let a role work with the rows of the ledger. It can neither create, alter, empty nor drop a table, nor switch off
    what keeps events as they are, and it cannot change the version."""
    from sluice.ledger.ledger_table import SCHEMA

    yield f"REVOKE CREATE ON SCHEMA {SCHEMA} FROM PUBLIC, {role}"
    yield f"GRANT USAGE ON SCHEMA {SCHEMA} TO {role}"
    yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {SCHEMA} FROM {role}"
    yield f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {SCHEMA} TO {role}"
    yield f"REVOKE INSERT, UPDATE, DELETE ON {SCHEMA}.alembic_version FROM {role}"
    yield f"GRANT USAGE, SELECT ON ALL SEQUENCES IN SCHEMA {SCHEMA} TO {role}"


def observe_version(ledger_url: str) -> LedgerVersion:
    """Read which version a ledger has, and which one this program needs.

    Raises
    ------
    LedgerError: when the ledger cannot be reached, or its version is none of this program's.
    SettingsError: when the URL is not one of a PostgreSQL database.
    """
    from sluice.ledger.connection import open_ledger

    needed = _scripts().get_current_head()
    if needed is None:
        raise AssertionError("the package holds no migration")  # a broken installation, not a user's mistake
    with open_ledger(ledger_url) as ledger, ledger.transaction() as connection:
        found = _found_version(connection)
    is_newer = found is not None and found not in {script.revision for script in _scripts().walk_revisions()}
    return LedgerVersion(found=found, needed=needed, is_newer=is_newer)


def _found_version(connection: Connection) -> str | None:
    """The version of the ledger; none before its first migration. One of a newer program counts when that names its
    oldest reader: this one is no older, or it had no connection.

    Raises
    ------
    LedgerError: when this program does not know it.
    """
    from alembic.runtime.migration import MigrationContext

    from sluice.ledger.connection import oldest_reader
    from sluice.ledger.ledger_table import SCHEMA

    found = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA}).get_current_revision()
    known = {script.revision for script in _scripts().walk_revisions()}
    if found is None or found in known:
        return found
    if _BEFORE_THE_BASELINE.fullmatch(found):
        raise LedgerError(
            f"The ledger has version {found} of a development version before 0.2.0, which was never released and from "
            "which no migration leads on.",
            next_step=f"Begin with an empty ledger: end its drivers, run `DROP SCHEMA {SCHEMA} CASCADE` in its "
            "database, then `sluice ledger upgrade`. For the local stack: `sluice stack down`, and remove its data "
            "folder.",
        )
    if oldest_reader(connection):
        return found
    raise LedgerError(
        f"The ledger has version {found}, which a newer Sluice than this one has made; this one knows "
        f"{', '.join(sorted(known))}.",
        next_step="Use the version of Sluice that upgraded the ledger, or a later one.",
    )


def _scripts() -> ScriptDirectory:
    return _scripts_of(_config().get_main_option("script_location") or "")


@cache
def _scripts_of(folder: str) -> ScriptDirectory:
    """The migrations of a folder. Alembic runs all their files to know their order, so a process does it once."""
    from alembic.script import ScriptDirectory

    return ScriptDirectory(folder)


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config
