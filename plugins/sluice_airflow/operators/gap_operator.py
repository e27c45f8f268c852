"""The search for gaps as a task: skipped while its stream has published nothing that could be compared."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowSkipException

from sluice.errors import SluiceError
from sluice.work.requests import FindGaps
from sluice_airflow.operators.work_operator import WorkOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


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
