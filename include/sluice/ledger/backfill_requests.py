"""The requests of runs for intervals, so that one Spark application replaces the intervals of many runs.

A run adds a request and looks at it again and again. An application takes the oldest one that somebody waits for, and
ends it with its result. That an application takes requests is a lock of its own connection: when its process dies, the
lock is free, and the run whose request is the oldest one starts another.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    Identity,
    Index,
    Row,
    Update,
    and_,
    column,
    delete,
    exists,
    func,
    insert,
    literal,
    select,
    table,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import OID
from sqlalchemy.orm import InstrumentedAttribute, Mapped, aliased, mapped_column

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger, ledger_errors
from sluice.ledger.ledger_table import LedgerTable, is_one_of
from sluice.ledger.records.backfill_request import IntervalRequest, RequestObservation, RequestState, TakenRequest


class BackfillRequest(LedgerTable):
    """The request of a run for one interval; it is open as long as it has not ended."""

    __tablename__ = "backfill_requests"
    __table_args__ = (
        Index("open_backfill_requests", "stream", "number", postgresql_where=text("ended_at IS NULL")),
        CheckConstraint(is_one_of("state", RequestState), name="state"),
    )

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    stream: Mapped[str]
    interval_start: Mapped[datetime]
    interval_end: Mapped[datetime]
    launched_by: Mapped[str]
    digest: Mapped[str]
    state: Mapped[str]
    requested_at: Mapped[datetime] = mapped_column(server_default=func.now())
    waits_until: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    failure: Mapped[str | None]


WAITED_FOR = timedelta(minutes=1)
"""How long after its last look a run counts as waiting: it looks every few seconds, and a triggerer restarts within a
minute. The interval of a run that was killed is not replaced after that."""

STARTED_WITHIN = timedelta(minutes=5)
"""How long the others leave it to one run to start an application, which looks at nothing meanwhile."""

_KEPT_FOR = timedelta(days=30)

_APPLICATION_SPACE = 0x736C7561
_REQUEST_SPACE = 0x736C7572
"""The first halves of the locks' keys, the bytes of `slua` and `slur`: other users of the database choose others."""

_LOCKS = table(
    "pg_locks", column("locktype"), column("database"), column("classid"), column("objid"), column("granted")
)
_DATABASES = table("pg_database", column("oid"), column("datname"))
_IS_OPEN = BackfillRequest.ended_at.is_(None)


def add_request(ledger: Ledger, request: IntervalRequest) -> int:
    """Ask for an interval. What the same run has asked for before, in an earlier try, is withdrawn.

    Returns
    -------
    The number of the request.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    is_old = BackfillRequest.ended_at < func.now() - _KEPT_FOR
    with ledger.transaction() as connection:
        # Requests become visible in the order of their numbers: otherwise two could be the oldest for a moment.
        connection.execute(select(func.pg_advisory_xact_lock(_REQUEST_SPACE, func.hashtext(request.stream))))
        earlier = update(BackfillRequest).where(_IS_OPEN, _is_of_run(request))
        connection.execute(earlier.values(_ended(RequestState.WITHDRAWN)))
        connection.execute(delete(BackfillRequest).where(BackfillRequest.stream == request.stream, is_old))
        added = insert(BackfillRequest).values(
            **asdict(request), state=RequestState.WAITING, waits_until=func.now() + WAITED_FOR
        )
        number: int = connection.execute(added.returning(BackfillRequest.number)).scalar_one()
    return number


def look_at_request(number: int) -> Update:
    """The statement by which a run looks at its request, and says by that that it still waits; see `request_of`."""
    own, other = BackfillRequest, aliased(BackfillRequest)
    waits = and_(other.ended_at.is_(None), other.waits_until > func.now(), other.number < own.number)
    earlier = exists().where(other.stream == own.stream, waits)
    looked = update(own).where(own.number == number).values(waits_until=func.now() + WAITED_FOR)
    return looked.returning(
        own.number,
        own.state,
        own.failure,
        (~earlier).label("is_next"),
        _has_application(own.stream).label("has_application"),
    )


def request_of(number: int, row: Row[Any] | None) -> RequestObservation:
    """The request that was looked at.

    Raises
    ------
    LedgerError: when the ledger does not know it.
    """
    if row is None:
        raise LedgerError(f"The ledger has no request {number} for an interval.", next_step="Clear the task.")
    values = dict(row._mapping)
    return RequestObservation(**values | {"state": RequestState(values["state"])})


def observe_request(ledger: Ledger, number: int) -> RequestObservation:
    """Look at a request, and say by that that its run still waits.

    Raises
    ------
    LedgerError: when the ledger cannot be reached, or does not know the request.
    """
    with ledger.transaction() as connection:
        return request_of(number, connection.execute(look_at_request(number)).one_or_none())


def leave_to_start(ledger: Ledger, number: int) -> None:
    """Record that the run of a request starts an application, so that no other does meanwhile.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        waits = {"waits_until": func.now() + STARTED_WITHIN}
        connection.execute(update(BackfillRequest).where(BackfillRequest.number == number).values(waits))


def is_requested(ledger: Ledger, request: IntervalRequest) -> bool:
    """Whether a run asks for an interval.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        return bool(connection.execute(select(exists().where(_IS_OPEN, _is_of_run(request)))).scalar_one())


def take_own_request(ledger: Ledger, request: IntervalRequest) -> TakenRequest | None:
    """Take the request of the run that has started this application; none when the run asks no more.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    return _take(ledger, _is_of_run(request))


def take_request(ledger: Ledger, stream: str, *, digest: str) -> TakenRequest | None:
    """Take the oldest request of a stream that a run waits for.

    Parameters
    ----------
    digest: of the declarations that the application has loaded. When the oldest request is for others, none is taken:
        the application is out of date.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    return _take(
        ledger,
        BackfillRequest.stream == stream,
        BackfillRequest.state == RequestState.WAITING,
        BackfillRequest.waits_until > func.now(),
        digest=digest,
    )


def end_request(ledger: Ledger, number: int, state: RequestState, *, failure: str | None = None) -> None:
    """Record how a request ended, unless its run asks no more.

    Parameters
    ----------
    failure: the last lines of the job for this interval.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        ended = update(BackfillRequest).where(BackfillRequest.number == number, _IS_OPEN)
        connection.execute(ended.values(_ended(state) | {"failure": failure}))


def withdraw_request(number: int) -> Update:
    """The statement by which a run asks for its interval no more."""
    withdrawn = update(BackfillRequest).where(BackfillRequest.number == number, _IS_OPEN)
    return withdrawn.values(_ended(RequestState.WITHDRAWN)).returning(BackfillRequest.number)


@contextmanager
def application_lock(ledger: Ledger, stream: str) -> Iterator[bool]:
    """Be the application that takes the requests of a stream while the block runs. What an application that died had
    taken waits again.

    Yields
    ------
    Whether this is the one; there is at most one.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    key = (_APPLICATION_SPACE, func.hashtext(stream))
    engine = ledger.engine.execution_options(isolation_level="AUTOCOMMIT")  # no transaction stays open for minutes
    with ledger_errors(engine.url), engine.connect() as connection:
        is_mine: bool = connection.execute(select(func.pg_try_advisory_lock(*key))).scalar_one()
        try:
            if is_mine:
                taken = update(BackfillRequest).where(BackfillRequest.stream == stream, _IS_OPEN)
                connection.execute(taken.values(state=RequestState.WAITING))
            yield is_mine
        finally:
            if is_mine:
                connection.execute(select(func.pg_advisory_unlock(*key)))


def _is_of_run(request: IntervalRequest) -> ColumnElement[bool]:
    """Whether a row is a request of the same run for the same interval, whatever declarations it has read."""
    given = asdict(request)
    return and_(*(getattr(BackfillRequest, name) == value for name, value in given.items() if name != "digest"))


def _ended(state: RequestState) -> dict[str, Any]:
    return {"state": state, "ended_at": func.now()}


def _take(ledger: Ledger, *which: ColumnElement[bool], digest: str | None = None) -> TakenRequest | None:
    oldest = (
        select(*BackfillRequest.columns())
        .where(_IS_OPEN, *which)
        .order_by(BackfillRequest.number)
        .limit(1)
        .with_for_update()
    )
    with ledger.transaction() as connection:
        row = connection.execute(oldest).one_or_none()
        if row is None or (digest is not None and row.digest != digest):
            return None
        taken = update(BackfillRequest).where(BackfillRequest.number == row.number)
        connection.execute(taken.values(state=RequestState.TAKEN))
    request = IntervalRequest(
        stream=row.stream,
        interval_start=row.interval_start,
        interval_end=row.interval_end,
        launched_by=row.launched_by,
        digest=row.digest,
    )
    return TakenRequest(number=row.number, request=request)


def _has_application(stream: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """Whether a process holds the lock of a stream's application. PostgreSQL shows the halves of a key as numbers
    without a sign."""
    here = select(_DATABASES.c.oid).where(_DATABASES.c.datname == func.current_database()).scalar_subquery()
    held = and_(
        _LOCKS.c.locktype == "advisory",
        _LOCKS.c.granted,
        _LOCKS.c.database == here,
        _LOCKS.c.classid == literal(_APPLICATION_SPACE).cast(OID),
        _LOCKS.c.objid == func.hashtext(stream).cast(OID),
    )
    return exists().where(held)
