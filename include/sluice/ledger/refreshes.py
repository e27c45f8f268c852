"""The refreshes of tables: each step is one transaction, and repeating it changes nothing.

    begin_refresh ─► BUILDING ─► begin_swap ─► SWAPPING ─► record_swap ─► SWAPPED
                                     SWAPPED ─► begin_taking_back ─► TAKING_BACK ─► record_taken_back ─► TAKEN_BACK
                     BUILDING, SWAPPING ─► abandon_refresh ─► ABANDONED

The commit on the table lies between the two steps of each line. After a crash the mark on the table shows whether it
landed (`sluice.refresh.swap_content`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, Identity, Index, Select, func, insert, or_, select, text, update
from sqlalchemy.orm import Mapped, mapped_column

from sluice.errors import UsageError
from sluice.ledger.batches import totals
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Event, EventAction, EventSubject, LedgerEvent, add_event
from sluice.ledger.generations import Generation
from sluice.ledger.ledger_table import LedgerTable, is_one_of
from sluice.ledger.refreshed_generations import HandedOver, hand_over_generation
from sluice.ledger.run_leases import Lease, Run
from sluice.ledger.run_values import LIVE_STATES
from sluice.ledger.stored_values import record_of
from sluice.stored_keys import REFRESH_TAG_PREFIX, shadow_name

_IDENTITY_LENGTH = 8
"""So many digits of a random number: names are short, and two refreshes meet only when their numbers are equal too."""


class RefreshState(StrEnum):
    """How far a refresh is.

    BUILDING: the shadow is built; the table is as it was. SWAPPING: the stream is fenced off, and the commit may have
    landed; the mark on the table shows whether it has. SWAPPED: the stream continues in the new generation.
    TAKING_BACK: the old content is about to come back; the mark shows whether it has. TAKEN_BACK: it has.
    ABANDONED: a person gave the refresh up before the swap.
    """

    BUILDING = "building"
    SWAPPING = "swapping"
    SWAPPED = "swapped"
    TAKING_BACK = "taking_back"
    TAKEN_BACK = "taken_back"
    ABANDONED = "abandoned"


OPEN_STATES = frozenset({RefreshState.BUILDING, RefreshState.SWAPPING, RefreshState.TAKING_BACK})
"""In these a command has to continue; a stream has at most one such refresh."""

UNSETTLED_STATES = frozenset({RefreshState.SWAPPING, RefreshState.TAKING_BACK})
"""In these a generation may be on the table that the ledger does not have yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshObservation:
    """One refresh.

    number: rises with every refresh. identity: drawn by chance, because a ledger that was restored gives its numbers
        again: it is part of every name that outlives the ledger.
    digest: of the declaration that the shadow is built with.
    leaves: the generation of the stream before the swap. opens: the one that the swap, or the way back, opens.
    previous: the position of the mark before that commit: generation, batch and digest of the end offsets.
    keeps: for how long the old content can be taken back. keeps_until: by when; unset before the swap.
    snapshot_id: the one that made the new content visible.
    """

    number: int
    identity: str
    stream: str
    state: RefreshState
    digest: str
    leaves: int
    opens: int | None
    previous: Mapping[str, Any] = field(default_factory=dict, hash=False)
    keeps: timedelta
    keeps_until: datetime | None
    rows: int | None
    snapshot_id: int | None
    asked_by: str
    began_at: datetime
    ended_at: datetime | None

    @property
    def shadow(self) -> str:
        """The name under which the shadow generation runs."""
        return shadow_name(self.number, self.identity, self.stream)

    @property
    def tag(self) -> str:
        """The tag of the table that keeps the old content."""
        return f"{REFRESH_TAG_PREFIX}{self.label}"

    @property
    def label(self) -> str:
        """Names the refresh where its ledger may be forgotten."""
        return f"{self.number}_{self.identity}"

    def can_be_taken_back(self, now: datetime) -> bool:
        """Whether the old content is kept at a time."""
        return self.state is RefreshState.SWAPPED and self.keeps_until is not None and now < self.keeps_until


class Refresh(LedgerTable, record=RefreshObservation, now=("began_at",)):
    """A rebuild of a stream's table in a shadow generation."""

    __tablename__ = "refreshes"
    __table_args__ = (
        Index(
            "one_open_refresh_per_stream",
            "stream",
            unique=True,
            postgresql_where=text(is_one_of("state", OPEN_STATES)),
        ),
    )

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)


def newest_refresh(ledger: Ledger, stream: str) -> RefreshObservation | None:
    """The newest refresh of a stream; none before its first."""
    with ledger.transaction() as connection:
        row = connection.execute(_newest(stream)).one_or_none()
    return None if row is None else record_of(RefreshObservation, row)


def all_refreshes(ledger: Ledger) -> tuple[RefreshObservation, ...]:
    """Every refresh of every stream, oldest first."""
    with ledger.transaction() as connection:
        rows = connection.execute(select(*Refresh.columns()).order_by(Refresh.number)).all()
    return tuple(record_of(RefreshObservation, row) for row in rows)


def times_of_abandonment(ledger: Ledger) -> Mapping[int, datetime]:
    """When each abandoned refresh was given up, by its number; without those whose event is not kept any more."""
    is_its = (
        (LedgerEvent.subject == EventSubject.STREAM)
        & (LedgerEvent.name == Refresh.stream)
        & (LedgerEvent.action == EventAction.ABANDON_REFRESH)
        & (LedgerEvent.recorded_at >= Refresh.began_at)
    )
    found = select(Refresh.number, func.min(LedgerEvent.recorded_at)).join(LedgerEvent, is_its)
    with ledger.transaction() as connection:
        rows = connection.execute(found.where(Refresh.state == RefreshState.ABANDONED).group_by(Refresh.number))
        return {row[0]: row[1] for row in rows}


def unsettled_refresh(ledger: Ledger, stream: str) -> RefreshObservation | None:
    """The refresh of a stream whose commit may have landed without a record; none when there is none."""
    newest = newest_refresh(ledger, stream)
    return newest if newest is not None and newest.state in UNSETTLED_STATES else None


def kept_shadows(ledger: Ledger) -> frozenset[str]:
    """The names under whose pins snapshots of sources are kept: for refreshes that are under way, and for those that
    can be taken back.
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
    """
    values = {
        "stream": stream,
        "identity": uuid4().hex[:_IDENTITY_LENGTH],
        "digest": digest,
        "leaves": leaves,
        "asked_by": asked_by,
    }
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
    """
    states = (RefreshState.SWAPPED, RefreshState.TAKING_BACK)
    return _begin(ledger, number, states, RefreshState.TAKING_BACK, event=event)


def record_swap(
    ledger: Ledger, number: int, *, batch: int, snapshot_ids: Mapping[str, int], rows: int
) -> RefreshObservation:
    """Record that the commit of a refresh has landed: the stream continues in the generation of the shadow.

    Parameters
    ----------
    batch: the newest one of the shadow. snapshot_ids: of the commit, by output. rows: of the new content.
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
    """Record that the old content is back: the stream continues from the checkpoint that it had before the refresh.

    Parameters
    ----------
    batch: the newest one of the generation before the refresh. snapshot_ids: of the commit, by output.
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
    """
    with ledger.transaction() as connection:
        seen = _locked(connection, number)
        _require_state(seen, (RefreshState.BUILDING, RefreshState.SWAPPING))
        add_event(connection, event)
        return _changed(connection, number, state=RefreshState.ABANDONED)


def require_its_generation(ledger: Ledger, number: int) -> None:
    """Refuse to read on for a refresh whose stream is in another generation than it was begun in.

    Raises
    ------
    UsageError: when the stream was reset or continued meanwhile.
    """
    with ledger.transaction() as connection:
        is_it = select(*Refresh.columns()).where(Refresh.number == number)
        _require_its_generation(connection, record_of(RefreshObservation, connection.execute(is_it).one()))


def end_refresh(ledger: Ledger, number: int) -> RefreshObservation:
    """Note that nothing is left to be done: the shadow is gone."""
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
        newest = _require_its_generation(connection, seen)
        if event is not None and seen.state is not state:
            add_event(connection, event)
        values = {} if previous is None else {"previous": dict(previous)}
        return _changed(connection, number, state=state, opens=newest + 1, **values)


def _require_its_generation(connection: Connection, seen: RefreshObservation) -> int:
    of_stream = select(func.max(Generation.generation)).where(Generation.stream == seen.stream)
    newest: int = connection.execute(of_stream).scalar_one()
    expected = _expected_generation(seen)
    if newest != expected:
        raise UsageError(
            f"{seen.stream} is at generation {newest}, and refresh {seen.number} was {seen.state} at generation "
            f"{expected}: the stream was reset or continued meanwhile.",
            next_step="A refresh that is not swapped yet can be given up: `sluice stream refresh "
            f"{seen.stream} --abandon`.",
        )
    return newest


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
    """Keep runs and resets of a stream out. A heartbeat writes its run, then its lease: so this locks them in turn."""
    is_live = Run.state.in_(sorted(LIVE_STATES))
    connection.execute(select(Run.run_id).where(Run.stream == stream, is_live).with_for_update())
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
