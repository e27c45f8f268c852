"""The Spark applications that take work items: started once for each pool, alive by their heartbeats, and fenced.

An application that does not report for two minutes counts as dead, whatever it still does: what it had claimed waits
again, and it may record nothing any more.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from sqlalchemy import ColumnElement, Connection, Select, and_, case, exists, func, literal, or_, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import aliased

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger
from sluice.ledger.stored_values import record_of
from sluice.ledger.work_tables import IS_STARTING, Application, WorkRow, announced
from sluice.ledger.work_values import ApplicationObservation, ApplicationState, WorkKind, WorkState
from sluice.processes.process_identity import ProcessIdentity

DEAD_AFTER = timedelta(seconds=120)
"""How long an application may be silent: as long as the lease of a stream. The end of a process on its own host is
recorded at once by its attendant, so this is for hosts that are gone."""

BOUND_WITHIN = timedelta(seconds=60)
"""How long an application may take until it has a process: the one who starts it may die before. An attendant tries for
half a minute to reach the ledger."""

STARTED_WITHIN = timedelta(minutes=5)
"""How long an application with a process may take to its first heartbeat; a cluster may be busy."""

OVERDUE_AFTER = timedelta(minutes=10)
"""How long an item may wait beside an application that claims nothing, before another one is started: that one hangs,
or is at work on items that take long."""

MOST_APPLICATIONS = 2
"""How many applications of one pool and digest may live at the same time."""

MOST_ATTEMPTS = 2
"""How many applications may begin an item. One that died was perhaps killed by a neighbour; a second one, in which the
item was alone, was not. As many may end before they have reported, as one does whose JVM cannot be started."""

_SILENT = "it did not report"
"""Why an application has ended that counts as dead."""

_LOST = "it was claimed by {attempts} Spark applications, and each ended while it worked on it"
_NEVER_BEGAN = "{attempts} Spark applications ended before they took any work: {reason}. The log of the last one: {log}"


def begin_application(ledger: Ledger, item: str, *, started_by: str) -> str | None:
    """Record that an application is being started for the pool of a waiting item, unless one takes the item already.

    Parameters
    ----------
    started_by: the task or command that starts it.

    Returns
    -------
    The id of the application, which the caller is to start; none when it is not needed, or another caller starts one.
    None, too, when the item has failed by that, because no application of its pool gets as far as to report.
    """
    needs = select(WorkRow.pool, WorkRow.digest).where(
        WorkRow.item == item, WorkRow.state == WorkState.WAITING, ~is_taken_care_of()
    )
    with ledger.transaction() as connection:
        return_lost_items(connection)
        pool = connection.execute(needs).one_or_none()
        if pool is None or _has_failed_by_its_applications(connection, item):
            return None
        begun = (
            insert(Application)
            .values(
                application=str(uuid4()),
                pool=pool.pool,
                digest=pool.digest,
                state=ApplicationState.STARTING,
                started_by=started_by,
            )
            .on_conflict_do_nothing(index_elements=["pool", "digest"], index_where=IS_STARTING)
        )
        return connection.execute(begun.returning(Application.application)).scalar_one_or_none()


def bind_application(ledger: Ledger, application: str, process: ProcessIdentity, *, log_file: str | None) -> None:
    """Bind an application to its process, which has not begun yet.

    Raises
    ------
    LedgerError: when it has a process already, or has ended: the process must not begin then.
    """
    bound = (
        update(Application)
        .where(Application.application == application, Application.pid.is_(None), _has_not_ended())
        .values(host=process.host, pid=process.pid, log_file=log_file)
    )
    with ledger.transaction() as connection:
        if connection.execute(bound).rowcount == 0:
            raise LedgerError(f"Application {application} has a process already, or has ended; nothing begins.")


def beat(ledger: Ledger, application: str) -> bool:
    """Report that an application works. Returns whether it is still counted as alive; else it must end at once."""
    beaten = (
        update(Application)
        .where(Application.application == application, _has_not_ended())
        .values(
            heartbeat_at=func.now(),
            state=case(
                (Application.state == ApplicationState.STARTING, literal(str(ApplicationState.RUNNING))),
                else_=Application.state,
            ),
        )
    )
    with ledger.transaction() as connection:
        return connection.execute(beaten).rowcount == 1


def take_no_more(ledger: Ledger, application: str) -> None:
    """Record that an application takes no further item and ends after those that it has claimed, which may take hours.
    Another one is started meanwhile, as soon as an item waits.
    """
    ending = update(Application).where(Application.application == application, _has_not_ended())
    with ledger.transaction() as connection:
        connection.execute(ending.values(state=ApplicationState.ENDING))


def end_if_idle(ledger: Ledger, application: str, *, reason: str) -> bool:
    """End an application, unless an item waits that it could take. Returns whether it has ended."""
    waiting = exists().where(
        WorkRow.pool == Application.pool,
        WorkRow.digest == Application.digest,
        WorkRow.ended_at.is_(None),  # of the index: most rows have ended
        WorkRow.state == WorkState.WAITING,
        WorkRow.waits_until > func.now(),
    )
    ended = update(Application).where(Application.application == application, _has_not_ended(), ~waiting)
    with ledger.transaction() as connection:
        return connection.execute(ended.values(_ended(reason))).rowcount == 1


def end_application(ledger: Ledger, application: str, *, reason: str) -> None:
    """Record that an application has ended; what it had claimed and not ended waits again. The first reason stays."""
    ended = update(Application).where(Application.application == application, _has_not_ended())
    with ledger.transaction() as connection:
        connection.execute(ended.values(_ended(reason)))
        return_lost_items(connection)


def find_application(ledger: Ledger, application: str) -> ApplicationObservation:
    """Find an application.

    Raises
    ------
    LedgerError: when the ledger does not know it, or cannot be reached.
    """
    with ledger.transaction() as connection:
        row = connection.execute(_select_seen().where(Application.application == application)).one_or_none()
    if row is None:
        raise LedgerError(f"The ledger knows no application {application}.")
    return record_of(ApplicationObservation, row)


def recent_applications(ledger: Ledger, *, limit: int) -> tuple[ApplicationObservation, ...]:
    """The newest applications, newest first."""
    newest = _select_seen().order_by(Application.started_at.desc()).limit(limit)
    with ledger.transaction() as connection:
        return tuple(record_of(ApplicationObservation, row) for row in connection.execute(newest))


def return_lost_items(connection: Connection) -> None:
    """Let items wait again whose application has ended or is dead; each is done alone next time, or has failed when
    that was so already. Applications that are dead are recorded as ended, so that they record nothing any more.

    Rows that somebody else changes at the moment are left for the next call: statements over several rows that wait for
    each other would be a deadlock."""
    other, item = aliased(Application), aliased(WorkRow)
    dead = select(other.application).where(_has_not_ended(other), ~is_alive(other)).with_for_update(skip_locked=True)
    connection.execute(update(Application).where(Application.application.in_(dead)).values(_ended(_SILENT)))
    ended = select(other.application).where(other.state == ApplicationState.ENDED)
    lost = (
        select(item.item)
        .where(item.state == WorkState.CLAIMED, item.application.in_(ended))
        .with_for_update(skip_locked=True)
    )
    spent = WorkRow.attempt >= MOST_ATTEMPTS
    connection.execute(
        update(WorkRow)
        .where(WorkRow.item.in_(lost))
        .values(
            state=case((spent, literal(str(WorkState.FAILED))), else_=literal(str(WorkState.WAITING))),
            ended_at=case((spent, func.now()), else_=None),
            failure=case((spent, literal(_LOST.format(attempts=MOST_ATTEMPTS))), else_=None),
            runs_alone=True,
        )
        .returning(announced(WorkRow.item), announced(WorkRow.pool))
    )


def _has_failed_by_its_applications(connection: Connection, item: str) -> bool:
    """Let an item fail when as many applications as may begin it have ended before they reported, since it was asked
    for: another one would end so too. Returns whether it has."""
    ended = connection.execute(
        select(Application.reason, Application.log_file)
        .join(WorkRow, and_(WorkRow.pool == Application.pool, WorkRow.digest == Application.digest))
        .where(
            WorkRow.item == item,
            Application.state == ApplicationState.ENDED,
            Application.heartbeat_at.is_(None),
            Application.started_at > WorkRow.asked_at,
        )
        .order_by(Application.started_at.desc())
        .limit(MOST_ATTEMPTS)
    ).all()
    if len(ended) < MOST_ATTEMPTS:
        return False
    failure = _NEVER_BEGAN.format(attempts=MOST_ATTEMPTS, reason=ended[0].reason, log=ended[0].log_file or "none")
    failed = (
        update(WorkRow)
        .where(WorkRow.item == item, WorkRow.state == WorkState.WAITING)
        .values(state=WorkState.FAILED, ended_at=func.now(), failure=failure)
    )
    connection.execute(failed.returning(announced(WorkRow.item)))
    return True


def is_alive(application: type[Application] = Application) -> ColumnElement[bool]:
    """Whether an application has not ended, and has reported in time."""
    may_take = case((application.pid.is_(None), BOUND_WITHIN), else_=STARTED_WITHIN)
    reports = case(  # never null, since whoever is not alive is looked for, too
        (application.heartbeat_at.is_(None), application.started_at > func.now() - may_take),
        else_=application.heartbeat_at > func.now() - DEAD_AFTER,
    )
    return and_(_has_not_ended(application), reports)


def is_taken_care_of() -> ColumnElement[bool]:
    """Whether an application lives that will take a waiting item: one of its pool that takes more and does not hang, or
    as many as a pool may have.

    An application hangs for an item when the lane that the item needs has claimed nothing for a while: other lanes of
    it may work on. The lane of an interval is that of its stream, or of all intervals while its stream has none.
    """
    other, running = aliased(Application), aliased(WorkRow)
    mine = and_(other.pool == WorkRow.pool, other.digest == WorkRow.digest, is_alive(other))
    of_stream = and_(WorkRow.kind == WorkKind.INTERVAL, running.subject == WorkRow.subject)
    newest = func.max(running.claimed_at)
    lane_claimed_at = (
        select(func.coalesce(newest.filter(of_stream), newest))
        .where(
            running.application == other.application,
            running.state == WorkState.CLAIMED,
            running.kind == WorkRow.kind,
        )
        .correlate(WorkRow, other)
        .scalar_subquery()
    )
    claimed_at = func.coalesce(lane_claimed_at, other.claimed_at, other.started_at)
    waits_since = func.greatest(WorkRow.not_before, claimed_at)
    live = select(func.count()).select_from(other).where(mine).correlate(WorkRow).scalar_subquery()
    takes_more = other.state != ApplicationState.ENDING
    takes = exists().where(mine, takes_more, waits_since > func.now() - OVERDUE_AFTER).correlate(WorkRow)
    return or_(takes, live >= MOST_APPLICATIONS)


def _has_not_ended(application: type[Application] = Application) -> ColumnElement[bool]:
    return application.state != ApplicationState.ENDED


def _ended(reason: str) -> dict[str, Any]:
    return {"state": ApplicationState.ENDED, "ended_at": func.now(), "reason": reason}


def _select_seen() -> Select[Any]:
    """Applications as they are: one that counts as dead has ended, although no claim has recorded that yet."""
    is_dead = and_(_has_not_ended(), ~is_alive())
    others = ("state", "reason", "pool", "digest")
    return select(
        *(one for one in Application.__table__.columns if one.name not in others),
        Application.pool.label("pool_name"),
        Application.digest.label("pool_digest"),
        case((is_dead, literal(str(ApplicationState.ENDED))), else_=Application.state).label("state"),
        case((is_dead, _SILENT), else_=Application.reason).label("reason"),
    )
