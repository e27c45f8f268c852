"""The queue of bounded work: who needs something of Spark adds an item, an application claims it, and records its end.

An item is claimed by one application at a time, and only that one may record its end (`sluice.ledger.applications`).
Who asked looks at the item again and again; an item without a look for a minute is not begun any more.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    ARRAY,
    ColumnElement,
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
from sqlalchemy.orm import InstrumentedAttribute, aliased

from sluice.errors import LedgerError
from sluice.ledger.applications import is_alive, is_taken_care_of, return_lost_items
from sluice.ledger.connection import Ledger, in_steps
from sluice.ledger.stored_values import record_of
from sluice.ledger.stream_troubles import end_trouble
from sluice.ledger.work_tables import Application, WorkRow, announced
from sluice.ledger.work_values import (
    ApplicationState,
    NewItem,
    Pool,
    WorkItem,
    WorkKind,
    WorkObservation,
    WorkState,
    trouble_of,
)

_MOST_CANDIDATES = 200
"""How many of the waiting items of each lane an application is shown: more than any lane is wide."""

_IN_ORDER = (WorkRow.priority.desc(), WorkRow.asked_at, WorkRow.item)
"""The order of the queue."""


def named(row: type[WorkRow], items: Sequence[str]) -> ColumnElement[bool]:
    """Whether a row is one of these items."""
    return row.item == any_(literal(list(items), ARRAY(Text)))


def _select_waiting(pool: str, digest: str) -> Select[Any]:
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


WAITED_FOR = timedelta(minutes=1)
"""How long after the last look at an item somebody counts as waiting for it: tasks look every few seconds, and a
triggerer restarts within a minute."""

KEPT_FOR = timedelta(days=30)
"""How long ended items stay, and the applications that have ended."""

_ASKED_FOR = WAITED_FOR * 1.5
"""What a look that writes gives an item, so that a look each second need not write each second."""

_AT_ONCE = 2_000
"""Rows that are removed in one transaction: claims do not wait for it."""

_IS_OPEN = WorkRow.ended_at.is_(None)


def ask(ledger: Ledger, *wanted: NewItem) -> tuple[str, ...]:
    """Add items. What the same asker has asked for before, in an earlier try, is withdrawn.

    What an application has died with runs alone until it was done alone once, whoever asks for it again.

    Returns
    -------
    The ids of the items.
    """
    ids = []
    with ledger.transaction() as connection:
        for one in wanted:
            same = and_(WorkRow.kind == one.kind, WorkRow.subject == one.subject, WorkRow.payload == dict(one.payload))
            # Where the newest of the same items that ran alone was not done, an application may die with this one, too.
            alone = select(WorkRow.state != WorkState.DONE).where(WorkRow.runs_alone, same)
            runs_alone = connection.execute(alone.order_by(WorkRow.asked_at.desc()).limit(1)).scalar() or False
            earlier_try = and_(_IS_OPEN, same, WorkRow.asked_by == one.asked_by)
            connection.execute(update(WorkRow).where(earlier_try).values(_ended(WorkState.WITHDRAWN)))
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
                waits_until=func.now() + _ASKED_FOR,
                state=WorkState.WAITING,
                runs_alone=runs_alone,
            )
            ids.append(connection.execute(added.returning(WorkRow.item, announced(WorkRow.pool))).scalar_one())
    return tuple(ids)


def look_at(items: Sequence[str]) -> Select[Any]:
    """The statement by which who asked looks at these items, and says by that that they still wait.

    Its rows are for `observation_of`. An item that is being changed at the moment is left to the next look.
    """
    these, due = named(WorkRow, items), aliased(WorkRow)
    is_due = (
        select(due.item)
        .where(named(due, items), due.ended_at.is_(None), due.waits_until < func.now() + WAITED_FOR)
        .with_for_update(skip_locked=True)
    )
    waits = update(WorkRow).where(WorkRow.item.in_(is_due)).values(waits_until=func.now() + _ASKED_FOR)
    return _select_observations().where(these).add_cte(waits.cte("waits"))


def observe_item(ledger: Ledger, item: str) -> WorkObservation:
    """Look at an item, and say by that that somebody still waits for it.

    Raises
    ------
    LedgerError: when the ledger does not know it, or cannot be reached.
    """
    return observe_items(ledger, [item])[item]


def observe_items(ledger: Ledger, items: Sequence[str]) -> Mapping[str, WorkObservation]:
    """Look at items as `observe_item` does at one, by one query.

    Raises
    ------
    LedgerError: when the ledger does not know one of them, or cannot be reached.
    """
    with ledger.transaction() as connection:
        found = {row.item: row for row in connection.execute(look_at(items))}
    return {item: observation_of(item, found.get(item)) for item in items}


def show_item(ledger: Ledger, item: str) -> WorkObservation:
    """Read an item for a person. That is no waiting for it: what was left is not begun by that.

    Raises
    ------
    LedgerError: when the ledger does not know it, or cannot be reached.
    """
    with ledger.transaction() as connection:
        row = connection.execute(_select_observations().where(WorkRow.item == item)).one_or_none()
    return observation_of(item, row)


def observation_of(item: str, row: Row[Any] | None) -> WorkObservation:
    """The item that a row of `look_at` shows.

    Raises
    ------
    LedgerError: when the ledger does not know it.
    """
    if row is None:
        raise LedgerError(f"The ledger knows no work item {item}.", next_step="Clear the task: it asks again.")
    return record_of(WorkObservation, row)


def find_pool(ledger: Ledger, item: str) -> Pool | None:
    """The pool of an item; none when the ledger does not know it."""
    with ledger.transaction() as connection:
        row = connection.execute(select(WorkRow.pool, WorkRow.digest).where(WorkRow.item == item)).one_or_none()
    return None if row is None else Pool(name=row.pool, digest=row.digest)


def find_items(ledger: Ledger, *, limit: int) -> tuple[tuple[WorkItem, WorkState], ...]:
    """The newest items with their states, newest first."""
    newest = select(*WorkRow.__table__.columns).order_by(WorkRow.asked_at.desc()).limit(limit)
    with ledger.transaction() as connection:
        return tuple((record_of(WorkItem, row), WorkState(row.state)) for row in connection.execute(newest))


def open_items(ledger: Ledger, kind: WorkKind) -> tuple[WorkItem, ...]:
    """The items of a kind that wait or are being done."""
    found = select(*WorkRow.__table__.columns).where(WorkRow.kind == kind, _IS_OPEN)
    with ledger.transaction() as connection:
        return tuple(record_of(WorkItem, row) for row in connection.execute(found))


def find_items_named(ledger: Ledger, beginning: str) -> tuple[str, ...]:
    """The ids of the items that begin so, at most ten of them."""
    named = select(WorkRow.item).where(WorkRow.item.startswith(beginning, autoescape=True)).limit(10)
    with ledger.transaction() as connection:
        return tuple(connection.execute(named).scalars())


def withdraw(items: Sequence[str]) -> Update:
    """The statement that withdraws these items; what is being done for one of them is stopped."""
    return (
        update(WorkRow)
        .where(named(WorkRow, items), _IS_OPEN)
        .values(_ended(WorkState.WITHDRAWN))
        .returning(WorkRow.item, announced(WorkRow.item))
    )


def withdraw_items(ledger: Ledger, items: Sequence[str]) -> None:
    """Ask for items no more."""
    with ledger.transaction() as connection:
        connection.execute(withdraw(items))


Choose = Callable[[Sequence[WorkItem]], Collection[WorkItem]]
"""Chooses which of the waiting items an application claims now; they are given in the order of the queue."""


def claim(ledger: Ledger, application: str, choose: Choose) -> tuple[WorkItem, ...]:
    """Claim waiting items of an application's pool.

    Parameters
    ----------
    choose: which of those that wait, the first of the queue first. Others cannot claim them meanwhile. It is shown the
        first ones of each kind, and the first intervals of each stream: many of one keep no other from being seen.

    Returns
    -------
    What is claimed now; nothing when the application counts as dead.
    """
    mine = select(Application.pool, Application.digest).where(Application.application == application, is_alive())
    with ledger.transaction() as connection:
        return_lost_items(connection)
        pool = connection.execute(mine.with_for_update()).one_or_none()
        if pool is None:
            return ()
        chosen = choose(
            [record_of(WorkItem, row) for row in connection.execute(_select_waiting(pool.pool, pool.digest))]
        )
        return _claimed(connection, application, [one.item for one in chosen]) if chosen else ()


def _claimed(connection: Connection, application: str, items: Sequence[str]) -> tuple[WorkItem, ...]:
    claimed = (
        update(WorkRow)
        .where(named(WorkRow, items))
        .values(
            state=WorkState.CLAIMED,
            application=application,
            attempt=WorkRow.attempt + 1,
            claimed_at=func.now(),
        )
        .returning(*WorkRow.__table__.columns, announced(WorkRow.item))
    )
    found = {row.item: record_of(WorkItem, row) for row in connection.execute(claimed)}
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
    """
    mine = and_(
        WorkRow.item == item.item,
        WorkRow.state == WorkState.CLAIMED,
        WorkRow.application == application,
        WorkRow.attempt == item.attempt,
    )
    ended = update(WorkRow).where(mine).values(**_ended(state), failure=failure, result=result)
    with ledger.transaction() as connection:
        is_recorded = connection.execute(ended.returning(announced(WorkRow.item))).rowcount == 1
        if is_recorded and state is WorkState.DONE and (trouble := trouble_of(item.kind, item.subject)) is not None:
            end_trouble(connection, trouble, by=f"application {application}")
    return is_recorded


def hand_back(ledger: Ledger, application: str) -> None:
    """Let the items that an ending application holds wait again, as if it had not claimed them."""
    mine = and_(WorkRow.application == application, WorkRow.state == WorkState.CLAIMED)
    given_back = {"state": WorkState.WAITING, "application": None, "attempt": WorkRow.attempt - 1}
    with ledger.transaction() as connection:
        connection.execute(update(WorkRow).where(mine).values(**given_back))


def withdrawn_among(ledger: Ledger, items: Sequence[str]) -> frozenset[str]:
    """Which of these items are not asked for any more."""
    these = and_(named(WorkRow, items), WorkRow.state == WorkState.WITHDRAWN)
    with ledger.transaction() as connection:
        return frozenset(connection.execute(select(WorkRow.item).where(these)).scalars())


def remove_old_work(ledger: Ledger, *, dry_run: bool = False) -> int:
    """Remove the items that ended long ago or were left long ago, and the applications that have none any more.

    Returns
    -------
    How many items were removed; in a dry run, how many would be.
    """
    before = func.now() - KEPT_FOR
    is_old = or_(WorkRow.ended_at < before, and_(_IS_OPEN, WorkRow.waits_until < before))
    if dry_run:
        with ledger.transaction() as connection:
            return connection.execute(select(func.count()).select_from(WorkRow).where(is_old)).scalar_one()
    is_named = exists().where(WorkRow.application == Application.application)
    removed = _remove(ledger, WorkRow.item, is_old)
    _remove(ledger, Application.application, and_(Application.ended_at < before, ~is_named))
    return removed


def _remove(ledger: Ledger, key: InstrumentedAttribute[str], is_old: ColumnElement[bool]) -> int:
    some = delete(key.class_).where(key.in_(select(key).where(is_old).limit(_AT_ONCE)))
    return in_steps(ledger, lambda connection: connection.execute(some).rowcount, at_once=_AT_ONCE)


def _ended(state: WorkState) -> dict[str, Any]:
    return {"state": state, "ended_at": func.now()}
