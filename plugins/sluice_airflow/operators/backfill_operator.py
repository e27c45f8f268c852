"""The tasks of backfills: an interval that is replaced, and the search for intervals that differ from their sources.

The intervals of many runs are replaced by one Spark application, several at a time, and those that touch as one batch.
What a backfill has done, with the numbers of rows, is the XCom of its task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from sluice.errors import SluiceError
from sluice.work.requests import FindGaps, ReplaceInterval
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


class GapOperator(WorkOperator):
    """Compare a table with the sources of its stream, unless the stream has published nothing yet."""

    def __init__(self, *, request: FindGaps, **kwargs: Any) -> None:
        super().__init__(request=request, **kwargs)
        self.stream = request.stream

    def execute(self, context: Context) -> Any:
        """Search for gaps and wait for the result.

        Raises
        ------
        AirflowSkipException: when there is nothing to compare; Spark is not started.
        AirflowException, AirflowFailException: as `WorkOperator.execute` raises them.
        """
        if self._has_published_nothing():
            raise AirflowSkipException(
                f"{self.stream} has published nothing yet, so there is nothing to compare with its sources."
            )
        super().execute(context)

    def _has_published_nothing(self) -> bool:
        """Whether it is known that nothing was published. What cannot be observed, the search itself reports."""
        from sluice.backfill.observe_backfill import has_published
        from sluice.declarations.load_declarations import load_declarations
        from sluice.tables.catalog import open_catalog
        from sluice_airflow.composition import load_deployment  # it imports SQLAlchemy: too slow for parsing a DAG file

        try:
            settings = load_deployment().settings
            stream = load_declarations(settings.pipelines, only=self.stream).stream(self.stream)
            return not has_published(open_catalog(settings), stream)
        except SluiceError as error:
            self.log.warning("What %s has published is unknown: %s", self.stream, error)
            return False
