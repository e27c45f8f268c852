"""The table of the runs, and the leases that they hold: one holder for each stream, and a fencing token that rises with
every admitted run.

    admit_run ──► acquire        in one transaction: no run without a token, no token without a run
    raise_token ► raise_above    in one transaction: a table has seen a higher token
    beat      ──► renew          in one transaction: a run that reports holds its lease
    record_end ─► release        in one transaction: an ended run holds nothing

A lease that is neither renewed nor released expires by the database's clock; `runs.take_over` then ends its run,
whether or not the driver lives, and the next admission acquires it with a higher token. The row of a stream is never
deleted, so its token never falls. Tokens follow the database's clock in milliseconds, so that they do not fall either
when an older copy of the database replaces it; where that is not enough, the run raises its token above those that its
tables have seen (decision 0036). These functions work inside the transaction of their caller; a driver that must not
ask the ledger before each publication asks its `sluice.supervision.held_lease.HeldLease` instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, Connection, Identity, Index, cast, func, literal, or_, text, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from sluice.errors import LedgerError
from sluice.ledger.ledger_table import LedgerTable, is_one_of
from sluice.ledger.run_values import LIVE_STATES, RunObservation

RUN_IS_LIVE = text(is_one_of("state", LIVE_STATES))
"""The rows of `one_live_run_per_stream`. Words, because by parameters PostgreSQL does not recognise the index."""


class Run(LedgerTable, record=RunObservation, key=("run_id",), now=("launched_at",)):
    """A run of a stream. `number` rises with every admission, so that the newest run needs no clock."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("one_live_run_per_stream", "stream", unique=True, postgresql_where=RUN_IS_LIVE),
        Index(None, "stream", "number"),
    )

    number: Mapped[int] = mapped_column(Identity(always=True))


LEASE_SECONDS = 240.0
"""How long a lease is valid after its newest renewal, by the database's clock. It bounds how long a stream stays
without a driver while it is unknown whether the old one lives; an observed death frees the lease at once. The sum of
how long a driver works without the ledger and how long it may then take to stop (`sluice.supervision.held_lease`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseObservation:
    """The lease of a stream. All times are the database's.

    token: of the newest run that was ever admitted. It is never given twice and never falls, even when runs are
        archived, or when an older copy of the database replaces it.
    run_id: that run.
    expires_at: until then no other run may run the stream; unset when the run has ended and the lease is free.
    """

    stream: str
    token: int
    run_id: str
    renewed_at: datetime
    expires_at: datetime | None = None

    def is_held(self, *, at: datetime) -> bool:
        """Whether only its holder may run the stream at that time of the database."""
        return self.expires_at is not None and at < self.expires_at


class Lease(LedgerTable, record=LeaseObservation, key=("stream",), now=("renewed_at",)):
    """The right to run a stream. A row stays for ever, so that its token never falls."""

    __tablename__ = "leases"
    __table_args__ = (Index(None, "run_id"),)


def acquire(connection: Connection, *, stream: str, run_id: str) -> int:
    """Give the lease of a stream to a run.

    Returns
    -------
    The run's token: higher than that of any earlier run of the stream in this ledger.

    Raises
    ------
    LedgerError: when another run holds a lease that has not expired.
    """
    held_until = _from_now(LEASE_SECONDS)
    token = connection.execute(
        insert(Lease)
        .values(stream=stream, token=_token_above(literal(0)), run_id=run_id, expires_at=held_until)
        .on_conflict_do_update(
            index_elements=[Lease.stream],
            set_={
                "token": _token_above(Lease.__table__.c.token),
                "run_id": run_id,
                "renewed_at": func.now(),
                "expires_at": held_until,
            },
            where=or_(Lease.expires_at.is_(None), Lease.expires_at <= func.now()),
        )
        .returning(Lease.token)
    ).scalar_one_or_none()
    if token is None:
        raise LedgerError(
            f"Run {run_id} of stream {stream} gets no lease: another run holds it.",
            next_step=f"See who: `sluice stream show {stream}`.",
        )
    return int(token)


def raise_above(connection: Connection, *, run_id: str, token: int) -> int | None:
    """Raise the token of a lease above one that a table has seen.

    Returns
    -------
    The new token; none when the run does not hold its lease.
    """
    raised = connection.execute(
        update(Lease)
        .where(Lease.run_id == run_id, Lease.expires_at.is_not(None))
        .values(token=_token_above(func.greatest(Lease.token, token)))
        .returning(Lease.token)
    ).scalar_one_or_none()
    return None if raised is None else int(raised)


def renew(connection: Connection, *, run_id: str) -> bool:
    """Renew the lease that a run holds, also when it has expired and no other run took it.

    Returns
    -------
    Whether the run holds its lease; one that was released or taken over never gets it back.
    """
    renewed = connection.execute(
        update(Lease)
        .where(Lease.run_id == run_id, Lease.expires_at.is_not(None))
        .values(renewed_at=func.now(), expires_at=_from_now(LEASE_SECONDS))
    )
    return renewed.rowcount == 1


def release(connection: Connection, *, run_id: str) -> None:
    """Free the lease that a run holds; nothing happens when it holds none."""
    connection.execute(update(Lease).where(Lease.run_id == run_id).values(expires_at=None))


def _token_above(token: ColumnElement[Any]) -> ColumnElement[int]:
    """The next token: the time in milliseconds, and always more than the previous token.

    The ledger cannot see that it is an older copy of itself, which has forgotten the newest tokens; the time can.
    """
    now_ms = func.floor(func.extract("epoch", func.clock_timestamp()) * 1000)
    return func.greatest(token + 1, cast(now_ms, BigInteger))


def _from_now(seconds: float) -> ColumnElement[Any]:
    return func.now() + timedelta(seconds=seconds)
