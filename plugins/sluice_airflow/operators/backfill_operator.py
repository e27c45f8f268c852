"""The backfill of an interval as a task: its result, with the numbers of rows, is the task's XCom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from sluice_airflow.operators.spark_job_operator import SparkJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

    from sluice.ledger.records.backfill_attempt import BackfillAttemptObservation

RESULTS = "results"
"""The XCom of the results: by stream its interval, state, snapshot and numbers of rows."""

_LAUNCHED_BY = "--launched-by="


class BackfillOperator(SparkJobOperator):
    """Replace an interval, and show what the ledger recorded of it: for the stream, and for those that followed."""

    def execute(self, context: Context) -> None:
        """Run the job and push its results by stream; Airflow's page of the task shows them under XCom.

        Raises
        ------
        AirflowFailException: when the run is none of a backfill.
        AirflowException, AirflowFailException: as `SparkJobOperator.execute` raises them.
        """
        from sluice.ledger.backfill_attempts import attempts_launched_by  # SQLAlchemy: too slow for parsing a DAG file
        from sluice_airflow.composition import load_deployment

        _require_backfill(context)
        super().execute(context)
        launched_by = next(word for word in self.application_args or () if word.startswith(_LAUNCHED_BY))
        with load_deployment().open_ledger() as ledger:
            attempts = attempts_launched_by(ledger, launched_by.removeprefix(_LAUNCHED_BY))
        results = {attempt.key.stream: _result(attempt) for attempt in attempts if attempt.rows}
        context["ti"].xcom_push(RESULTS, results)


def _require_backfill(context: Context) -> None:
    """Refuse a run that was triggered by hand: it names no interval to replace."""
    run = context["dag_run"]
    if run.run_type != "backfill":
        raise AirflowFailException(
            f"{run.dag_id} runs for backfills only, and {run.run_id} belongs to none: no interval is replaced. "
            "In the dialog of the button Trigger choose Backfill, and give the first and the last interval."
        )


def _result(attempt: BackfillAttemptObservation) -> dict[str, Any]:
    """A result for a person and for later tasks; `rows` are those of the balance."""
    key = attempt.key
    return {
        "interval": f"{key.interval_start:%Y-%m-%d %H:%M} to {key.interval_end:%Y-%m-%d %H:%M} UTC",
        "attempt": key.attempt,
        "state": attempt.state.value,
        "snapshot": str(attempt.snapshot_id) if attempt.snapshot_id is not None else None,
        "rows": dict(attempt.rows),
    }
