"""The maintenance of a table as a task: an application of Spark is asked only for steps that need one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sluice.errors import SluiceError
from sluice.launching.job_output import FAILURE_MARK
from sluice.work.requests import MaintainTable
from sluice_airflow.operators.work_operator import WorkOperator, failure_of_work

if TYPE_CHECKING:
    from airflow.sdk import Context


class MaintenanceOperator(WorkOperator):
    """Maintain a table: here as far as no Spark is needed, else as a work item.

    So a table that is red, because a step is refused or has been blocked for long, shows that without a JVM.
    """

    def __init__(self, *, request: MaintainTable, **kwargs: Any) -> None:
        super().__init__(request=request, **kwargs)
        self.table = request.table

    def work(self, context: Context) -> None:
        """Maintain the table, or ask for it and wait."""
        try:
            is_maintained = self._is_maintained_here()
        except SluiceError as error:
            raise failure_of_work(f"{FAILURE_MARK}{type(error).__name__}: {error}", subject=self.table) from error
        if is_maintained:
            self._report_end()
        else:
            super().work(context)

    def _is_maintained_here(self) -> bool:
        """Maintain the table, unless that needs Spark."""
        from sluice.declarations.load_declarations import load_declarations
        from sluice.maintenance.maintenance_records import run_sentences
        from sluice.maintenance.run_maintenance import open_maintenance, require_no_problems

        deployment = self._deployment()
        declarations = load_declarations(deployment.settings.pipelines)
        with deployment.open_owned_ledger() as ledger:
            maintenance = open_maintenance(deployment.settings, ledger, declarations, launched_by=self.asked_by)
            run = maintenance.maintain_without_spark(self.table)
            if run is None:
                return False
            for sentence in run_sentences(run):
                self.log.info("%s", sentence)
            require_no_problems(ledger, run)
        return True
