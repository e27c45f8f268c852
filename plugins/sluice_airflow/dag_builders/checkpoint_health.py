"""The DAG that checks every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import DAG, CronTriggerTimetable, task
from airflow.sdk.exceptions import AirflowFailException

from sluice.declarations.load_declarations import Declarations
from sluice_airflow.dag_builders.choices import choice_param, chosen

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sluice.ledger.checkpoint_checks import CheckpointObservation

DAG_ID = "checkpoint_health"
CHECK_TASK = "check"
CHOICE = "streams"

_DOCUMENT = """\
# checkpoint_health
Looks at the checkpoint of every stream without Spark: whether it is the stream's own, whether its logs are readable and
without gaps, and how old its newest commit is. What Spark would notice at the next start, or never, is noticed here.

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
        DAG_ID,
        description="Checks the checkpoint of every stream",
        doc_md=_DOCUMENT,
        schedule=CronTriggerTimetable("*/10 * * * *", timezone="UTC"),
        catchup=False,
        max_active_runs=1,
        tags=["platform", "streams"],
        default_args={"owner": "sluice"},
        params={CHOICE: choice_param(CHOICE, among=streams)},
        auto_register=False,
    ) as dag:

        @task(task_id=CHECK_TASK, retries=2, retry_delay=timedelta(seconds=30))
        def check(params: Mapping[str, Any] | None = None) -> None:
            """Check the chosen checkpoints, record what was found, and fail when one is not healthy."""
            check_streams(chosen(CHOICE, wanted=list((params or {}).get(CHOICE) or []), among=streams))

        check()
    return dag


def check_streams(streams: Sequence[str]) -> None:
    """Check the checkpoints of streams.

    Raises
    ------
    AirflowFailException: when one is not healthy; the message names each stream and what is wrong.
    """
    from sluice.checkpoints.check_checkpoints import check_checkpoints
    from sluice.declarations.load_declarations import load_declarations
    from sluice_airflow.composition import load_deployment

    if not streams:  # to the check, none would mean all
        return
    deployment = load_deployment()
    declarations = load_declarations(deployment.settings.pipelines)
    with deployment.open_ledger() as ledger:
        checks = check_checkpoints(ledger, declarations, deployment.settings, streams=streams)
    if unhealthy := [sentence for check in checks for sentence in problems_of(check)]:
        raise AirflowFailException(" ".join(unhealthy))


def problems_of(check: CheckpointObservation) -> list[str]:
    """The sentences for a person about one checkpoint; none when it is healthy."""
    place = f"Checkpoint of {check.stream}, generation {check.generation}"
    return [f"{place}: {problem.name}: {problem.message}." for problem in check.problems]
