"""The DAG that puts the copies of states back on trial, one task for each stream that is copied while it runs."""

from __future__ import annotations

from datetime import timedelta

from airflow.sdk import DAG, CronTriggerTimetable

from sluice.checkpoints.checkpoint_copies import why_not_rehearsed
from sluice.declarations.loaded_declarations import Declarations
from sluice.supervision.platform_dags import REHEARSALS_DAG
from sluice.work.requests import RehearseCopy
from sluice_airflow.operators.work_operator import WorkOperator

_PAGE = """\
# copy_rehearsals
Puts the newest copy of the state of every stream that declares `state.backup_every` into a folder of its own, runs the
batch at which it stands again, and compares the state with what the ledger knows. Nothing is published, and the stream
continues beside it. Streams of which no batch can be run again (files that are put away, static inputs) have no task.

What a copy is worth shows here and not on the day on which the checkpoint is lost: `sluice stream show NAME` says when
it was rehearsed, and how long that took.

## How to operate it
- It runs every Sunday night. The same from the command line, for every stream with copies: `sluice checkpoint rehearse
  NAME`.

## What to do when it is red
The end of the task's log says why the copy does not do: a file of it is damaged, the source has lost what the batch
has read, or the code leads to another state than it did. `sluice stream restart NAME` makes a new copy; clear the task
to rehearse that. A task of a stream without a copy yet is red, too: nothing could be put back.
"""


def copy_rehearsals_dag(declarations: Declarations) -> DAG:
    """Build the DAG with a task for every stream that is copied while it runs."""
    with DAG(
        REHEARSALS_DAG,
        description="Puts the copies of states back on trial",
        doc_md=_PAGE,
        schedule=CronTriggerTimetable("11 2 * * 0", timezone="UTC", run_immediately=timedelta(seconds=1)),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=["platform", "streams"],
        default_args={"owner": "sluice"},
        auto_register=False,
    ) as dag:
        for name, stream in sorted(declarations.streams.items()):
            if stream.declaration.state.backup_every is not None and not why_not_rehearsed(stream.declaration):
                WorkOperator(
                    task_id=name,
                    request=RehearseCopy(stream=name),
                    owner=stream.declaration.owner,
                    retries=1,
                    retry_delay=timedelta(minutes=1),
                )
    return dag
