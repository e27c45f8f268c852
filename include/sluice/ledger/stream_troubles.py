"""The unhealthy states of streams, each with the time since which it lasts; and those of tables and of Sluice's own
DAGs, under their names, which no stream has (`sluice.supervision.platform_troubles`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, case, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction, add_event
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTrouble:
    """An unhealthy state of a stream.

    reason: the state, in the words of `sluice stream status`. explanation: the sentence for a person.
    since: when the stream was first seen in it without a break. observed_at: now; both by the database's clock.
    reported_at: when a person was first alerted; unset before.
    """

    stream: str
    reason: str
    explanation: str
    since: datetime
    observed_at: datetime
    reported_at: datetime | None = None

    @property
    def lasted(self) -> timedelta:
        """How long the stream has been in it."""
        return self.observed_at - self.since


class Trouble(LedgerTable, record=StreamTrouble, key=("stream",), now=("since",), without=("observed_at",)):
    """The unhealthy state of a stream; a healthy stream has no row."""

    __tablename__ = "troubles"


def record_trouble(ledger: Ledger, stream: str, *, reason: str, explanation: str) -> StreamTrouble:
    """Record that a stream is unhealthy. The time since which it is stays while the reason is the same."""
    with ledger.transaction() as connection:
        return add_trouble(connection, stream, reason=reason, explanation=explanation)


def add_trouble(connection: Connection, stream: str, *, reason: str, explanation: str) -> StreamTrouble:
    """The same within a transaction."""
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
    return record_of(StreamTrouble, connection.execute(recorded).one())


def clear_trouble(ledger: Ledger, stream: str, *, by: str) -> bool:
    """Record that a stream is healthy, with an event when a person was alerted to its trouble.

    Parameters
    ----------
    by: the task that has seen it.

    Returns
    -------
    Whether the stream was unhealthy before.
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
    """The unhealthy streams, by name."""
    query = select(*Trouble.columns(), func.now().label("observed_at")).order_by(Trouble.stream)
    with ledger.transaction() as connection:
        rows = connection.execute(query).all()
    return tuple(record_of(StreamTrouble, row) for row in rows)


def _event(stream: str, action: EventAction, state: str, explanation: str, *, by: str) -> Event:
    reason = state.replace(" ", "_")
    return Event(name=stream, actor=Actor.component(by), action=action, reason=reason, explanation=explanation)
