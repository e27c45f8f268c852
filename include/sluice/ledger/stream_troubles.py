"""The unhealthy states of streams, each with the time since which it lasts; and those of tables and of Sluice's own
DAGs, under their names, which no stream has (`sluice.supervision.platform_troubles`).

What is unusual about the rows of a table is beside what its checks found, and a changed schema beside the state of its
stream, so each has a subject of its own."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, Row, and_, case, delete, func, not_, select, update
from sqlalchemy.dialects.postgresql import insert

from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction, EventSubject, add_event
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of

_ROWS_OF = "rows of "
_SCHEMA_OF, _IN = "schema of ", " in "


def rows_subject(table: str) -> str:
    """The subject of what is unusual about the rows of a table; no stream can have this name."""
    return f"{_ROWS_OF}{table}"


def table_of_rows(subject: str) -> str | None:
    """The table whose rows a subject is about; none for another subject."""
    return subject.removeprefix(_ROWS_OF) if subject.startswith(_ROWS_OF) else None


def schema_subject(stream: str, name: str) -> str:
    """The subject of a changed schema of an input; no stream can have this name."""
    return f"{_SCHEMA_OF}{name}{_IN}{stream}"


def stream_of_schema(subject: str) -> str | None:
    """The stream of whose input the schema a subject is about; none for another subject."""
    return subject.rpartition(_IN)[2] if subject.startswith(_SCHEMA_OF) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTrouble:
    """An unhealthy state of a stream.

    reason: the state, in the words of `sluice stream status`. explanation: the sentence for a person.
    since: when the stream was first seen in it without a break. observed_at: now; both by the database's clock.
    occasion: what it is about, where the same state may have another cause: a stream that is given up again, for
        another run, is a new trouble.
    reported_at: when a person was first alerted; unset before. by_its_task: whether the task of the stream itself did
        that, by failing.
    """

    stream: str
    reason: str
    explanation: str
    since: datetime
    observed_at: datetime
    occasion: str = ""
    reported_at: datetime | None = None
    by_its_task: bool = False

    @property
    def lasted(self) -> timedelta:
        """How long the stream has been in it."""
        return self.observed_at - self.since


class Trouble(LedgerTable, record=StreamTrouble, key=("stream",), now=("since",), without=("observed_at",)):
    """The unhealthy state of a stream; a healthy stream has no row."""

    __tablename__ = "troubles"


def record_trouble(
    ledger: Ledger, stream: str, *, reason: str, explanation: str, by: str, occasion: str = ""
) -> StreamTrouble:
    """Record that a stream is unhealthy. The time since which it is stays while reason and occasion are the same.

    Another trouble ends the one before it, with an event when a person was alerted to that.

    Parameters
    ----------
    by: the task that has seen it.
    """
    with ledger.transaction() as connection:
        return add_trouble(connection, stream, reason=reason, explanation=explanation, by=by, occasion=occasion)


def add_trouble(
    connection: Connection, stream: str, *, reason: str, explanation: str, by: str, occasion: str = ""
) -> StreamTrouble:
    """The same within a transaction."""
    is_same = and_(Trouble.reason == reason, Trouble.occasion == occasion)
    change = {
        "since": case((is_same, Trouble.since), else_=func.now()),
        "reported_at": case((is_same, Trouble.reported_at)),
        "by_its_task": and_(is_same, Trouble.by_its_task),
        "reason": reason,
        "occasion": occasion,
        "explanation": explanation,
    }
    recorded = (
        insert(Trouble)
        .values(stream=stream, reason=reason, occasion=occasion, explanation=explanation)
        .on_conflict_do_update(index_elements=[Trouble.stream], set_=change)
        .returning(*Trouble.columns(), func.now().label("observed_at"))
    )
    ended = select(*Trouble.columns()).where(Trouble.stream == stream, not_(is_same)).with_for_update()
    if (before := connection.execute(ended).one_or_none()) is not None:
        _add_end(connection, before, by=by)
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
        return end_trouble(connection, stream, by=by)


def end_trouble(connection: Connection, stream: str, *, by: str) -> bool:
    """The same within a transaction."""
    gone = connection.execute(
        delete(Trouble).where(Trouble.stream == stream).returning(*Trouble.columns())
    ).one_or_none()
    if gone is not None:
        _add_end(connection, gone, by=by)
    return gone is not None


def record_report(ledger: Ledger, trouble: StreamTrouble, *, by: str, is_its_task: bool = False) -> bool:
    """Record, with an event, that a person is alerted to the trouble of a stream; the first time stays.

    Parameters
    ----------
    by: the task that alerts. is_its_task: whether it is that of the stream, which fails for it.

    Returns
    -------
    Whether it is the first time.
    """
    with ledger.transaction() as connection:
        reported = connection.execute(
            update(Trouble)
            .where(Trouble.stream == trouble.stream, Trouble.reported_at.is_(None))
            .values(reported_at=func.now(), by_its_task=is_its_task)
        )
        if reported.rowcount == 1:
            event = _event(trouble.stream, EventAction.ALERT, trouble.reason, trouble.explanation, by=by)
            add_event(connection, event)
        return reported.rowcount == 1


def all_troubles(ledger: Ledger) -> tuple[StreamTrouble, ...]:
    """The unhealthy streams, by name."""
    query = select(*Trouble.columns(), func.now().label("observed_at")).order_by(Trouble.stream)
    with ledger.transaction() as connection:
        rows = connection.execute(query).all()
    return tuple(record_of(StreamTrouble, row) for row in rows)


def _add_end(connection: Connection, ended: Row[Any], *, by: str) -> None:
    """Save that a trouble is over, when a person was alerted to it."""
    if ended.reported_at is not None:
        text = f"It was {ended.reason} since {ended.since:%Y-%m-%d %H:%M:%S %Z}."
        add_event(connection, _event(ended.stream, EventAction.RECOVER, ended.reason, text, by=by))


def _event(stream: str, action: EventAction, state: str, explanation: str, *, by: str) -> Event:
    table = table_of_rows(stream)
    return Event(
        subject=EventSubject.STREAM if table is None else EventSubject.TABLE,
        name=table or stream_of_schema(stream) or stream,
        actor=Actor.component(by),
        action=action,
        reason=state.replace(" ", "_"),
        explanation=explanation,
    )
