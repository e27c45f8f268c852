"""The DAG of a stream's backfills: each run computes one interval again and replaces it, beside the live stream."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG
from airflow.sdk.api.datamodels._generated import DagRunType

from sluice.declarations.load_declarations import LoadedStream
from sluice.work.requests import ReplaceInterval
from sluice_airflow.dag_builders.assets import table_assets
from sluice_airflow.dag_builders.documents import backfill_document
from sluice_airflow.operators.backfill_operator import BackfillOperator
from sluice_airflow.timetables.backfill_timetable import BackfillTimetable

BACKFILL_SUFFIX = "__backfill"
"""After a stream's name, the id of the DAG of its backfills; no stream has `__` in its name."""

BACKFILL_TASK = "replace_interval"
"""The one task of that DAG."""

ALL_BUT_BACKFILLS = frozenset(DagRunType) - {DagRunType.BACKFILL}
"""The types of runs that the own DAG of a stream takes: its page names the DAG for backfills."""

_BOUNDARY = "{{{{ {0}.isoformat() if {0} is defined else '' }}}}"
"""A boundary of the run's interval, in the template of its task; a run that was triggered by hand has none."""

_RETRIES = 2

_BEHIND_INCREMENTS = 5
"""The priority in the pool of Spark jobs: new data come first, compactions last."""


def backfill_dag(loaded: LoadedStream) -> DAG:
    """Build the DAG of a stream's backfills. It appears unpaused: no run of it starts by itself."""
    declaration, backfill = loaded.declaration, loaded.declaration.backfill
    if backfill is None:
        raise ValueError(f"{loaded.file}: {declaration.stream} declares no backfill")
    with DAG(
        f"{declaration.stream}{BACKFILL_SUFFIX}",
        description=f"Computes intervals of {declaration.stream} again",
        doc_md=backfill_document(loaded, backfill),
        schedule=BackfillTimetable(backfill.interval),
        catchup=False,
        is_paused_upon_creation=False,
        # Airflow wants SCHEDULED for every DAG with a timetable; this timetable yields no such run. Without MANUAL the
        # UI disables the button whose dialog has the form for backfills; the task refuses such a run.
        allowed_run_types={DagRunType.SCHEDULED, DagRunType.MANUAL, DagRunType.BACKFILL},
        max_active_runs=backfill.at_once,
        tags=[*declaration.tags, "backfill"],
        default_args={"owner": declaration.owner},
        auto_register=False,
    ) as dag:
        BackfillOperator(
            task_id=BACKFILL_TASK,
            request=ReplaceInterval(
                stream=declaration.stream,
                start=_BOUNDARY.format("data_interval_start"),
                end=_BOUNDARY.format("data_interval_end"),
            ),
            priority_weight=_BEHIND_INCREMENTS,
            retries=_RETRIES,
            retry_delay=timedelta(seconds=30),
            inlets=table_assets(declaration.tables_read),
        )
    return dag
