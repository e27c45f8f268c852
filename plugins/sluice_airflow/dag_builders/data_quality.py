"""The DAG that checks committed tables against their declared expectations."""

from __future__ import annotations

from airflow.sdk import DAG

from sluice.declarations.load_declarations import Declarations
from sluice.work.requests import CheckTable
from sluice_airflow.dag_builders.table_jobs import table_jobs_dag

DAG_ID = "data_quality"

_DOCUMENT = """\
# data_quality
Checks the newest committed snapshot of every table that declares expectations (`quality:`), and writes a report that
says what was checked, when, and on which snapshot. One task for each table; they share one Spark application.

## How to operate it
- It runs every six hours. **Trigger** it to check now, and choose the tables in the form; none chosen means all.
- The newest results and where the reports lie: `sluice quality report`.

## What to do when it is red
The end of the task's log names the expectations that do not hold and the place of the report. Bad data is the business
of the table's owner: repair the source or the transformation. A check that could not be made is named as such: repair
its cause and clear the task. Checking only reads, so clearing is always safe.
"""


def data_quality_dag(declarations: Declarations) -> DAG:
    """Build the DAG with a task for every table that declares expectations."""
    return table_jobs_dag(
        DAG_ID,
        description="Checks every table against its declared expectations",
        document=_DOCUMENT,
        cron="47 */6 * * *",
        tables=[table.declaration for table in declarations.tables.values() if table.declaration.quality is not None],
        request=lambda table: CheckTable(table=table),
        retries=1,
    )
