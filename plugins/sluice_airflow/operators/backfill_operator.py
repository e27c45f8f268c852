"""The backfill of an interval as a task: its result, with the numbers of rows, is the task's XCom.

A task asks for its interval in the ledger. When a Spark application of its stream runs already, the task waits for that
one to replace the interval too, deferred, without a worker slot. Otherwise it starts an application, and runs as long
as that one works for others. `sluice_airflow.triggers` is imported when the task runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowException, AirflowFailException

from sluice.errors import SettingsError
from sluice.launching.job_command import RunBackfill
from sluice_airflow.operators.spark_job_operator import SparkJobOperator, job_failure

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from airflow.sdk import Context

    from sluice.ledger.connection import Ledger
    from sluice.ledger.records.backfill_request import IntervalRequest

POLL_SECONDS = 2.0
"""Between two looks at a request while its task is deferred."""


class BackfillOperator(SparkJobOperator):
    """Replace an interval, and show what the ledger recorded of it: for the stream, and for those that followed."""

    def __init__(self, *, command: RunBackfill, **kwargs: Any) -> None:
        super().__init__(command=command, **kwargs)
        self.stream = command.stream
        self._number: int | None = None

    def execute(self, context: Context) -> None:
        """Ask for the interval, have it replaced, and push its results by stream; Airflow's page of the task shows them
        under XCom.

        Raises
        ------
        AirflowFailException: when the run is none of a backfill.
        AirflowException, AirflowFailException: as `SparkJobOperator.execute` raises them.
        """
        from sluice.ledger.backfill_requests import add_request  # SQLAlchemy: too slow for parsing a DAG file
        from sluice_airflow.composition import load_deployment

        _require_backfill(context)
        try:
            deployment = load_deployment()
        except SettingsError as error:
            raise AirflowFailException(str(error)) from error
        request = self._request(digest=_digest_of(deployment.settings.pipelines))
        with deployment.open_ledger() as ledger:
            number = add_request(ledger, request)
        self._have_replaced(context, request, number)

    def look_again(self, context: Context, event: Mapping[str, Any] | None = None, *, number: int) -> None:
        """Go on after a trigger fired. Airflow's database holds this name for every deferred task."""
        self._have_replaced(context, self._request(digest=""), number)

    def on_kill(self) -> None:
        """End the application, and ask for the interval no more."""
        from sluice.ledger.backfill_requests import end_request
        from sluice.ledger.records.backfill_request import RequestState
        from sluice_airflow.composition import load_deployment

        super().on_kill()
        if self._number is not None:
            with load_deployment().open_ledger() as ledger:
                end_request(ledger, self._number, RequestState.WITHDRAWN)

    def _have_replaced(self, context: Context, request: IntervalRequest, number: int) -> None:
        """Take the result if there is one; otherwise start an application, or wait for the one that runs."""
        from sluice.backfill.run_results import RESULTS, results_of_run
        from sluice.ledger.backfill_requests import observe_request
        from sluice.ledger.records.backfill_request import RequestState
        from sluice_airflow.composition import load_deployment
        from sluice_airflow.triggers.request_trigger import RequestTrigger

        self._number = number
        with load_deployment().open_ledger() as ledger:
            seen = observe_request(ledger, number)
            if seen.needs_application:
                self._run_application(context, ledger, number)
            elif seen.is_open:
                trigger = RequestTrigger(
                    stream=request.stream, number=number, launched_by=request.launched_by, poll_seconds=POLL_SECONDS
                )
                self.defer(trigger=trigger, method_name=self.look_again.__name__, kwargs={"number": number})
            elif seen.state is RequestState.FAILED:
                raise job_failure(seen.failure or "", subject=self.subject)
            elif seen.state is RequestState.WITHDRAWN:
                raise AirflowException(f"The request {number} for this interval was withdrawn; the task asks again.")
            context["ti"].xcom_push(RESULTS, results_of_run(ledger, request.launched_by))

    def _run_application(self, context: Context, ledger: Ledger, number: int) -> None:
        """Start an application and wait for its end. When it dies after this interval was replaced, the task is done:
        the runs whose intervals were not start another one."""
        from sluice.ledger.backfill_requests import end_request, leave_to_start, observe_request
        from sluice.ledger.records.backfill_request import RequestState

        leave_to_start(ledger, number)
        try:
            super().execute(context)
        except AirflowException as error:
            if observe_request(ledger, number).state is not RequestState.DONE:
                end_request(ledger, number, RequestState.WITHDRAWN)
                raise
            self.log.warning("The interval was replaced before its application failed: %s", error)
        end_request(ledger, number, RequestState.DONE)

    def _request(self, *, digest: str) -> IntervalRequest:
        """The interval of the run, under the name that the job gets as `--launched-by`."""
        from sluice.backfill.intervals import parse_interval
        from sluice.launching.job_command import parse_arguments
        from sluice.ledger.records.backfill_request import IntervalRequest

        command = parse_arguments(RunBackfill, self.application_args or ())
        interval = parse_interval(command.start, command.end)
        return IntervalRequest(
            stream=command.stream,
            interval_start=interval.start,
            interval_end=interval.end,
            launched_by=command.launched_by,
            digest=digest,
        )


def _digest_of(pipelines: Path) -> str:
    from sluice.declarations.load_declarations import load_declarations

    return load_declarations(pipelines).digest


def _require_backfill(context: Context) -> None:
    """Refuse a run that was triggered by hand: it names no interval to replace."""
    run = context["dag_run"]
    if run.run_type != "backfill":
        raise AirflowFailException(
            f"{run.dag_id} runs for backfills only, and {run.run_id} belongs to none: no interval is replaced. "
            "In the dialog of the button Trigger choose Backfill, and give the first and the last interval."
        )
