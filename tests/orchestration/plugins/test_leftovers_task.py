"""The task of `ledger_upkeep` that removes what streams left behind, as Airflow calls it."""

from __future__ import annotations

from typing import Any

from tests.fixtures.left_behind import age, contents, reset
from tests.orchestration.plugins.test_maintenance_task import Place, place

from sluice.ledger.events import EventSubject, recent_events
from sluice_airflow.dag_builders.platform_dags import LEFTOVERS_TASK, ledger_upkeep_dag

__all__ = ["place"]


def test_the_nightly_task_removes_what_is_due_and_leaves_what_is_not(place: Place) -> None:
    settings = place.deployment.settings
    for stream, days in (("old", 40), ("young", 20)):
        reset(place.ledger, stream, settings)
        age(place.ledger, stream, days=days)

    task: Any = ledger_upkeep_dag().get_task(LEFTOVERS_TASK)
    task.python_callable()

    assert dict(contents("old", settings)) == {"1": 0, "copies of 1": 0, "2": 4, "copies of 2": 2}
    assert dict(contents("young", settings)) == {"1": 4, "copies of 1": 2, "2": 4, "copies of 2": 2}
    newest = recent_events(place.ledger, EventSubject.STREAM, "old", limit=1)[0]
    assert (newest.action, newest.actor.name) == ("remove_leftover", "airflow: ledger_upkeep")
