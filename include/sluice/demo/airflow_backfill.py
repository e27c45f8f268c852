"""One backfill through Airflow's REST API: created, and waited for until its own runs have ended.

Source: https://airflow.apache.org/docs/apache-airflow/stable/core-concepts/backfill.html
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from sluice.backfill.intervals import Interval, divide
from sluice.demo.dag_runs import DagRuns

_AT_ONCE = 2


def backfill_days(dag_runs: DagRuns, dag_id: str, days: Interval, *, report_ended: Callable[[int], object]) -> None:
    """Backfill whole days, also those that were backfilled before, and wait until each of them has succeeded.

    Parameters
    ----------
    dag_id: the DAG of a stream's backfills.
    report_ended: receives how many of the days have ended, whenever it was looked.

    Raises
    ------
    DemonstrationError: when a run fails, with the end of its log, or when nothing moves.
    """
    await_no_backfill(dag_runs, dag_id)
    _create(dag_runs, dag_id, days)
    dates, number = _dates(days), len(divide(days, "day"))

    def ended() -> bool | None:
        runs = dag_runs.airflow.runs(dag_id, run_type="backfill", **dates)
        over = [run for run in runs if run.has_ended]
        report_ended(len(over))
        return True if len(over) == number or any(run.state == "failed" for run in over) else None

    dag_runs.standstill.await_answer(
        ended,
        what=f"The backfill of {days.spoken} by the DAG {dag_id} has not ended",
        next_step=f"Look at the DAG {dag_id} in Airflow.",
    )
    for run in dag_runs.airflow.runs(dag_id, run_type="backfill", **dates):
        dag_runs.await_success(run)
    # All its runs have ended. Airflow itself looks for that every half minute only, and admits no other one before.
    dag_runs.airflow.close_backfill(dag_id)


def await_no_backfill(dag_runs: DagRuns, dag_id: str) -> None:
    """Wait until Airflow has noticed the end of the newest backfill of a DAG: it admits one of a DAG at a time.

    A run that was working when the stack was stopped is noticed after five minutes, and tried again.

    Raises
    ------
    DemonstrationError: when nothing moves before.
    """
    dag_runs.standstill.await_answer(
        lambda: dag_runs.airflow.open_backfill(dag_id) is None or None,
        what=f"Another backfill by the DAG {dag_id} is under way",
        next_step=f"Look at the backfills of the DAG {dag_id} in Airflow.",
    )


def _create(dag_runs: DagRuns, dag_id: str, days: Interval) -> None:
    dates = _dates(days)
    order = {
        "dag_id": dag_id,
        "from_date": dates["logical_date_gte"],
        "to_date": dates["logical_date_lte"],
        "run_backwards": True,
        "max_active_runs": _AT_ONCE,
        "reprocess_behavior": "completed",
    }
    dag_runs.airflow.request("POST", "/api/v2/backfills", json=order)


def _dates(days: Interval) -> dict[str, str]:
    """The first and the last day: Airflow names a run by the start of its interval."""
    last = days.end - timedelta(days=1)
    return {"logical_date_gte": days.start.isoformat(), "logical_date_lte": last.isoformat()}
