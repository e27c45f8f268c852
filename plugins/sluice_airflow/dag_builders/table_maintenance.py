"""The DAG that keeps tables in order."""

from __future__ import annotations

from collections.abc import Sequence

from airflow.sdk import DAG

from sluice.declarations.load_declarations import Declarations
from sluice.declarations.quarantine_table import all_tables
from sluice.work.requests import MaintainTable
from sluice_airflow.dag_builders.table_jobs import table_jobs_dag
from sluice_airflow.operators.maintenance_operator import MaintenanceOperator

DAG_ID = "table_maintenance"

_DOCUMENT = """\
# table_maintenance
Compacts small files, rewrites manifests and expires snapshots, as each table's declaration says (`maintenance:`). The
first task looks at all tables and does what needs no Spark; the tables that it skips are in order. The others have a
task each, and those whose steps need Spark share one application.

## How to operate it
- It runs every hour. **Trigger** it to run now, and choose the tables in the form; none chosen means all.
- What was done, with the figures before and after: `sluice table status TABLE`.
- Clearing a task is always safe: maintenance changes the layout of a table, never its rows, and writers go first.

## What to do when it is red
The end of the task's log names the step that was not done and why. A step that yields to writers is tried again in
the next hour and turns the task red only when it yields then, too; a step that a reader or a late writer has blocked
for two days turns it red as well. Repair the cause and clear the task.
"""


def table_maintenance_dag(declarations: Declarations) -> DAG:
    """Build the DAG with a task for every table whose declaration asks for any maintenance, quarantines included."""
    return table_jobs_dag(
        DAG_ID,
        description="Keeps every table in order: small files, manifests, snapshots",
        document=_DOCUMENT,
        cron="17 * * * *",
        tables=[table for table in all_tables(declarations).values() if table.maintenance.is_any],
        request=lambda table: MaintainTable(table=table),
        retries=1,
        operator=MaintenanceOperator,
        due=_due_tables,
    )


def _due_tables(names: Sequence[str], run_id: str) -> Sequence[str]:
    """Those of the tables that need a task of their own; called when the DAG runs, not when it is parsed."""
    from sluice.declarations.load_declarations import load_declarations
    from sluice.maintenance.due_tables import due_tables
    from sluice_airflow.composition import load_deployment

    deployment = load_deployment()
    declarations = load_declarations(deployment.settings.pipelines)
    return due_tables(deployment.settings, declarations, names, launched_by=f"airflow: {DAG_ID}, {run_id}")
