"""The versions of the ledger's schema, as Alembic migrations, and the one call that brings a ledger up to date."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from alembic.config import Config

_LOCK = 7_166_811_305_317_523
"""The advisory lock under which one migration runs at a time: any number that nothing else uses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerVersion:
    """The version of a ledger's schema (unset before the first migration), and the one this program needs."""

    found: str | None
    needed: str

    @property
    def is_current(self) -> bool:
        """Whether the ledger is ready for this program."""
        return self.found == self.needed


def upgrade(ledger_url: str) -> LedgerVersion:
    """Bring the ledger's schema up to date. Quick when there is nothing to do, and safe when many ask at once.

    Everything happens in one transaction: a ledger is never half migrated.

    Parameters
    ----------
    ledger_url: SQLAlchemy URL of the ledger.

    Returns
    -------
    The version found before, and the one it has now.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    SettingsError: when the URL is not one of a PostgreSQL database.
    """
    from alembic import command
    from sqlalchemy import func, select, text

    from sluice.ledger.connection import open_ledger
    from sluice.ledger.ledger_table import SCHEMA

    version = observe_version(ledger_url)
    if version.is_current:
        return version
    with open_ledger(ledger_url) as ledger, ledger.transaction() as connection:
        # The limit of a statement is made for rows; the index of a large table takes minutes.
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        connection.execute(text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return version


def observe_version(ledger_url: str) -> LedgerVersion:
    """Read which version a ledger has, and which one this program needs.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    SettingsError: when the URL is not one of a PostgreSQL database.
    """
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    from sluice.ledger.connection import open_ledger
    from sluice.ledger.ledger_table import SCHEMA

    needed = ScriptDirectory.from_config(_config()).get_current_head()
    with open_ledger(ledger_url) as ledger, ledger.transaction() as connection:
        context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
        found = context.get_current_revision()
    if needed is None:
        raise AssertionError("the package holds no migration")  # a broken installation, not a user's mistake
    return LedgerVersion(found=found, needed=needed)


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.set_main_option("path_separator", "os")
    return config
