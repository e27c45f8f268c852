"""The newest pass of the reconciler: who watches the others is watched by this."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import case, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of

MISSING_AFTER = timedelta(minutes=5)
"""How long after its newest pass the reconciler is missing: it has one each minute."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassObservation:
    """The newest pass. dag_run: the DAG run that made it. ended_at: unset while it runs, or when it broke off.

    up_since: the first pass after the last standstill, in which the reconciler was missing; Airflow may have been down.
    """

    dag_run: str
    began_at: datetime
    up_since: datetime
    ended_at: datetime | None = None


class ReconcilerPass(LedgerTable, record=PassObservation, now=("began_at", "up_since")):
    """The newest pass of the reconciler: at most one row."""

    __tablename__ = "reconciler_passes"

    kind: Mapped[str] = mapped_column(primary_key=True)


_NEWEST = "newest"
_COLUMNS = (ReconcilerPass.dag_run, ReconcilerPass.began_at, ReconcilerPass.up_since, ReconcilerPass.ended_at)


def begin_pass(ledger: Ledger, dag_run: str) -> PassObservation | None:
    """Record that a pass begins. Returns the one before it; none before the first."""
    stood_still = func.now() - ReconcilerPass.began_at > MISSING_AFTER
    up_since = case((stood_still, func.now()), else_=ReconcilerPass.up_since)
    begun = {"dag_run": dag_run, "began_at": func.now(), "up_since": up_since, "ended_at": None}
    with ledger.transaction() as connection:
        before = connection.execute(select(*_COLUMNS).with_for_update()).one_or_none()
        connection.execute(
            insert(ReconcilerPass)
            .values(kind=_NEWEST, dag_run=dag_run)
            .on_conflict_do_update(index_elements=[ReconcilerPass.kind], set_=begun)
        )
    return None if before is None else record_of(PassObservation, before)


def end_pass(ledger: Ledger, dag_run: str) -> None:
    """Record that a pass has come to its end, whatever it found."""
    with ledger.transaction() as connection:
        connection.execute(update(ReconcilerPass).where(ReconcilerPass.dag_run == dag_run).values(ended_at=func.now()))


def missing_for(ledger: Ledger) -> timedelta | None:
    """How long the reconciler has begun no pass; none while it is not missing, or has never made one."""
    age = func.clock_timestamp() - ReconcilerPass.began_at
    with ledger.transaction() as connection:
        found: timedelta | None = connection.execute(select(age)).scalar_one_or_none()
    return None if found is None or found <= MISSING_AFTER else found
