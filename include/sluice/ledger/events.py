"""The events of streams and tables: every decision that changes something and every command of a person.

An event is saved before it is carried out. There are two ways to save one, both append-only:

    record_event(ledger, event)         before an action outside the ledger, for example the end of a process
    add_event(connection, event)        inside the transaction of a change of the ledger, which happens with it or not

The database itself refuses to change an event, and to delete one other than by `sluice.ledger.retention`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, select
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.connection import Ledger
from sluice.ledger.event_evidence import stored_evidence, stored_text
from sluice.ledger.models import LedgerEvent
from sluice.ledger.records.event import Event, EventObservation, EventSubject
from sluice.ledger.stored_values import record_of

_COLUMNS = LedgerEvent.columns(without=("occasion",))


def record_event(ledger: Ledger, event: Event) -> bool:
    """Save an event in a transaction of its own. When this raises, the action must not be carried out.

    Returns
    -------
    Whether it was saved; not when its occasion has the same action already.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        return add_event(connection, event)


def add_event(connection: Connection, event: Event, *, run_id: str | None = None) -> bool:
    """Save an event inside the transaction of the change that it is about.

    Parameters
    ----------
    run_id: the run that the change has made; unset: the event's own.

    Returns
    -------
    As `record_event`.
    """
    saved = connection.execute(
        insert(LedgerEvent)
        .values(
            subject=str(event.subject),
            name=event.name,
            actor_kind=str(event.actor.kind),
            actor_name=stored_text(event.actor.name),
            action=str(event.action),
            reason=event.reason,
            explanation=stored_text(event.explanation),
            run_id=run_id or event.run_id,
            evidence=stored_evidence(event.evidence),
            occasion=event.occasion,
        )
        .on_conflict_do_nothing()
        .returning(LedgerEvent.number)
    )
    return saved.one_or_none() is not None


def recent_events(
    ledger: Ledger, subject: EventSubject, name: str, *, limit: int, since: datetime | None = None
) -> tuple[EventObservation, ...]:
    """The newest events of a stream or table, newest first.

    Parameters
    ----------
    limit: at most so many. since: none before this time.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    query = _of(subject, name).order_by(LedgerEvent.number.desc()).limit(limit)
    if since is not None:
        query = query.where(LedgerEvent.recorded_at >= since)
    with ledger.transaction() as connection:
        return tuple(record_of(EventObservation, row) for row in connection.execute(query).all())


def _of(subject: EventSubject, name: str) -> Select[Any]:
    return select(*_COLUMNS).where(LedgerEvent.subject == str(subject), LedgerEvent.name == name)
