"""One backfill through Airflow's REST API: created, and waited for until its own runs have ended.

Source: https://airflow.apache.org/docs/apache-airflow/stable/core-concepts/backfill.html
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sluice.backfill.intervals import Interval, divide
from sluice.demo.airflow_api import AirflowApi

_FREE_SECONDS = 900.0
"""Airflow admits one backfill of a DAG at a time, and notices the end of one every half minute. A run that was working
when the stack was stopped is noticed after five minutes, and tried again."""

_AT_ONCE = 2
_SECONDS_PER_DAY = 180.0
"""A run takes ten seconds on idle cores; here three drivers and another run share two of them."""


def backfill_days(airflow: AirflowApi, dag_id: str, days: Interval, *, report_ended: Callable[[int], object]) -> None:
    """Backfill whole days, also those that were backfilled before, and wait until each of them has succeeded.

    Parameters
    ----------
    dag_id: the DAG of a stream's backfills.
    report_ended: receives how many of the days have ended, whenever it was looked.

    Raises
    ------
    DemonstrationError: when a run fails, with the end of its log, or when one has not ended in time.
    """
    await_no_backfill(airflow, dag_id)
    _create(airflow, dag_id, days)
    dates, number = _dates(days), len(divide(days, "day"))

    def ended() -> bool | None:
        runs = airflow.runs(dag_id, run_type="backfill", **dates)
        over = [run for run in runs if run.has_ended]
        report_ended(len(over))
        return True if len(over) == number or any(run.state == "failed" for run in over) else None

    airflow.await_answer(
        ended,
        what=f"The backfill of {days.spoken} by the DAG {dag_id} has not ended",
        deadline_seconds=_SECONDS_PER_DAY * number,
        next_step=f"Look at the DAG {dag_id} in Airflow.",
    )
    for run in airflow.runs(dag_id, run_type="backfill", **dates):
        airflow.await_success(run, deadline_seconds=_SECONDS_PER_DAY)


def await_no_backfill(airflow: AirflowApi, dag_id: str) -> None:
    """Wait until Airflow has noticed the end of the newest backfill of a DAG.

    Raises
    ------
    DemonstrationError: when it has not done so in time.
    """
    airflow.await_answer(
        lambda: None if _is_backfilling(airflow, dag_id) else True,
        what=f"Another backfill by the DAG {dag_id} is under way",
        deadline_seconds=_FREE_SECONDS,
        next_step=f"Look at the backfills of the DAG {dag_id} in Airflow.",
    )


def _create(airflow: AirflowApi, dag_id: str, days: Interval) -> None:
    dates = _dates(days)
    order = {
        "dag_id": dag_id,
        "from_date": dates["logical_date_gte"],
        "to_date": dates["logical_date_lte"],
        "run_backwards": True,
        "max_active_runs": _AT_ONCE,
        "reprocess_behavior": "completed",
    }
    airflow.request("POST", "/api/v2/backfills", json=order)


def _is_backfilling(airflow: AirflowApi, dag_id: str) -> bool:
    newest_first = {"dag_id": dag_id, "order_by": "-id", "limit": 1}
    found = airflow.request("GET", "/api/v2/backfills", params=newest_first)["backfills"]
    return any(backfill["completed_at"] is None for backfill in found)


def _dates(days: Interval) -> dict[str, str]:
    """The first and the last day: Airflow names a run by the start of its interval."""
    last = days.end - timedelta(days=1)
    return {"logical_date_gte": days.start.isoformat(), "logical_date_lte": last.isoformat()}
