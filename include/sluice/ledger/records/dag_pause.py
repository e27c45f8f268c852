"""What Airflow says about the DAG of a stream, and what it said before."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class DagObservation:
    """The DAG of a stream, as its Airflow shows it now.

    airflow: the id of that Airflow (`sluice.ledger.airflow_owner`).
    has_failed: whether its newest DAG run failed and none runs now. Airflow itself pauses such a DAG.
    """

    airflow: str
    is_paused: bool
    has_failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DagPause:
    """Whether the DAG of a stream was paused when an Airflow was last asked. observed_at: when."""

    stream: str
    airflow: str
    is_paused: bool
    observed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowOwner:
    """The Airflow whose pauses, marks and tasks count for the streams of a ledger.

    claimed_by: who or what gave it the ledger; empty: it was the first one.
    """

    airflow: str
    claimed_at: datetime
    claimed_by: str = ""
