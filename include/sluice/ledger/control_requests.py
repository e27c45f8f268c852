"""What a person asked the DAG `stream_control` to do: written by Airflow's API server, which knows the person.

A request is good for one run of that DAG, once and for a short time. A task acts on nothing else, because whoever may
edit runs may clear, mark and copy them, and a task does not know who did.
"""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.control_values import ControlRequest, Person
from sluice.ledger.ledger_table import LedgerTable

KEPT_FOR = timedelta(days=30)
"""How long a request is kept. One that is gone is as good as none."""


class ControlRequestRow(LedgerTable, record=ControlRequest, key=("run_id",), now=("requested_at",)):
    """The requests of the last month."""

    __tablename__ = "control_requests"


def record_control_request(
    ledger: Ledger,
    run_id: str,
    *,
    stream: str,
    verb: str,
    by: Person,
    batch: int | None = None,
    plan_digest: str | None = None,
) -> bool:
    """Record what a person asks. Returns whether it was recorded: the id of a run is good once."""
    recorded = (
        insert(ControlRequestRow)
        .values(
            run_id=run_id,
            stream=stream,
            verb=verb,
            batch=batch,
            plan_digest=plan_digest,
            person_id=by.person_id,
            person=by.name,
        )
        .on_conflict_do_nothing()
        .returning(ControlRequestRow.run_id)
    )
    with ledger.transaction() as connection:
        connection.execute(delete(ControlRequestRow).where(ControlRequestRow.requested_at < func.now() - KEPT_FOR))
        return connection.execute(recorded).one_or_none() is not None


def record_answer(ledger: Ledger, run_id: str, *, by: Person, approved_digest: str | None) -> bool:
    """Record the answer of a person to the plan that they were shown; the first counts. Returns whether this is it.

    Parameters
    ----------
    approved_digest: of the plan; unset when they rejected it.
    """
    answered = (
        update(ControlRequestRow)
        .where(ControlRequestRow.run_id == run_id, ControlRequestRow.answered_at.is_(None))
        .values(answered_at=func.now(), approver_id=by.person_id, approver=by.name, approved_digest=approved_digest)
        .returning(ControlRequestRow.run_id)
    )
    with ledger.transaction() as connection:
        return connection.execute(answered).one_or_none() is not None


def find_control_request(ledger: Ledger, run_id: str) -> ControlRequest | None:
    """The request that a run is about; none without a request, or when it is older than `KEPT_FOR`."""
    query = select(*ControlRequestRow.columns()).where(ControlRequestRow.run_id == run_id)
    with ledger.transaction() as connection:
        row = connection.execute(query).one_or_none()
    return None if row is None else ControlRequest(**row._mapping)


def use_control_request(
    ledger: Ledger, run_id: str, *, stream: str, verb: str, within: timedelta, must_be_approved: bool
) -> ControlRequest:
    """Take the request of a run for carrying it out; it cannot be taken again, whatever becomes of that.

    Parameters
    ----------
    within: how long ago it may have been made. must_be_approved: whether a person must have approved its plan.

    Raises
    ------
    UsageError: when there is none for this stream and verb that is unused, young enough and, if needed, approved.
    """
    taken = (
        update(ControlRequestRow)
        .where(
            ControlRequestRow.run_id == run_id,
            ControlRequestRow.stream == stream,
            ControlRequestRow.verb == verb,
            ControlRequestRow.used_at.is_(None),
            ControlRequestRow.requested_at > func.now() - within,
        )
        .values(used_at=func.now())
        .returning(*ControlRequestRow.columns())
    )
    if must_be_approved:
        taken = taken.where(ControlRequestRow.approved_digest.is_not(None))
    with ledger.transaction() as connection:
        row = connection.execute(taken).one_or_none()
    if row is None:
        raise UsageError(
            f"There is no request to {verb} {stream} that run {run_id} may carry out: "
            f"{_why_not(ledger, run_id, within)}. Nothing was changed.",
            next_step="Trigger `stream_control` again, in Airflow or by its API.",
        )
    return ControlRequest(**row._mapping)


def _why_not(ledger: Ledger, run_id: str, within: timedelta) -> str:
    request = find_control_request(ledger, run_id)
    if request is None:
        return "it was not triggered through Airflow's API server"
    if request.used_at is not None:
        return (
            f"it was carried out at {request.used_at:%Y-%m-%d %H:%M} UTC, and a run that is cleared does nothing again"
        )
    if request.answered_at is None:
        return f"it was asked for longer ago than {within}, or its plan was not approved"
    return "its plan was rejected, it is for something else, or it was approved too long ago"
