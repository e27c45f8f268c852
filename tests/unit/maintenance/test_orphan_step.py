"""When a table is searched for what dead writers left behind, and what becomes of that step."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, NoReturn

import pytest
from pyiceberg.table import Table
from tests.unit.maintenance.test_maintenance_plan import NO_PINS, NOON, table
from tests.unit.maintenance.test_maintenance_steps import NAME
from tests.unit.maintenance.test_maintenance_steps import table as stored_table

from sluice.declarations.maintenance_declaration import MaintenanceDeclaration, OrphanRemovalDeclaration
from sluice.errors import LakehouseError, UnpublishableError
from sluice.ledger.maintenance_runs import MaintenanceStep, StepObservation, StepOutcome
from sluice.maintenance.maintenance_plan import MaintenancePlan, plan_maintenance
from sluice.maintenance.maintenance_steps import TableMaintainer
from sluice.maintenance.step_decision import StepAction, StepDecision, StepReason

__all__ = ["stored_table"]

DAY = timedelta(days=1)
OLD, YOUNG = (60 * 24 * 5, 1), (60 * 24 * 2, 1)
"""Ages of snapshots in minutes."""


def decided(ages: tuple[int, ...], looked_at: datetime | None, policy: Any = None) -> StepDecision:
    """The decision at noon."""
    declared = MaintenanceDeclaration.model_validate(policy or {"orphan_removal": {}})
    plan = plan_maintenance(policy=declared, seen=table(ages=ages), pins=NO_PINS, now=NOON, looked_at=looked_at)
    return next(one for one in plan.steps if one.step is MaintenanceStep.REMOVE_ORPHANS)


@pytest.mark.parametrize(
    ("ages", "looked_at", "action", "reason"),
    [
        (OLD, None, StepAction.RUN, StepReason.ORPHANS_UNKNOWN),
        (YOUNG, None, StepAction.SKIP, StepReason.YOUNG_TABLE),
        ((), None, StepAction.SKIP, StepReason.NO_SNAPSHOT),
        (OLD, NOON - 6 * DAY, StepAction.SKIP, StepReason.LOOKED_RECENTLY),
        (YOUNG, NOON - 7 * DAY, StepAction.RUN, StepReason.ORPHANS_UNKNOWN),
    ],
)
def test_a_table_is_searched_by_the_age_of_the_last_look(
    ages: tuple[int, ...], looked_at: datetime | None, action: StepAction, reason: StepReason
) -> None:
    decision = decided(ages, looked_at)
    assert (decision.step, decision.action, decision.reason) == (MaintenanceStep.REMOVE_ORPHANS, action, reason)
    assert not decision.is_for_spark


def test_the_policy_says_how_old_and_how_often() -> None:
    assert decided(OLD, NOON - 2 * DAY, {"orphan_removal": {"every": "2 days"}}).action is StepAction.RUN
    assert decided(OLD, None, {"orphan_removal": {"older_than": "6 days"}}).reason is StepReason.YOUNG_TABLE
    assert decided(OLD, None, {"orphan_removal": None}).reason is StepReason.NOT_DECLARED
    assert OrphanRemovalDeclaration().older_than == 3 * DAY


def carried_out(stored: Table, remove_orphans: Any) -> StepObservation:
    """The step, carried out alone."""
    seen = table(ages=OLD)
    plan = MaintenancePlan(seen=seen, pins=NO_PINS, steps=(decided(OLD, None),), content_check_bytes=1)
    maintainer = TableMaintainer(
        name=NAME,
        table=stored,
        procedures=None,
        before_step=lambda _: None,
        identity="a",
        remove_orphans=remove_orphans,
    )
    return maintainer.carry_out(plan)[0]


def test_the_step_is_carried_out_without_an_engine(stored_table: Table) -> None:
    def moved() -> Mapping[str, Any]:
        return {"files": 3}

    done = carried_out(stored_table, moved)
    assert (done.outcome, done.result) == (StepOutcome.DONE, {"files": 3})


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(UnpublishableError("a table refers to it"), StepOutcome.REFUSED), (LakehouseError("gone"), StepOutcome.FAILED)],
)
def test_a_refused_removal_is_for_a_person_to_see(stored_table: Table, error: Exception, outcome: StepOutcome) -> None:
    def refused() -> NoReturn:
        raise error

    done = carried_out(stored_table, refused)
    assert (done.outcome, done.explanation) == (outcome, str(error))
    assert (done.reason == "orphans_needed") is (outcome is StepOutcome.REFUSED)
