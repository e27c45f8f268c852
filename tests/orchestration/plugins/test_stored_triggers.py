"""What Airflow's database holds for deferred tasks and watched assets can be read by every later version."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from airflow.jobs.triggerer_job_runner import TriggerRunner
from airflow.triggers.base import BaseTrigger

from sluice_airflow.dag_builders.increments import IncrementOperator
from sluice_airflow.dag_builders.streams import StreamOperator
from sluice_airflow.operators import WorkOperator

STORED: list[tuple[str, dict[str, Any]]] = [
    (
        "sluice_airflow.triggers.stream_trigger.StreamTrigger",
        {"stream": "flights", "run_id": "r", "patience_seconds": 30.0, "poll_seconds": 2.0, "version": 1},
    ),
    (
        "sluice_airflow.triggers.desired_state_trigger.DesiredStateTrigger",
        {
            "stream": "flights",
            "known_change_at": "2026-01-01T00:00:00+00:00",
            "due_seconds": 5.0,
            "poll_seconds": 2.0,
            "version": 1,
        },
    ),
    (
        "sluice_airflow.triggers.desired_state_trigger.DesiredStateTrigger",
        {"stream": "flights", "known_change_at": None, "due_seconds": None, "poll_seconds": 2.0, "version": 1},
    ),
    (
        "sluice_airflow.triggers.work_trigger.WorkTrigger",
        {
            "stream": "flights",
            "item": "4f5c1c2e-6b5b-4f4e-8d5c-0a1b2c3d4e5f",
            "results_of": "airflow: flights__backfill, a run",
            "ends_task": True,
            "poll_seconds": 1.0,
            "version": 1,
        },
    ),
    (
        "sluice_airflow.triggers.publication_trigger.PublicationTrigger",
        {"table": "silver.flights", "poll_seconds": 10.0, "version": 1},
    ),
]
"""Class paths and arguments as version 0.2.0 writes them. They change only together with a migration of the rows."""


def _made_again(path: str, arguments: dict[str, Any]) -> BaseTrigger:
    """The trigger as Airflow's triggerer makes it from its database."""
    runner = TriggerRunner()  # type: ignore[no-untyped-call]  # Airflow does not annotate it
    return runner.get_trigger_by_classpath(path)(**arguments)


@pytest.mark.parametrize(("path", "arguments"), STORED)
def test_a_stored_trigger_is_made_again_as_it_was(path: str, arguments: dict[str, Any]) -> None:
    trigger = _made_again(path, arguments)
    assert trigger.serialize() == (path, arguments)


def test_the_method_that_a_deferred_task_resumes_with_keeps_its_name() -> None:
    assert callable(StreamOperator.look_again)
    for operator in (WorkOperator, IncrementOperator):
        inspect.signature(operator.look_again).bind(operator, {}, event={"seen": "done"}, item="4f5c1c2e")
