"""What was asked of the streams: it outlives runs, so a stopped stream stays stopped until somebody asks again."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Row,
    Select,
    Text,
    any_,
    case,
    func,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.elements import SQLCoreOperations

from sluice.ledger.connection import Ledger
from sluice.ledger.models import Run, Wish
from sluice.ledger.records.desired_state import HoldCause, WishObservation
from sluice.ledger.records.run import LIVE_STATES, DesiredState


def wish(ledger: Ledger, stream: str, desired_state: DesiredState, *, wished_by: str = "") -> WishObservation:
    """Ask that a stream runs, or that it stops. Its live run hears it with its next heartbeat, later runs at once.

    A renewed wish also forgives: failures before it no longer count against the restart budget. That a stream runs also
    ends the hold of a marked task; that of a paused DAG only ends when the DAG is unpaused.

    Parameters
    ----------
    wished_by: who asks, for a person.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    asked: dict[str, Any] = {"desired_state": str(desired_state), "wished_by": wished_by}
    kept_hold = case((Wish.hold == str(HoldCause.PAUSED), Wish.hold))
    held = {"hold": kept_hold} if desired_state is DesiredState.RUNNING else {}
    with ledger.transaction() as connection:
        row = connection.execute(
            insert(Wish)
            .values(stream=stream, **asked)
            .on_conflict_do_update(index_elements=[Wish.stream], set_={**asked, **held, "wished_at": func.now()})
            .returning(*Wish.__table__.columns)
        ).one()
        _tell_live_run(connection, stream)
    return observation_of(stream, row)


def hold(ledger: Ledger, stream: str, cause: HoldCause, *, noticed_ago: timedelta | None = None) -> WishObservation:
    """Keep a stream from running, whatever is wished of it. Idempotent. A paused DAG outweighs a marked task.

    Parameters
    ----------
    noticed_ago: how long ago the cause was noticed. What was asked of the stream since then is newer than the cause and
        stays. Unset: the cause is there now.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    changes = or_(Wish.hold.is_(None), literal(cause is HoldCause.PAUSED) & (Wish.hold != str(cause)))
    if noticed_ago is not None:  # by the database's clock, to which an age means the same as here
        changed_at = func.greatest(Wish.wished_at, Wish.held_at)
        changes &= or_(changed_at.is_(None), changed_at <= func.now() - noticed_ago)
    with ledger.transaction() as connection:
        connection.execute(
            insert(Wish)
            .values(
                stream=stream,
                desired_state=str(DesiredState.RUNNING),
                wished_by="",
                wished_at=None,
                hold=str(cause),
                held_at=func.now(),
            )
            .on_conflict_do_update(
                index_elements=[Wish.stream], set_={"hold": str(cause), "held_at": func.now()}, where=changes
            )
        )
        _tell_live_run(connection, stream)
        return observation_of(stream, connection.execute(question_for(stream)).one())


def lift(ledger: Ledger, stream: str) -> bool:
    """End the hold of a stream, whatever its cause.

    Returns
    -------
    Whether there was one.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        lifted = connection.execute(
            update(Wish).where(Wish.stream == stream, Wish.hold.is_not(None)).values(hold=None, held_at=func.now())
        )
        _tell_live_run(connection, stream)
        return lifted.rowcount == 1


def current_wish(stream: SQLCoreOperations[str]) -> ColumnElement[str]:
    """What a stream is to be now, as an expression of SQL: its wish, and STOPPED while something holds it."""
    wanted = case((Wish.hold.is_not(None), literal(str(DesiredState.STOPPED))), else_=Wish.desired_state)
    newest = select(wanted).where(Wish.stream == stream).scalar_subquery()
    return func.coalesce(newest, str(DesiredState.RUNNING))


def _tell_live_run(connection: Connection, stream: str) -> None:
    connection.execute(
        update(Run)
        .where(Run.stream == stream, Run.state.in_(sorted(LIVE_STATES)), Run.end_asked_at.is_(None))
        .values(desired_state=current_wish(literal(stream)))
    )


def find_wish(ledger: Ledger, stream: str) -> WishObservation:
    """What was last asked of a stream; one of which nothing was ever asked is wanted."""
    with ledger.transaction() as connection:
        return observation_of(stream, connection.execute(question_for(stream)).one_or_none())


def question_for(stream: str) -> Select[Any]:
    """The query for what was last asked of a stream."""
    return select(*Wish.__table__.columns).where(Wish.stream == stream)


def question_for_all(streams: Sequence[str]) -> Select[Any]:
    """The query for what was last asked of several streams: a row for each of which something was."""
    return select(*Wish.__table__.columns).where(Wish.stream == any_(literal(streams, ARRAY(Text))))


def observation_of(stream: str, row: Row[Any] | None) -> WishObservation:
    """The wish that the answer to `question_for` holds."""
    if row is None:
        return WishObservation(stream=stream, desired_state=DesiredState.RUNNING)
    return WishObservation(
        stream=row.stream,
        desired_state=DesiredState(row.desired_state),
        wished_at=row.wished_at,
        wished_by=row.wished_by,
        hold=None if row.hold is None else HoldCause(row.hold),
        held_at=row.held_at,
    )
