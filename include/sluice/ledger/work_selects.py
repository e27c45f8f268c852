"""The queries of the queue: what waits, in its order, and how an item stands for who has asked for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Select, Text, and_, any_, case, exists, func, literal, or_, select
from sqlalchemy.orm import aliased

from sluice.ledger.applications import is_alive, is_taken_care_of
from sluice.ledger.work_tables import Application, WorkRow
from sluice.ledger.work_values import ApplicationState, WorkKind, WorkState

_MOST_CANDIDATES = 200
"""How many of the waiting items of each lane an application is shown: more than any lane is wide."""

_IN_ORDER = (WorkRow.priority.desc(), WorkRow.asked_at, WorkRow.item)
"""The order of the queue."""


def named(row: type[WorkRow], items: Sequence[str]) -> ColumnElement[bool]:
    """Whether a row is one of these items."""
    return row.item == any_(literal(list(items), ARRAY(Text)))


def select_waiting(pool: str, digest: str) -> Select[Any]:
    """The first waiting items of each lane, in the order of the queue, locked."""
    waits = and_(
        WorkRow.pool == pool,
        WorkRow.digest == digest,
        WorkRow.ended_at.is_(None),  # of the index: most rows have ended
        WorkRow.state == WorkState.WAITING,
        WorkRow.waits_until > func.now(),
        WorkRow.not_before <= func.now(),
    )
    of_stream = case((WorkRow.kind == WorkKind.INTERVAL, WorkRow.subject), else_="")
    place = func.row_number().over(partition_by=[WorkRow.kind, of_stream], order_by=_IN_ORDER)
    placed = select(WorkRow.item, place.label("place")).where(waits).subquery()
    first = select(placed.c.item).where(placed.c.place <= _MOST_CANDIDATES)
    return (
        select(*WorkRow.__table__.columns)
        .where(WorkRow.item.in_(first), waits)  # once more, for a row that has changed before it was locked
        .order_by(*_IN_ORDER)
        .with_for_update(skip_locked=True)
    )


def select_observations() -> Select[Any]:
    """An item whose application is dead is shown as waiting: the next claim, or the next start, returns it."""
    other = aliased(WorkRow)
    is_lost = and_(
        WorkRow.state == WorkState.CLAIMED,
        or_(Application.state == ApplicationState.ENDED, ~is_alive()),
    )
    waits = or_(WorkRow.state == WorkState.WAITING, is_lost)
    earlier = exists().where(
        other.pool == WorkRow.pool,
        other.digest == WorkRow.digest,
        other.ended_at.is_(None),  # of the index: most rows have ended
        other.state == WorkState.WAITING,
        other.waits_until > func.now(),
        or_(
            other.priority > WorkRow.priority,
            and_(other.priority == WorkRow.priority, other.asked_at < WorkRow.asked_at),
        ),
    )
    return select(
        WorkRow.item,
        case((is_lost, literal(str(WorkState.WAITING))), else_=WorkRow.state).label("state"),
        WorkRow.failure,
        WorkRow.result,
        WorkRow.application,
        Application.log_file,
        and_(waits, ~is_taken_care_of(), ~earlier).label("needs_application"),
    ).select_from(WorkRow.__table__.outerjoin(Application, Application.application == WorkRow.application))


def select_probation() -> Select[Any]:
    """Whether the newest of some items that run alone was not done: an application may die with the next one, too."""
    return select(WorkRow.state != WorkState.DONE).where(WorkRow.runs_alone).order_by(WorkRow.asked_at.desc()).limit(1)
