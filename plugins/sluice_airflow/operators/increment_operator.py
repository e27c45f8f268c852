"""An increment as a task: without new input it ends as success before any JVM starts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluice.errors import SluiceError
from sluice.launching.job_command import RunIncrement
from sluice_airflow.operators.spark_job_operator import SparkJobOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class IncrementOperator(SparkJobOperator):
    """Run an increment, unless the ledger and the heads of its sources show that there is nothing to do."""

    def __init__(self, *, command: RunIncrement, **kwargs: Any) -> None:
        super().__init__(command=command, **kwargs)
        self.stream = command.stream

    def execute(self, context: Context) -> None:
        """Run the increment and wait for it.

        Raises
        ------
        AirflowException, AirflowFailException: as `SparkJobOperator.execute` raises them.
        """
        if self._has_nothing_to_do():
            self.log.info("There is no new input for %s: Spark is not started.", self.stream)
            return
        super().execute(context)

    def _has_nothing_to_do(self) -> bool:
        """Whether it is known that there is nothing to do. What cannot be observed, the increment itself reports."""
        from sluice.declarations.load_declarations import load_declarations
        from sluice.sources.source_heads import SourceHeads
        from sluice.supervision.empty_increment import has_nothing_to_do, observe_increment
        from sluice_airflow.composition import load_deployment  # it imports SQLAlchemy: too slow for parsing a DAG file

        try:
            deployment = load_deployment()
            stream = load_declarations(deployment.settings.pipelines, only=self.stream).stream(self.stream)
            with deployment.open_ledger() as ledger:
                return has_nothing_to_do(observe_increment(ledger, SourceHeads(deployment.settings), stream))
        except SluiceError as error:
            self.log.warning("Whether there is new input is unknown: %s", error)
            return False
