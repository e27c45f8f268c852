"""Airflow's triggerer: what waits for deferred tasks, the continuous streams among them."""

from __future__ import annotations

from datetime import datetime

from sluice.stack.airflow_process import RECOVERY_SECONDS, airflow_command, probe_job
from sluice.stack.stack_plan import Command, Health, Service, StackPlan


def _command(plan: StackPlan) -> Command:
    # The api-server reads the logs of triggers from the disk, so nobody needs to serve them.
    return airflow_command(plan, "triggerer", "--skip-serve-logs")


def _probe(plan: StackPlan, since: datetime) -> Health:
    return probe_job(plan, "TriggererJob", since)


STEPS = (
    Service(
        name="airflow-triggerer",
        title="Airflow triggerer",
        needs=("airflow-schema",),
        command=_command,
        probe=_probe,
        start_seconds=240,
        recovery_seconds=RECOVERY_SECONDS,
    ),
)
