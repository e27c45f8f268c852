"""What Airflow knows of a DAG that a page names: whether it is paused, and when it runs next."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import select


@dataclass(frozen=True, slots=True, kw_only=True)
class DagOutlook:
    """A DAG as its scheduler has it. next_run_at: unset when its schedule yields no further run."""

    is_paused: bool
    next_run_at: datetime | None


def find_outlook(dag_id: str) -> DagOutlook | None:
    """Look a DAG up by its id; none when Airflow has not parsed it. One row, by the primary key."""
    query = select(DagModel.is_paused, DagModel.next_dagrun_create_after).where(
        DagModel.dag_id == dag_id, DagModel.is_stale.is_(False)
    )
    with create_session(scoped=False) as session:
        row = session.execute(query).one_or_none()
    return None if row is None else DagOutlook(is_paused=bool(row[0]), next_run_at=row[1])
