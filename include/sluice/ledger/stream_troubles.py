"""The unhealthy states of streams, each with the time since which it lasts."""

from __future__ import annotations

from sqlalchemy import case, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.connection import Ledger
from sluice.ledger.events import add_event
from sluice.ledger.models import Trouble
from sluice.ledger.records.event import Actor, Event, EventAction
from sluice.ledger.records.stream_trouble import StreamTrouble
from sluice.ledger.stored_values import record_of


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
        .returning(*Trouble.columns(), func.now().label("observed_at"))
    )
    with ledger.transaction() as connection:
        return record_of(StreamTrouble, connection.execute(recorded).one())


def clear_trouble(ledger: Ledger, stream: str, *, by: str) -> bool:
    """Record that a stream is healthy, with an event when a person was alerted to its trouble.

    Parameters
    ----------
    by: the task that has seen it.

    Returns
    -------
    Whether the stream was unhealthy before.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        gone = connection.execute(
            delete(Trouble).where(Trouble.stream == stream).returning(*Trouble.columns())
        ).one_or_none()
        if gone is not None and gone.reported_at is not None:
            text = f"It was {gone.reason} since {gone.since:%Y-%m-%d %H:%M:%S %Z}."
            add_event(connection, _event(stream, EventAction.RECOVER, gone.reason, text, by=by))
    return gone is not None


def record_report(ledger: Ledger, trouble: StreamTrouble, *, by: str) -> None:
    """Record, with an event, that a person is alerted to the trouble of a stream; the first time stays.

    Parameters
    ----------
    by: the task that alerts.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        reported = connection.execute(
            update(Trouble)
            .where(Trouble.stream == trouble.stream, Trouble.reported_at.is_(None))
            .values(reported_at=func.now())
        )
        if reported.rowcount == 1:
            event = _event(trouble.stream, EventAction.ALERT, trouble.reason, trouble.explanation, by=by)
            add_event(connection, event)


def all_troubles(ledger: Ledger) -> tuple[StreamTrouble, ...]:
    """The unhealthy streams, by name.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    query = select(*Trouble.columns(), func.now().label("observed_at")).order_by(Trouble.stream)
    with ledger.transaction() as connection:
        rows = connection.execute(query).all()
    return tuple(record_of(StreamTrouble, row) for row in rows)


def _event(stream: str, action: EventAction, state: str, explanation: str, *, by: str) -> Event:
    reason = state.replace(" ", "_")
    return Event(name=stream, actor=Actor.component(by), action=action, reason=reason, explanation=explanation)
