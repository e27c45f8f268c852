"""The unhealthy states of streams, each with the time since which it lasts."""

from __future__ import annotations

from typing import Any

from sqlalchemy import case, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.connection import Ledger
from sluice.ledger.models import Trouble
from sluice.ledger.records.stream_trouble import StreamTrouble


def record_trouble(ledger: Ledger, stream: str, *, reason: str, explanation: str) -> StreamTrouble:
    """Record that a stream is unhealthy. The time since which it is stays while the reason is the same.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    is_same = Trouble.reason == reason
    change = {
        "since": case((is_same, Trouble.since), else_=func.now()),
        "reported_at": case((is_same, Trouble.reported_at)),
        "reason": reason,
        "explanation": explanation,
    }
    recorded = (
        insert(Trouble)
        .values(stream=stream, reason=reason, explanation=explanation)
        .on_conflict_do_update(index_elements=[Trouble.stream], set_=change)
        .returning(*Trouble.__table__.columns, func.now().label("observed_at"))
    )
    with ledger.transaction() as connection:
        return _trouble_of(connection.execute(recorded).one())


def clear_trouble(ledger: Ledger, stream: str) -> bool:
    """Record that a stream is healthy. Returns whether it was not before.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        return connection.execute(delete(Trouble).where(Trouble.stream == stream)).rowcount == 1


def record_report(ledger: Ledger, stream: str) -> None:
    """Record that a person was alerted to the trouble of a stream; the first time stays.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        connection.execute(
            update(Trouble)
            .where(Trouble.stream == stream, Trouble.reported_at.is_(None))
            .values(reported_at=func.now())
        )


def all_troubles(ledger: Ledger) -> tuple[StreamTrouble, ...]:
    """The unhealthy streams, by name.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    query = select(*Trouble.__table__.columns, func.now().label("observed_at")).order_by(Trouble.stream)
    with ledger.transaction() as connection:
        rows = connection.execute(query).all()
    return tuple(_trouble_of(row) for row in rows)


def _trouble_of(row: Any) -> StreamTrouble:
    return StreamTrouble(**row._mapping)
