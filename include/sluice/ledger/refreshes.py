"""The refreshes of tables: each step is one transaction, and repeating it changes nothing.

    begin_refresh ─► BUILDING ─► begin_swap ─► SWAPPING ─► record_swap ─► SWAPPED
                                     SWAPPED ─► begin_taking_back ─► TAKING_BACK ─► record_taken_back ─► TAKEN_BACK
                     BUILDING, SWAPPING ─► abandon_refresh ─► ABANDONED

The commit on the table lies between the two steps of each line. After a crash the mark on the table shows whether it
landed (`sluice.refresh.settle_refresh`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Any

from sqlalchemy import Connection, Select, func, insert, or_, select, update

from sluice.errors import UsageError
from sluice.ledger.batches import totals
from sluice.ledger.connection import Ledger
from sluice.ledger.events import add_event
from sluice.ledger.models import Generation, Lease, Refresh
from sluice.ledger.records.event import Event
from sluice.ledger.records.refresh import OPEN_STATES, UNSETTLED_STATES, RefreshObservation, RefreshState
from sluice.ledger.refreshed_generations import HandedOver, hand_over_generation
from sluice.ledger.stored_values import record_of


def newest_refresh(ledger: Ledger, stream: str) -> RefreshObservation | None:
    """The newest refresh of a stream; none before its first.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        row = connection.execute(_newest(stream)).one_or_none()
    return None if row is None else record_of(RefreshObservation, row)


def unsettled_refresh(ledger: Ledger, stream: str) -> RefreshObservation | None:
    """The refresh of a stream whose commit may have landed without a record; none when there is none.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    newest = newest_refresh(ledger, stream)
    return newest if newest is not None and newest.state in UNSETTLED_STATES else None


def kept_shadows(ledger: Ledger) -> frozenset[str]:
    """The names under whose pins snapshots of sources are kept: for refreshes that are under way, and for those that
    can be taken back.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    is_kept = or_(
        Refresh.state.in_(sorted(OPEN_STATES)),
        (Refresh.state == RefreshState.SWAPPED) & (Refresh.keeps_until > func.now()),
    )
    with ledger.transaction() as connection:
        rows = connection.execute(select(*Refresh.columns()).where(is_kept)).all()
    return frozenset(record_of(RefreshObservation, row).shadow for row in rows)


def begin_refresh(
    ledger: Ledger, stream: str, *, digest: str, leaves: int, keeps: timedelta, asked_by: str, event: Event
) -> RefreshObservation:
    """Begin a refresh of a stream.

    Parameters
    ----------
    digest: of the declaration. leaves: the generation of the stream. keeps: for how long the old content is kept.
    event: saved with it.

    Raises
    ------
    UsageError: when another one is open.
    LedgerError: when the ledger cannot be reached.
    """
    values = {"stream": stream, "digest": digest, "leaves": leaves, "asked_by": asked_by}
    with ledger.transaction() as connection:
        _lock(connection, stream)
        if (newest := connection.execute(_newest(stream)).one_or_none()) is not None and newest.state in OPEN_STATES:
            raise UsageError(f"Refresh {newest.number} of {stream} is {newest.state}: it is to be ended first.")
        row = connection.execute(
            insert(Refresh).values(state=RefreshState.BUILDING, keeps=keeps, **values).returning(*Refresh.columns())
        ).one()
        add_event(connection, event)
    return record_of(RefreshObservation, row)


def begin_swap(ledger: Ledger, number: int, *, previous: Mapping[str, Any]) -> RefreshObservation:
    """Note that the commit of a refresh may land from now on, and which generation it opens.

    Parameters
    ----------
    previous: the position of the mark before it.

    Raises
    ------
    UsageError: when the refresh was abandoned, or the stream was reset since it began.
    LedgerError: when the ledger cannot be reached.
    """
    return _begin(
        ledger, number, (RefreshState.BUILDING, RefreshState.SWAPPING), RefreshState.SWAPPING, previous=previous
    )


def begin_taking_back(ledger: Ledger, number: int, *, event: Event) -> RefreshObservation:
    """Note that the old content of a refresh may come back from now on, and which generation that opens.

    Parameters
    ----------
    event: saved with it, once.

    Raises
    ------
    UsageError: when there is nothing to take back, or the stream was reset since the swap.
    LedgerError: when the ledger cannot be reached.
    """
    states = (RefreshState.SWAPPED, RefreshState.TAKING_BACK)
    return _begin(ledger, number, states, RefreshState.TAKING_BACK, event=event)


def record_swap(
    ledger: Ledger, number: int, *, batch: int, snapshot_ids: Mapping[str, int], rows: int
) -> RefreshObservation:
    """Record that the commit of a refresh has landed: the stream goes on in the generation of the shadow.

    Parameters
    ----------
    batch: the newest one of the shadow. snapshot_ids: of the commit, by output. rows: of the new content.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        seen = _locked(connection, number)
        if seen.state is not RefreshState.SWAPPING or seen.opens is None:
            return seen
        source = HandedOver(
            stream=seen.shadow,
            generation=1,
            batch=batch,
            snapshot_ids=snapshot_ids,
            totals=totals(ledger, seen.shadow),
        )
        hand_over_generation(connection, seen.stream, seen.opens, source, opened_by=seen.asked_by)
        kept = {"keeps_until": func.now() + seen.keeps, "snapshot_id": next(iter(snapshot_ids.values()), None)}
        return _changed(connection, number, state=RefreshState.SWAPPED, rows=rows, **kept)


def record_taken_back(
    ledger: Ledger, number: int, *, batch: int, snapshot_ids: Mapping[str, int]
) -> RefreshObservation:
    """Record that the old content is back: the stream goes on from the checkpoint that it had before the refresh.

    Parameters
    ----------
    batch: the newest one of the generation before the refresh. snapshot_ids: of the commit, by output.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        seen = _locked(connection, number)
        if seen.state is not RefreshState.TAKING_BACK or seen.opens is None:
            return seen
        source = HandedOver(stream=seen.stream, generation=seen.leaves, batch=batch, snapshot_ids=snapshot_ids)
        hand_over_generation(connection, seen.stream, seen.opens, source, opened_by=seen.asked_by)
        return _changed(connection, number, state=RefreshState.TAKEN_BACK, ended_at=None)


def abandon_refresh(ledger: Ledger, number: int, *, event: Event) -> RefreshObservation:
    """Give a refresh up before its swap. The caller has made sure that its commit has not landed and never will.

    Raises
    ------
    UsageError: when it is neither building nor swapping.
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        seen = _locked(connection, number)
        _require_state(seen, (RefreshState.BUILDING, RefreshState.SWAPPING))
        add_event(connection, event)
        return _changed(connection, number, state=RefreshState.ABANDONED)


def end_refresh(ledger: Ledger, number: int) -> RefreshObservation:
    """Note that nothing is left to be done: the shadow is gone.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        return _changed(connection, number, ended_at=func.coalesce(Refresh.ended_at, func.now()))


def _begin(
    ledger: Ledger,
    number: int,
    allowed: Collection[RefreshState],
    state: RefreshState,
    *,
    previous: Mapping[str, Any] | None = None,
    event: Event | None = None,
) -> RefreshObservation:
    with ledger.transaction() as connection:
        seen = _locked(connection, number)
        _require_state(seen, allowed)
        of_stream = select(func.max(Generation.generation)).where(Generation.stream == seen.stream)
        newest, expected = connection.execute(of_stream).scalar_one(), _expected_generation(seen)
        if newest != expected:
            raise UsageError(
                f"{seen.stream} is at generation {newest}, and refresh {number} was {seen.state} at generation "
                f"{expected}: the stream was reset or continued meanwhile.",
                next_step="A refresh that is not swapped yet can be given up: `sluice stream refresh "
                f"{seen.stream} --abandon`.",
            )
        if event is not None and seen.state is not state:
            add_event(connection, event)
        values = {} if previous is None else {"previous": dict(previous)}
        return _changed(connection, number, state=state, opens=newest + 1, **values)


def _expected_generation(seen: RefreshObservation) -> int | None:
    """The generation that the stream has unless someone else has opened one."""
    match seen.state:
        case RefreshState.SWAPPED:
            return seen.opens
        case RefreshState.TAKING_BACK:
            return None if seen.opens is None else seen.opens - 1
        case _:
            return seen.leaves


def _locked(connection: Connection, number: int) -> RefreshObservation:
    """The refresh, whose stream admits no run and no reset until the transaction ends."""
    is_it = select(*Refresh.columns()).where(Refresh.number == number)
    _lock(connection, connection.execute(is_it).one().stream)
    return record_of(RefreshObservation, connection.execute(is_it.with_for_update()).one())


def _lock(connection: Connection, stream: str) -> None:
    connection.execute(select(Lease.stream).where(Lease.stream == stream).with_for_update())


def _require_state(seen: RefreshObservation, allowed: Collection[RefreshState]) -> None:
    if seen.state not in allowed:
        raise UsageError(
            f"Refresh {seen.number} of {seen.stream} is {seen.state}; this is for one that is {' or '.join(allowed)}."
        )


def _changed(connection: Connection, number: int, **values: Any) -> RefreshObservation:
    changed = update(Refresh).where(Refresh.number == number).values(**values).returning(*Refresh.columns())
    return record_of(RefreshObservation, connection.execute(changed).one())


def _newest(stream: str) -> Select[Any]:
    newest_first = Refresh.number.desc()
    return select(*Refresh.columns()).where(Refresh.stream == stream).order_by(newest_first).limit(1)
