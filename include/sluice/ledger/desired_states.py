"""The desired states of the streams. They outlive runs: a stopped stream stays stopped until a person starts it again.

`set_desired_state` records what a person requested, `suspend` and `resume` what Airflow imposes (a paused DAG, a marked
task). A suspended stream is to stop, whatever was requested; when it is resumed, the request counts again unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
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
    true,
    update,
)
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.sql.elements import SQLCoreOperations

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Event, add_event
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.run_leases import Run
from sluice.ledger.run_values import LIVE_STATES, DesiredState
from sluice.ledger.stored_values import record_of


class SuspensionCause(StrEnum):
    """What keeps a stream from running although it is to run.

    PAUSED: a person paused its DAG in Airflow; over when the DAG is unpaused, or a person starts the stream. MARKED: a
    person marked its task as failed or successful; over when a person clears the task, triggers or unpauses the DAG, or
    starts the stream.
    """

    PAUSED = "paused"
    MARKED = "marked"


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredStateObservation:
    """The newest request for a stream, and its suspension.

    desired_state: what was requested; RUNNING when nothing was.
    requested_at, requested_by: unset and empty when nothing was ever requested.
    suspension: what keeps the stream from running all the same. suspended_at: when it was last suspended or resumed.
    """

    stream: str
    desired_state: DesiredState
    requested_at: datetime | None = None
    requested_by: str = ""
    suspension: SuspensionCause | None = None
    suspended_at: datetime | None = None

    @property
    def effective_state(self) -> DesiredState:
        """The state that the stream is to have now: STOPPED while it is suspended, else what was requested."""
        return DesiredState.STOPPED if self.suspension is not None else self.desired_state

    @property
    def changed_at(self) -> datetime | None:
        """When request or suspension last changed; unset when nothing was ever requested."""
        return max((at for at in (self.requested_at, self.suspended_at) if at is not None), default=None)

    @property
    def why_stopped(self) -> str:
        """Who or what stops the stream, to follow "stopped": ` by ann`, ` while its DAG is paused`; empty: unknown."""
        if self.suspension is SuspensionCause.PAUSED:
            return " while its DAG is paused"
        if self.suspension is SuspensionCause.MARKED:
            return " by whoever marked its task in Airflow"
        return f" by {self.requested_by}" if self.requested_by else ""


class StreamDesiredState(LedgerTable, record=DesiredStateObservation, key=("stream",), now=("requested_at",)):
    """What was last requested of a stream, and what suspends it; a stream without a row is to run. `requested_at` is
    unset in a row that only a suspension has made."""

    __tablename__ = "desired_states"


_STREAM = [StreamDesiredState.stream]


def set_desired_state(
    ledger: Ledger,
    stream: str,
    desired_state: DesiredState,
    *,
    requested_by: str = "",
    decided_on: DesiredStateObservation | None = None,
    event: Event | None = None,
) -> DesiredStateObservation:
    """Request that a stream runs or stops. Its live run reads the request with its next heartbeat.

    A repeated request also resets the failure count: failures before it no longer count against the restart budget.
    A request to run also ends every suspension: the newest request of a person counts.

    Parameters
    ----------
    requested_by: the person or program that asks.
    decided_on: what the request was decided on; one that was changed since then stays. Unset: the newest request of a
        person counts, whatever was before.
    event: the request as an event, saved with it.
    """
    request: dict[str, Any] = {"desired_state": str(desired_state), "requested_by": requested_by}
    change = {**request, "requested_at": func.now()}
    if desired_state is DesiredState.RUNNING:
        change["suspension"] = None
    with ledger.transaction() as connection:
        changed = connection.execute(
            insert(StreamDesiredState)
            .values(stream=stream, **request)
            .on_conflict_do_update(index_elements=_STREAM, set_=change, where=_is_as_decided_on(decided_on))
            .returning(StreamDesiredState.stream)
        ).one_or_none()
        if changed is not None and event is not None:
            add_event(connection, event)
        _update_live_run(connection, stream)
        return desired_state_of(stream, connection.execute(select_desired_state(stream)).one())


def reset_failure_count(ledger: Ledger, stream: str, *, requested_by: str, event: Event) -> DesiredStateObservation:
    """Let the failures of a stream count no longer. Whether it is to run stays, also when that was just changed.

    Parameters
    ----------
    requested_by: the person or program that asks. event: the command as an event, saved with it.
    """
    unrequested = {"desired_state": str(DesiredState.RUNNING), "requested_by": requested_by}
    with ledger.transaction() as connection:
        add_event(connection, event)
        row = connection.execute(
            insert(StreamDesiredState)
            .values(stream=stream, **unrequested)
            .on_conflict_do_update(index_elements=_STREAM, set_={"requested_at": func.now()})
            .returning(*StreamDesiredState.columns())
        ).one()
    return desired_state_of(stream, row)


def suspend(
    ledger: Ledger,
    stream: str,
    cause: SuspensionCause,
    *,
    noticed_ago: timedelta | None = None,
    decided_on: DesiredStateObservation | None = None,
    event: Event | None = None,
) -> DesiredStateObservation:
    """Keep a stream from running, whatever was requested. Idempotent. A paused DAG outweighs a marked task.

    Parameters
    ----------
    noticed_ago: how long ago the cause was noticed. What was requested of the stream since then is newer than the cause
        and stays. Unset: the cause exists now.
    decided_on: what the suspension was decided on; what was changed since then stays.
    event: the suspension as an event; saved only when this changes something.
    """
    suspension = StreamDesiredState.suspension
    is_change = or_(suspension.is_(None), literal(cause is SuspensionCause.PAUSED) & (suspension != str(cause)))
    if noticed_ago is not None:  # compared by the database's clock; an age means the same on every machine
        is_change &= or_(_CHANGED_AT.is_(None), func.now() - noticed_ago >= _CHANGED_AT)
    is_change &= _is_as_decided_on(decided_on)
    change = {"suspension": str(cause), "suspended_at": func.now()}
    unrequested = {"desired_state": str(DesiredState.RUNNING), "requested_by": "", "requested_at": None}
    with ledger.transaction() as connection:
        suspended = connection.execute(
            insert(StreamDesiredState)
            .values(stream=stream, **unrequested, **change)
            .on_conflict_do_update(index_elements=_STREAM, set_=change, where=is_change)
            .returning(StreamDesiredState.stream)
        ).one_or_none()
        if suspended is not None and event is not None:
            add_event(connection, event)
        _update_live_run(connection, stream)
        return desired_state_of(stream, connection.execute(select_desired_state(stream)).one())


def resume(
    ledger: Ledger,
    stream: str,
    *,
    asked_ago: timedelta = timedelta(0),
    cause: SuspensionCause | None = None,
    decided_on: DesiredStateObservation | None = None,
    event: Event | None = None,
) -> bool:
    """End the suspension of a stream.

    Parameters
    ----------
    asked_ago: how long ago a person asked for it; a suspension that is younger stays.
    cause: only a suspension of this cause; unset: of any.
    decided_on: what this was decided on; what was changed since then stays.
    event: the decision; saved only when the stream was suspended.

    Returns
    -------
    Whether the stream was suspended.
    """
    with ledger.transaction() as connection:
        resumed = connection.execute(
            update(StreamDesiredState)
            .where(
                StreamDesiredState.stream == stream,
                StreamDesiredState.suspension.is_not(None),
                StreamDesiredState.suspended_at <= func.now() - asked_ago,
                true() if cause is None else StreamDesiredState.suspension == str(cause),
                _is_as_decided_on(decided_on),
            )
            .values(suspension=None, suspended_at=func.now())
        )
        if resumed.rowcount == 1 and event is not None:
            add_event(connection, event)
        _update_live_run(connection, stream)
        return resumed.rowcount == 1


def effective_desired_state(stream: SQLCoreOperations[str]) -> ColumnElement[str]:
    """The state that a stream is to have now, as a SQL expression: what was requested, STOPPED while suspended."""
    effective = case(
        (StreamDesiredState.suspension.is_not(None), literal(str(DesiredState.STOPPED))),
        else_=StreamDesiredState.desired_state,
    )
    newest = select(effective).where(StreamDesiredState.stream == stream).scalar_subquery()
    return func.coalesce(newest, str(DesiredState.RUNNING))


def find_desired_state(ledger: Ledger, stream: str) -> DesiredStateObservation:
    """What was last requested of a stream; RUNNING when nothing was ever requested."""
    with ledger.transaction() as connection:
        return desired_state_of(stream, connection.execute(select_desired_state(stream)).one_or_none())


def find_desired_states(
    ledger: Ledger, streams: Sequence[str], *, unreadable: MutableMapping[str, Exception]
) -> Mapping[str, DesiredStateObservation]:
    """What was last requested of each of these streams, by its name.

    Parameters
    ----------
    unreadable: gets the streams whose request this program cannot read; they are left out.
    """
    with ledger.transaction() as connection:
        found = {row.stream: row for row in connection.execute(select_desired_states(streams))}
    known: dict[str, DesiredStateObservation] = {}
    for stream in streams:
        try:
            known[stream] = desired_state_of(stream, found.get(stream))
        except LedgerError as error:
            unreadable[stream] = error
    return known


def select_desired_state(stream: str) -> Select[Any]:
    """The query for the desired state of a stream: one row, or none when nothing was ever requested."""
    return select(*StreamDesiredState.columns()).where(StreamDesiredState.stream == stream)


def select_desired_states(streams: Sequence[str]) -> Select[Any]:
    """The query for the desired states of several streams: a row for each of which something was requested."""
    return select(*StreamDesiredState.columns()).where(StreamDesiredState.stream == any_(literal(streams, ARRAY(Text))))


def desired_state_of(stream: str, row: Row[Any] | Mapping[str, Any] | None) -> DesiredStateObservation:
    """The desired state of a stream from a row of `select_desired_state`, or its values under their names.

    Parameters
    ----------
    row: unset when the query returned none.
    """
    if row is None:
        return DesiredStateObservation(stream=stream, desired_state=DesiredState.RUNNING)
    return record_of(DesiredStateObservation, row)


_CHANGED_AT = func.greatest(StreamDesiredState.requested_at, StreamDesiredState.suspended_at)
"""As `DesiredStateObservation.changed_at`: PostgreSQL leaves nulls out."""


def _is_as_decided_on(known: DesiredStateObservation | None) -> ColumnElement[bool]:
    """Whether nothing was requested of a stream, and nothing has suspended or resumed it, since it was read."""
    return true() if known is None else _CHANGED_AT.is_not_distinct_from(known.changed_at)


def _update_live_run(connection: Connection, stream: str) -> None:
    connection.execute(
        update(Run)
        .where(Run.stream == stream, Run.state.in_(sorted(LIVE_STATES)), Run.end_asked_at.is_(None))
        .values(desired_state=effective_desired_state(literal(stream)))
    )
