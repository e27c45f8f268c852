"""The DAG that compares the newest intervals of tables with what their sources give."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable, Param

from sluice.declarations.load_declarations import Declarations
from sluice.work.requests import FindGaps
from sluice_airflow.dag_builders.assets import table_assets
from sluice_airflow.operators.gap_operator import GapOperator

DAG_ID = "backfill_gaps"

DAYS = "days"
"""The parameter that says how far back a run looks."""

_DEFAULT_DAYS = 8
"""A week and the day that is not over, so that every interval is looked at seven times."""

_START = f"{{{{ (dag_run.run_after - macros.timedelta(days=params.{DAYS})).isoformat() }}}}"

_BEHIND_BACKFILLS = 3
"""The priority in the pool of Spark jobs."""

_DOCUMENT = """\
# backfill_gaps
Computes the result of the sources again for the newest closed intervals of every stream that declares `backfill`, and
compares it with the table. It writes nothing. One task for each stream; they share Spark applications.

## How to operate it
- It runs every night. **Trigger** it to look further back: the form asks for the number of days.
- A task is skipped while its stream has published nothing yet: there is nothing to compare.
- The same from the command line, for one stream: `sluice stream gaps NAME`.

## What to do when it is red
The end of the task's log names the intervals that are missing, different or too many. `sluice backfill NAME --gaps`
replaces just those, or a backfill of the DAG `NAME__backfill` (button *Trigger*, choice *Backfill*). Late rows that the
stream has dropped are a difference too, because a backfill brings them in.
"""


def backfill_gaps_dag(declarations: Declarations) -> DAG:
    """Build the DAG with a task for every stream that declares a backfill."""
    with DAG(
        DAG_ID,
        description="Compares the newest intervals of tables with what their sources give",
        doc_md=_DOCUMENT,
        schedule=CronTriggerTimetable("23 3 * * *", timezone="UTC", run_immediately=timedelta(seconds=1)),
        catchup=False,
        max_active_runs=1,
        tags=["platform", "backfill"],
        default_args={"owner": "sluice"},
        params={DAYS: Param(_DEFAULT_DAYS, type="integer", minimum=1, title="Days to look back")},
        auto_register=False,
    ) as dag:
        for name, stream in sorted(declarations.streams.items()):
            if stream.declaration.backfill is not None:
                GapOperator(
                    task_id=name,
                    request=FindGaps(stream=name, start=_START, end="", fails="yes"),
                    owner=stream.declaration.owner,
                    priority_weight=_BEHIND_BACKFILLS,
                    retries=1,
                    retry_delay=timedelta(minutes=1),
                    inlets=table_assets(stream.declaration.tables_written),
                )
    return dag
