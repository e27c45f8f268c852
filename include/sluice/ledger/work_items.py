"""The queue of bounded work: who needs something of Spark adds an item, an application claims it, and records its end.

An item is claimed by one application at a time, and only that one may record its end (`sluice.ledger.applications`).
Who asked looks at the item again and again; an item without a look for a minute is not begun any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    ARRAY,
    Connection,
    Row,
    Select,
    Text,
    Update,
    and_,
    any_,
    case,
    delete,
    exists,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.orm import aliased

from sluice.errors import LedgerError
from sluice.ledger.applications import is_alive, is_taken_care_of, return_lost_items
from sluice.ledger.connection import Ledger
from sluice.ledger.work_tables import Application, WorkRow
from sluice.ledger.work_values import (
    ApplicationState,
    NewItem,
    Pool,
    WorkItem,
    WorkKind,
    WorkObservation,
    WorkState,
)

WAITED_FOR = timedelta(minutes=1)
"""How long after the last look at an item somebody counts as waiting for it: tasks look every few seconds, and a
triggerer restarts within a minute."""

KEPT_FOR = timedelta(days=30)
"""How long ended items stay, and the applications that have ended."""

CHANNEL = "sluice_work"
"""Where PostgreSQL announces a new item, with the name of its pool. A look finds what no announcement has reached."""

_MOST_CANDIDATES = 200
_IS_OPEN = WorkRow.ended_at.is_(None)


def ask(ledger: Ledger, *wanted: NewItem) -> tuple[str, ...]:
    """Add items. What the same asker has asked for before, in an earlier try, is withdrawn.

    Returns
    -------
    The ids of the items.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    ids = []
    with ledger.transaction() as connection:
        for one in wanted:
            same = and_(
                WorkRow.kind == one.kind,
                WorkRow.subject == one.subject,
                WorkRow.asked_by == one.asked_by,
                WorkRow.payload == dict(one.payload),
            )
            connection.execute(update(WorkRow).where(_IS_OPEN, same).values(_ended(WorkState.WITHDRAWN)))
            added = insert(WorkRow).values(
                item=str(uuid4()),
                kind=one.kind,
                subject=one.subject,
                payload=dict(one.payload),
                asked_by=one.asked_by,
                pool=one.pool.name,
                digest=one.pool.digest,
                priority=one.priority,
                linger_seconds=one.linger_seconds,
                waits_until=func.now() + WAITED_FOR,
                state=WorkState.WAITING,
            )
            ids.append(connection.execute(added.returning(WorkRow.item)).scalar_one())
        for pool in {one.pool.name for one in wanted}:
            connection.execute(select(func.pg_notify(CHANNEL, pool)))
    return tuple(ids)


def look_at(items: Sequence[str]) -> Select[Any]:
    """The statement by which who asked looks at these items, and says by that that they still wait.

    Its rows are for `observation_of`.
    """
    these = WorkRow.item == any_(literal(list(items), ARRAY(Text)))
    is_due = WorkRow.waits_until < func.now() + WAITED_FOR / 2  # a look each second need not write each second
    waits = update(WorkRow).where(these, _IS_OPEN, is_due).values(waits_until=func.now() + WAITED_FOR)
    return _select_observations().where(these).add_cte(waits.cte("waits"))


def observe_item(ledger: Ledger, item: str) -> WorkObservation:
    """Look at an item, and say by that that somebody still waits for it.

    Raises
    ------
    LedgerError: when the ledger does not know it, or cannot be reached.
    """
    with ledger.transaction() as connection:
        return observation_of(item, connection.execute(look_at([item])).one_or_none())


def observation_of(item: str, row: Row[Any] | None) -> WorkObservation:
    """The item that a row of `look_at` shows.

    Raises
    ------
    LedgerError: when the ledger does not know it.
    """
    if row is None:
        raise LedgerError(f"The ledger knows no work item {item}.", next_step="Clear the task: it asks again.")
    return WorkObservation(**dict(row._mapping) | {"state": WorkState(row.state)})


def find_pool(ledger: Ledger, item: str) -> Pool | None:
    """The pool of an item; none when the ledger does not know it.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        row = connection.execute(select(WorkRow.pool, WorkRow.digest).where(WorkRow.item == item)).one_or_none()
    return None if row is None else Pool(name=row.pool, digest=row.digest)


def find_items(ledger: Ledger, *, limit: int) -> tuple[tuple[WorkItem, WorkState], ...]:
    """The newest items with their states, newest first.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    newest = select(*WorkRow.__table__.columns).order_by(WorkRow.asked_at.desc()).limit(limit)
    with ledger.transaction() as connection:
        return tuple((_item_of(row), WorkState(row.state)) for row in connection.execute(newest))


def withdraw(items: Sequence[str]) -> Update:
    """The statement that withdraws these items; what is being done for one of them is stopped."""
    these = WorkRow.item == any_(literal(list(items), ARRAY(Text)))
    return update(WorkRow).where(these, _IS_OPEN).values(_ended(WorkState.WITHDRAWN)).returning(WorkRow.item)


def withdraw_items(ledger: Ledger, items: Sequence[str]) -> None:
    """Ask for items no more.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    with ledger.transaction() as connection:
        connection.execute(withdraw(items))


Choose = Callable[[Sequence[WorkItem]], Collection[WorkItem]]
"""Chooses which of the waiting items an application claims now; they are given in the order of the queue."""


def claim(ledger: Ledger, application: str, choose: Choose) -> tuple[WorkItem, ...]:
    """Claim waiting items of an application's pool.

    Parameters
    ----------
    choose: which of those that wait, the first of the queue first. Others cannot claim them meanwhile.

    Returns
    -------
    What is claimed now; nothing when the application counts as dead.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    mine = select(Application.pool, Application.digest).where(Application.application == application, is_alive())
    with ledger.transaction() as connection:
        return_lost_items(connection)
        pool = connection.execute(mine.with_for_update()).one_or_none()
        if pool is None:
            return ()
        waiting = (
            select(*WorkRow.__table__.columns)
            .where(
                WorkRow.pool == pool.pool,
                WorkRow.digest == pool.digest,
                WorkRow.state == WorkState.WAITING,
                WorkRow.waits_until > func.now(),
                WorkRow.not_before <= func.now(),
            )
            .order_by(WorkRow.priority.desc(), WorkRow.asked_at, WorkRow.item)
            .limit(_MOST_CANDIDATES)
            .with_for_update(skip_locked=True)
        )
        chosen = choose([_item_of(row) for row in connection.execute(waiting)])
        return _claimed(connection, application, [one.item for one in chosen]) if chosen else ()


def _claimed(connection: Connection, application: str, items: Sequence[str]) -> tuple[WorkItem, ...]:
    claimed = (
        update(WorkRow)
        .where(WorkRow.item == any_(literal(list(items), ARRAY(Text))))
        .values(
            state=WorkState.CLAIMED,
            application=application,
            attempt=WorkRow.attempt + 1,
            claimed_at=func.now(),
        )
        .returning(*WorkRow.__table__.columns)
    )
    found = {row.item: _item_of(row) for row in connection.execute(claimed)}
    has_claimed = update(Application).where(Application.application == application).values(claimed_at=func.now())
    connection.execute(has_claimed)
    return tuple(found[item] for item in items)


def end_item(
    ledger: Ledger,
    item: WorkItem,
    application: str,
    state: WorkState,
    *,
    failure: str | None = None,
    result: Any = None,
) -> bool:
    """Record how an item ended, unless it was withdrawn, or another application has it now.

    Parameters
    ----------
    failure: the last lines of the item. result: what it returned, as JSON.

    Returns
    -------
    Whether that is recorded now.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    mine = and_(
        WorkRow.item == item.item,
        WorkRow.state == WorkState.CLAIMED,
        WorkRow.application == application,
        WorkRow.attempt == item.attempt,
    )
    ended = update(WorkRow).where(mine).values(**_ended(state), failure=failure, result=result)
    with ledger.transaction() as connection:
        return connection.execute(ended).rowcount == 1


def hand_back(ledger: Ledger, application: str) -> None:
    """Let the items that an application has not ended wait again, as if it had not claimed them: it was asked to end.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    mine = and_(WorkRow.application == application, WorkRow.state == WorkState.CLAIMED)
    given_back = {"state": WorkState.WAITING, "application": None, "attempt": WorkRow.attempt - 1}
    with ledger.transaction() as connection:
        connection.execute(update(WorkRow).where(mine).values(**given_back))


def withdrawn_among(ledger: Ledger, items: Sequence[str]) -> frozenset[str]:
    """Which of these items are not asked for any more.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    these = and_(WorkRow.item == any_(literal(list(items), ARRAY(Text))), WorkRow.state == WorkState.WITHDRAWN)
    with ledger.transaction() as connection:
        return frozenset(connection.execute(select(WorkRow.item).where(these)).scalars())


def remove_old_work(ledger: Ledger, *, dry_run: bool = False) -> int:
    """Remove the items that ended long ago or were left long ago, and the applications that have none any more.

    Returns
    -------
    How many items were removed; in a dry run, how many would be.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    before = func.now() - KEPT_FOR
    is_old = or_(WorkRow.ended_at < before, and_(_IS_OPEN, WorkRow.waits_until < before))
    with ledger.transaction() as connection:
        if dry_run:
            return connection.execute(select(func.count()).select_from(WorkRow).where(is_old)).scalar_one()
        removed = connection.execute(delete(WorkRow).where(is_old)).rowcount
        is_named = exists().where(WorkRow.application == Application.application)
        connection.execute(delete(Application).where(Application.ended_at < before, ~is_named))
    return removed


def _select_observations() -> Select[Any]:
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


def _item_of(row: Row[Any]) -> WorkItem:
    return WorkItem(
        item=row.item,
        kind=WorkKind(row.kind),
        subject=row.subject,
        payload=row.payload,
        asked_by=row.asked_by,
        asked_at=row.asked_at,
        attempt=row.attempt,
        runs_alone=row.runs_alone,
        linger_seconds=row.linger_seconds,
    )


def _ended(state: WorkState) -> dict[str, Any]:
    return {"state": state, "ended_at": func.now()}
