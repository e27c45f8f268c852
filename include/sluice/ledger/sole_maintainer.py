"""One maintenance run of a table at a time, whoever starts it: a scheduled task, a person, a retry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import func, select

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger, sentences_of

_LOCK_SPACE = 0x736C7563
"""The first half of the advisory lock's key, the bytes of `sluc`: other users of the database choose other numbers."""


@contextmanager
def sole_maintainer(ledger: Ledger, table: str) -> Iterator[None]:
    """Be the only one to maintain a table while the block runs.

    The lock belongs to a connection of its own, so it is free again when the process ends, however it ends.

    Raises
    ------
    LedgerError: when somebody else maintains the table just now, or the ledger cannot be reached.
    """
    key = (_LOCK_SPACE, func.hashtext(table))
    engine = ledger.engine.execution_options(isolation_level="AUTOCOMMIT")  # no transaction stays open for minutes
    with sentences_of(engine.url), engine.connect() as connection:
        if not connection.execute(select(func.pg_try_advisory_lock(*key))).scalar_one():
            raise LedgerError(
                f"Table {table} is under maintenance already; it has one maintenance run at a time.",
                next_step=f"Wait for it to end; `sluice table history {table}` shows its result.",
            )
        try:
            yield
        finally:
            connection.execute(select(func.pg_advisory_unlock(*key)))
