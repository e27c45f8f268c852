"""Airflow's dag-processor: what parses the DAG files."""

from __future__ import annotations

from datetime import datetime

from sluice.stack.airflow_process import RECOVERY_SECONDS, airflow_command, probe_job
from sluice.stack.stack_plan import Command, Health, Service, StackPlan


def _command(plan: StackPlan) -> Command:
    return airflow_command(plan, "dag-processor")


def _probe(plan: StackPlan, since: datetime) -> Health:
    return probe_job(plan, "DagProcessorJob", since)


STEPS = (
    Service(
        name="airflow-dag-processor",
        title="Airflow DAG processor",
        needs=("airflow-schema",),
        command=_command,
        probe=_probe,
        start_seconds=240,
        recovery_seconds=RECOVERY_SECONDS,
    ),
)
