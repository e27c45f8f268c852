"""The backfill of an interval as a task: its results, with the numbers of rows, are the task's XCom.

The intervals of many runs are replaced by one Spark application, several at a time, and those that touch as one batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from sluice.work.requests import ReplaceInterval
from sluice_airflow.operators.work_operator import WorkOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.ledger.connection import Ledger


class BackfillOperator(WorkOperator):
    """Replace an interval, and show what the ledger recorded of it: for the stream, and for those that followed."""

    def __init__(self, *, request: ReplaceInterval, **kwargs: Any) -> None:
        super().__init__(request=request, **kwargs)

    def execute(self, context: Context) -> Any:
        """Have the interval replaced; Airflow's page of the task shows its results under XCom.

        Raises
        ------
        AirflowFailException: when the run is not a backfill run.
        AirflowException, AirflowFailException: as `WorkOperator.execute` raises them.
        """
        _require_backfill(context)
        super().execute(context)

    def finish(self, context: Context, ledger: Ledger) -> None:
        """Push the results by stream."""
        from sluice.backfill.run_results import RESULTS, results_of_run

        context["ti"].xcom_push(RESULTS, results_of_run(ledger, self.asked_by))


def _require_backfill(context: Context) -> None:
    """Refuse a run that was triggered by hand: it names no interval to replace."""
    run = context["dag_run"]
    if run.run_type != "backfill":
        raise AirflowFailException(
            f"{run.dag_id} runs for backfills only, and {run.run_id} is not a backfill run: no interval is replaced. "
            "In the dialog of the button Trigger choose Backfill, and give the first and the last interval."
        )
