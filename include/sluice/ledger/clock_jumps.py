"""What follows in the ledger when the clock of its server was set back: a sign from the future is no sign.

A standby whose clock is an hour behind takes over, or a clock that ran ahead is corrected. What was recorded before
that lies in the future: a lost driver would count as heard, a lease as held, a failure as newer than every request, for
as long as the clock went back. Each such time becomes now: what is alive confirms itself within seconds, what is not
has the usual limits from now on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta

from sqlalchemy import Connection, case, delete, func, select, update

from sluice.ledger.airflow_owner import DagPauseSeen, ReconcilerPass
from sluice.ledger.announcements import NewestIncrement
from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger
from sluice.ledger.control_requests import ControlRequestRow
from sluice.ledger.desired_states import StreamDesiredState
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.progress_samples import SourceSample
from sluice.ledger.run_leases import LEASE_SECONDS, Lease, Run
from sluice.ledger.stream_troubles import Trouble
from sluice.ledger.work_tables import Application, WorkRow

TOLERANCE = timedelta(seconds=5)
"""How far ahead a sign may be: clocks are set by parts of a second, and two transactions overlap."""

SIGNS: Mapping[type[LedgerTable], Sequence[str]] = {
    Application: ("started_at", "heartbeat_at", "claimed_at"),
    Batch: ("recorded_at",),
    ControlRequestRow: ("requested_at",),
    DagPauseSeen: ("observed_at", "since"),
    StreamDesiredState: ("requested_at", "suspended_at"),
    Run: ("launched_at", "heartbeat_at", "replayed_at", "ended_at", "end_asked_at"),
    Lease: ("renewed_at",),
    NewestIncrement: ("ended_at",),
    ReconcilerPass: ("began_at", "up_since", "ended_at"),
    Trouble: ("since", "reported_at"),
    WorkRow: ("asked_at", "claimed_at"),
}
"""The times by which something is decided, by table. The samples of progress are left out: those ahead are deleted.

They are locked in this order, which is that of a heartbeat: the run, then its lease."""


_NEWEST = (
    Lease.renewed_at,
    DagPauseSeen.observed_at,
    StreamDesiredState.requested_at,
    StreamDesiredState.suspended_at,
    NewestIncrement.ended_at,
    ReconcilerPass.began_at,
    Trouble.since,
)
"""The times by which it is noticed: of tables with a row for each stream. Not one alone: a driver that lives renews its
lease within seconds, and would hide that everything else lies ahead."""


def follow_clock(ledger: Ledger) -> timedelta:
    """Bring what lies in the future to now, when the clock of the server was set back.

    Returns
    -------
    How far the newest sign was ahead; zero when it was not.
    """
    newest = func.greatest(*(select(func.max(column)).scalar_subquery() for column in _NEWEST))
    with ledger.transaction() as connection:
        ahead: timedelta | None = connection.execute(select(newest - func.clock_timestamp())).scalar_one()
        if ahead is None or ahead <= TOLERANCE:
            return timedelta(0)
        _bring_to_now(connection)
    return ahead


def _bring_to_now(connection: Connection) -> None:
    for table, columns in SIGNS.items():
        known = [table.__table__.c[column] for column in columns]
        values = {column.name: case((column > func.now(), func.now()), else_=column) for column in known}
        is_ahead = func.greatest(*known) > func.now()
        connection.execute(update(table).where(is_ahead).values(**values))
    longest = func.now() + timedelta(seconds=LEASE_SECONDS)
    connection.execute(update(Lease).where(Lease.expires_at > longest).values(expires_at=longest))
    connection.execute(delete(SourceSample).where(SourceSample.observed_at > func.now()))
