"""The platform's DAGs beside those of tables: they keep the ledger small, reconcile streams, check checkpoints, and
rehearse the copies of states.

Their tasks import `sluice_airflow.tasks` when they run, because this module is imported at every parse.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, CronTriggerTimetable, task
from airflow.sdk.exceptions import AirflowFailException

from sluice.checkpoints.checkpoint_copies import why_not_rehearsed
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.stream_declaration import SHORT_DAGS
from sluice.supervision.platform_dags import CHECKPOINTS_DAG, LEDGER_DAG, RECONCILER_DAG, REHEARSALS_DAG
from sluice.work.requests import RehearseCopy
from sluice_airflow.dag_builders.streams import SUPERVISES_WITHIN, SUPERVISION_POOL, URGENT
from sluice_airflow.dag_builders.table_jobs import choice_param, chosen
from sluice_airflow.operators import WorkOperator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.ledger.recorded_checks import CheckpointObservation

TIDY_TASK = "tidy"
LEFTOVERS_TASK = "leftovers"

_LEDGER_PAGE = """\
# ledger_upkeep
Keeps the ledger small. Batches older than `SLUICE_BATCHES_KEPT_DAYS` are forgotten: their sums stay, and so does the
newest batch of every generation, at whose offsets a rebuilt checkpoint starts. Runs that ended more than
`SLUICE_RUNS_KEPT_DAYS` ago go into the ledger's archive, all but the newest of each stream. Events older than
`SLUICE_EVENTS_KEPT_DAYS` are deleted. Logs of drivers older than `SLUICE_DRIVER_LOGS_KEPT_DAYS` are deleted on the host
where the task runs, but not that of a stream's newest run.

The task `leftovers` removes what streams left behind `SLUICE_LEFTOVERS_KEPT_DAYS` after nothing needs it any more: the
checkpoints of closed generations with their copies, and tables of refreshes and backfills that died. See
`sluice stream leftovers`; the same from the command line is `sluice stream clean`.

So are logs of Sluice's own tasks older than `SLUICE_AIRFLOW_LOGS_KEPT_DAYS`, but not those of streams.

Airflow's metadata database is not cleaned here, because tasks have no access to it. `sluice stack clean-airflow` does
it, on the host of the scheduler, for the DAGs of Sluice that end within minutes only; run it by cron. A plain
`airflow db clean` judges tasks by their beginning, and would delete the live task of a stream that runs for longer.

## How to operate it
- It runs every night. **Trigger** it to run now; the same from the command line: `sluice ledger tidy`, which has
  `--dry-run`.
- Clearing the task is always safe, also half-way: what is done is done, the rest is done again.

## What to do when it is red
Its log says which part is not done, and why: each part is done by itself, so the others are. Remove that cause (a
statement that took too long waits for a lock, or the server is busy; one that has no answer means that PostgreSQL is
down), then clear the task.
"""


def ledger_upkeep_dag() -> DAG:
    """Build the DAG with its two tasks, neither of which waits for the other."""
    with DAG(
        LEDGER_DAG,
        description="Keeps the ledger and the logs small",
        doc_md=_LEDGER_PAGE,
        schedule=CronTriggerTimetable("41 3 * * *", timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=False,
        tags=["platform"],
        default_args={"owner": "sluice"},
        auto_register=False,
    ) as dag:

        @task(task_id=TIDY_TASK, retries=2, retry_delay=timedelta(minutes=5))
        def tidy() -> None:
            """Forget, archive and delete what is older than it is kept."""
            from sluice_airflow.tasks.platform_tasks import tidy_ledger

            tidy_ledger(dags=SHORT_DAGS)

        @task(task_id=LEFTOVERS_TASK, retries=2, retry_delay=timedelta(minutes=5))
        def leftovers() -> None:
            """Remove checkpoints, copies and tables that nothing needs any more."""
            from sluice_airflow.tasks.platform_tasks import remove_leftovers

            remove_leftovers()

        tidy()
        leftovers()
    return dag


RECONCILE_TASK = "reconcile"

_RECONCILER_PAGE = """\
# stream_reconciler
Reconciles every continuous stream with its desired state, each minute, whatever its own DAG does.

- A stream whose DAG a person has **paused** stops after its batch, and continues when the DAG is unpaused. A DAG that
  Airflow paused itself, because its run failed or it is new, stops nothing.
- A stream whose **declaration was edited** is restarted between two batches with the new one. When its checkpoint
  cannot follow, the old driver continues; the log of this task and `sluice stream status` show the reason.
- A stream that becomes **stalled** (its sources have input and no batch is recorded) or **late** (beyond its `max_lag`)
  fails one run of this DAG, the first that finds it so; `sluice stream status` shows it as long as it stays so. It is
  restarted when its declaration says so.
- A driver that died or hangs while no trigger watched it (the triggerer was down) is replaced; a live one continues.

## What to do when it is red
The end of the task's log names each stream that could not be reconciled, or is stalled or late, and why. The others
were reconciled. When the ledger belongs to another Airflow, nothing is done; the log shows the command that gives it to
this one. Clearing is always safe. While this DAG is paused, pausing the DAG of a stream stops nothing.
"""


def stream_reconciler_dag() -> DAG:
    """Build the DAG with its one task. It reads the declarations when it runs, so new streams do not change the DAG."""
    with DAG(
        RECONCILER_DAG,
        description="Brings every continuous stream to its desired state",
        doc_md=_RECONCILER_PAGE,
        schedule=CronTriggerTimetable("* * * * *", timezone="UTC", run_immediately=True),
        catchup=False,
        max_active_runs=1,
        max_active_tasks=1,
        max_consecutive_failed_dag_runs=0,  # it fails each minute while a stream is unhealthy, and must continue
        is_paused_upon_creation=False,
        dagrun_timeout=timedelta(minutes=10),
        tags=["platform", "streams"],
        default_args={"owner": "sluice"},
        auto_register=False,
    ) as dag:

        @task(
            task_id=RECONCILE_TASK,
            retries=0,
            execution_timeout=SUPERVISES_WITHIN,
            depends_on_past=False,
            pool=SUPERVISION_POOL,
            priority_weight=URGENT,
            weight_rule="absolute",
        )
        def reconcile() -> None:
            """Reconcile every continuous stream, and fail when one could not be reconciled."""
            from sluice_airflow.tasks.platform_tasks import reconcile_streams

            reconcile_streams(launched_by=f"airflow: {RECONCILER_DAG}")

        reconcile()
    return dag


CHECK_TASK = "check"
STREAMS_CHOICE = "streams"

_CHECKPOINTS_PAGE = """\
# checkpoint_health
Looks at the checkpoint of every stream without Spark: whether it is the stream's own, whether its logs are readable and
without gaps, and how old its newest commit is. What Spark would notice at the next start, or never, is noticed here.

After that it looks whether the reconciler has made a pass in the last five minutes, and waits two minutes for one: no
other DAG reports that it is paused, or that its pool `supervision` does not exist or has no free slot.

## How to operate it
- It runs every ten minutes. **Trigger** it to check now, and choose the streams in the form; none chosen means all.
- The same from the command line: `sluice checkpoint check`.

## What to do when it is red
The end of the task's log names the stream and what is wrong. Leave the checkpoint as it is until you know what
happened: a driver that runs is not disturbed by this finding, a stopped stream should stay stopped. Checking only
reads, so clearing is always safe.
"""


def checkpoint_health_dag(declarations: Declarations) -> DAG:
    """Build the DAG with its one task, which checks all streams one after the other: each takes milliseconds."""
    streams = sorted(declarations.streams)
    with DAG(
        CHECKPOINTS_DAG,
        description="Checks the checkpoint of every stream",
        doc_md=_CHECKPOINTS_PAGE,
        schedule=CronTriggerTimetable("*/10 * * * *", timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        max_consecutive_failed_dag_runs=0,  # it watches the reconciler, and must continue while a checkpoint is damaged
        is_paused_upon_creation=False,
        tags=["platform", "streams"],
        default_args={"owner": "sluice"},
        params={STREAMS_CHOICE: choice_param(STREAMS_CHOICE, among=streams)},
        auto_register=False,
    ) as dag:

        @task(task_id=CHECK_TASK, retries=2, retry_delay=timedelta(seconds=30))
        def check(params: Mapping[str, Any] | None = None) -> None:
            """Check the chosen checkpoints, record what was found, and fail when one is not healthy."""
            from sluice_airflow.tasks.platform_tasks import require_reconciler

            wanted = list((params or {}).get(STREAMS_CHOICE) or [])
            try:
                check_streams(chosen(STREAMS_CHOICE, wanted=wanted, among=streams))
            finally:  # a damaged checkpoint hides no reconciler that is missing
                require_reconciler(by=f"airflow: {CHECKPOINTS_DAG}")

        check()
    return dag


def check_streams(streams: Sequence[str]) -> None:
    """Check the checkpoints of streams.

    Raises
    ------
    AirflowFailException: when one is not healthy; the message names each stream and what is wrong.
    """
    from sluice.declarations.load_declarations import load_declarations
    from sluice.positions.check_checkpoints import check_checkpoints
    from sluice_airflow.composition import load_deployment

    if not streams:  # to the check, none would mean all
        return
    deployment = load_deployment()
    declarations = load_declarations(deployment.settings.pipelines)
    with deployment.open_owned_ledger() as ledger:
        checks = check_checkpoints(ledger, declarations, deployment.settings, streams=streams)
    if unhealthy := [sentence for check in checks for sentence in problems_of(check)]:
        raise AirflowFailException(" ".join(unhealthy))


def problems_of(check: CheckpointObservation) -> list[str]:
    """The sentences for a person about one checkpoint; none when it is healthy."""
    place = f"Checkpoint of {check.stream}, generation {check.generation}"
    return [f"{place}: {problem.name}: {problem.message}." for problem in check.problems]


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
