"""The one Airflow that a ledger belongs to: what it last said about its DAGs, and the newest pass of its reconciler.

Two Airflows on one ledger would undo each other's pauses each minute, and a new one has every DAG paused. So the first
that asks gets the ledger, every other one is refused, and only a person gives it to another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import ARRAY, Select, Text, any_, case, func, literal, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from sluice.errors import LedgerError, SettingsError
from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class DagObservation:
    """The DAG of a stream, as its Airflow shows it now.

    airflow: the id of that Airflow (`sluice.ledger.airflow_owner`).
    has_failed: whether its newest DAG run failed and none runs now. Airflow itself pauses such a DAG.
    has_runs: whether it has a DAG run at all; a DAG that was deleted and made again has none.
    failed_runs: how many of its DAG runs have failed; unset when they were not counted, or one runs.
    """

    airflow: str
    is_paused: bool
    has_failed: bool = False
    has_runs: bool = True
    failed_runs: int | None = None


class PauseOrigin(StrEnum):
    """Why a DAG is paused, as far as it is known. FIRST_SEEN: it was when it was first seen, as every new DAG is.

    UNCLEAR: it was made again under its name, or turned paused together with many others, as in a metadata database
    that was restored.
    """

    FIRST_SEEN = "first_seen"
    PERSON = "person"
    FAILURE = "failure"
    UNCLEAR = "unclear"


@dataclass(frozen=True, slots=True, kw_only=True)
class DagPause:
    """Whether the DAG of a stream was paused when an Airflow was last asked. observed_at: when.

    has_failed: as `DagObservation`. origin: why it is paused; unset when it is not. since: when it was first seen so.
    is_known: unset after Airflow did not know such a DAG: what it is then is not the DAG that was known.
    failed_runs: of the DAG, when it was last seen to have been unpaused; unset when they were not counted then.
    """

    stream: str
    airflow: str
    is_paused: bool
    observed_at: datetime
    has_failed: bool = False
    origin: PauseOrigin | None = None
    since: datetime | None = None
    is_known: bool = True
    failed_runs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowOwner:
    """The Airflow whose pauses, marks and tasks count for the streams of a ledger.

    claimed_by: who or what gave it the ledger; empty: it was the first one.
    """

    airflow: str
    claimed_at: datetime
    claimed_by: str = ""


class LedgerOwner(LedgerTable, record=AirflowOwner, now=("claimed_at",)):
    """The Airflow that the ledger belongs to: at most one row."""

    __tablename__ = "ledger_owner"

    kind: Mapped[str] = mapped_column(primary_key=True)


class DagPauseSeen(LedgerTable, record=DagPause, key=("stream",), now=("observed_at",)):
    """Whether the DAG of a stream was paused when its Airflow was last asked."""

    __tablename__ = "dag_pauses"


_ONLY = "airflow"
"""The key of the only row."""


def claim_for_airflow(ledger: Ledger, airflow: str) -> AirflowOwner:
    """Give the ledger to an Airflow if it belongs to none yet.

    Parameters
    ----------
    airflow: the id that this Airflow keeps in its own database.

    Returns
    -------
    The Airflow that the ledger belongs to now.
    """
    claim = insert(LedgerOwner).values(kind=_ONLY, airflow=airflow, claimed_by="").on_conflict_do_nothing()
    with ledger.transaction() as connection:
        connection.execute(claim)
    owner = find_owner(ledger)
    if owner is None:
        raise AssertionError("a claimed ledger has an owner")  # rows of this table are never deleted
    return owner


def require_ownership(ledger: Ledger, airflow: str) -> None:
    """Refuse an Airflow that the ledger does not belong to.

    Raises
    ------
    SettingsError: when it belongs to another one.
    """
    owner = claim_for_airflow(ledger, airflow)
    if owner.airflow != airflow:
        raise SettingsError(
            f"This ledger belongs to Airflow {owner.airflow} since {owner.claimed_at:%Y-%m-%d %H:%M:%S %Z}, and this "
            f"is Airflow {airflow}: it changes nothing.",
            next_step="If it replaces the other one, whose metadata database is gone: "
            f"`sluice ledger airflow --give-to {airflow}`. If both exist, give each a ledger of its own "
            "(SLUICE_LEDGER_URL).",
        )


def give_to_airflow(ledger: Ledger, airflow: str, *, given_by: str) -> AirflowOwner:
    """Give the ledger to an Airflow, whoever it belongs to. No stream is touched."""
    change = {"airflow": airflow, "claimed_by": given_by}
    gift = (
        insert(LedgerOwner)
        .values(kind=_ONLY, **change)
        .on_conflict_do_update(index_elements=[LedgerOwner.kind], set_={**change, "claimed_at": func.now()})
        .returning(LedgerOwner.airflow, LedgerOwner.claimed_at, LedgerOwner.claimed_by)
    )
    with ledger.transaction() as connection:
        return record_of(AirflowOwner, connection.execute(gift).one())


def find_owner(ledger: Ledger) -> AirflowOwner | None:
    """The Airflow that the ledger belongs to; none before the first one asked."""
    with ledger.transaction() as connection:
        row = connection.execute(select_owner()).one_or_none()
    return None if row is None else record_of(AirflowOwner, row)


def select_owner() -> Select[Any]:
    """The query for the Airflow that the ledger belongs to: one row, or none."""
    query = select(LedgerOwner.airflow, LedgerOwner.claimed_at, LedgerOwner.claimed_by)
    return query.where(LedgerOwner.kind == _ONLY)


def find_dag_pause(ledger: Ledger, stream: str) -> DagPause | None:
    """Whether the DAG of a stream was paused when Airflow was last asked; none when it never was."""
    query = select(*DagPauseSeen.columns()).where(DagPauseSeen.stream == stream)
    with ledger.transaction() as connection:
        row = connection.execute(query).one_or_none()
    return None if row is None else record_of(DagPause, row)


def find_dag_pauses(ledger: Ledger, streams: Sequence[str]) -> Mapping[str, DagPause]:
    """What `find_dag_pause` finds of each of these streams, by its name."""
    query = select(*DagPauseSeen.columns()).where(DagPauseSeen.stream == any_(literal(streams, ARRAY(Text))))
    known: dict[str, DagPause] = {}
    with ledger.transaction() as connection:
        for row in connection.execute(query):
            with suppress(LedgerError):  # what a newer program has recorded counts as unknown, and is recorded again
                known[row.stream] = record_of(DagPause, row)
    return known


def record_dag_pauses(ledger: Ledger, seen: Sequence[DagPause]) -> None:
    """Record whether the DAGs of several streams are paused, each as of the time at which it was observed.

    What was observed earlier than what is known changes nothing: passes and the tasks of streams look at the same DAGs.
    """
    if not seen:
        return
    recorded = insert(DagPauseSeen).values([asdict(one) for one in seen])
    change = {one.name: recorded.excluded[one.name] for one in fields(DagPause) if one.name != "stream"}
    is_newer = DagPauseSeen.observed_at <= recorded.excluded.observed_at
    with ledger.transaction() as connection:
        connection.execute(
            recorded.on_conflict_do_update(index_elements=[DagPauseSeen.stream], set_=change, where=is_newer)
        )


def counted_dags(ledger: Ledger, streams: Sequence[str], *, airflow: str) -> frozenset[str]:
    """The streams of whose DAGs this Airflow has counted the failed runs since they were unpaused."""
    return frozenset(
        name
        for name, seen in find_dag_pauses(ledger, streams).items()
        if seen.is_known and seen.airflow == airflow and not seen.is_paused and seen.failed_runs is not None
    )


def forget_dags(ledger: Ledger, airflow: str) -> int:
    """Forget what an Airflow said of its DAGs, because its metadata database is not the one that said it.

    Returns
    -------
    Of how many streams something was known.
    """
    known = update(DagPauseSeen).where(DagPauseSeen.airflow == airflow, DagPauseSeen.is_known)
    with ledger.transaction() as connection:
        return connection.execute(known.values(is_known=False)).rowcount


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
