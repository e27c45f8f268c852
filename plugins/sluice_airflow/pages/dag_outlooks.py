"""DAGs as the scheduler of this Airflow has them: paused or not, and when their next run is due."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from sqlalchemy import select

from sluice.supervision.platform_dags import MISSED_WHILE_PAUSED


@dataclass(frozen=True, slots=True, kw_only=True)
class DagOutlook:
    """A DAG as its scheduler has it.

    next_run_at: unset when its schedule yields no further run.
    token: of the form that unpauses it; empty for who may not.
    """

    dag: str
    is_paused: bool
    next_run_at: datetime | None
    token: str = ""

    @property
    def is_missed(self) -> str:
        """What is missed while it is paused; empty when it is not, or is no DAG of the platform."""
        return MISSED_WHILE_PAUSED.get(self.dag, "") if self.is_paused else ""


def find_outlooks(dags: Collection[str]) -> Mapping[str, DagOutlook]:
    """Look DAGs up by their ids, in one query by the primary key. What Airflow has not parsed is left out."""
    query = select(DagModel.dag_id, DagModel.is_paused, DagModel.next_dagrun_create_after).where(
        DagModel.dag_id.in_(list(dags)), DagModel.is_stale.is_(False)
    )
    with create_session(scoped=False) as session:
        rows = session.execute(query).all()
    return {row[0]: DagOutlook(dag=row[0], is_paused=bool(row[1]), next_run_at=row[2]) for row in rows}
