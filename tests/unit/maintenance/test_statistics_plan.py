"""When the statistics of a table are computed again, and what becomes of a store that refuses them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.fakes.table_procedures import FakeProcedures
from tests.unit.maintenance.test_maintenance_plan import NO_PINS, NOON, table

from sluice.declarations.maintenance_declaration import MaintenanceDeclaration, MaintenanceWindow, StatisticsDeclaration
from sluice.ledger.maintenance_runs import MaintenanceStep, StepObservation, StepOutcome
from sluice.maintenance.maintenance_plan import plan_maintenance
from sluice.maintenance.statistics_plan import NewRefusalsError, compute_statistics, decide_statistics
from sluice.maintenance.step_decision import StepAction, StepDecision
from sluice.tables.table_observation import StatisticsKind, StatisticsObservation, TableObservation

POLICY = StatisticsDeclaration(columns=("id",), older_than=timedelta(minutes=15))
COLUMNS, PARTITIONS = StatisticsKind.COLUMNS, StatisticsKind.PARTITIONS


def of(kind: StatisticsKind, snapshot_id: int, *columns: str) -> StatisticsObservation:
    """A statistics file."""
    return StatisticsObservation(kind=kind, snapshot_id=snapshot_id, columns=columns)


def seen(*statistics: StatisticsObservation, is_partitioned: bool = True, location: str = "s3://a") -> TableObservation:
    """A table with snapshots 1, 2 and 3, which are 30, 20 and 1 minutes old."""
    known = ("id", "other")
    return replace(table(), statistics=statistics, is_partitioned=is_partitioned, location=location, columns=known)


def decide(
    found: TableObservation,
    *,
    policy: StatisticsDeclaration | None = POLICY,
    tried: StepObservation | None = None,
) -> StepDecision:
    """The decision at noon."""
    return decide_statistics(policy, found, NOON, tried=tried)


CURRENT = (of(COLUMNS, 3, "id"), of(PARTITIONS, 3))


@pytest.mark.parametrize(
    ("statistics", "kinds"),
    [
        (CURRENT, []),
        ((), [COLUMNS, PARTITIONS]),
        ((of(COLUMNS, 3, "id"),), [PARTITIONS]),
        ((of(COLUMNS, 2, "id"), of(PARTITIONS, 3)), []),
        ((of(COLUMNS, 1, "id"), of(PARTITIONS, 3)), [COLUMNS]),
        ((of(COLUMNS, 1, "id"), of(COLUMNS, 3, "id"), of(PARTITIONS, 3)), []),
        ((of(COLUMNS, 3, "other"), of(PARTITIONS, 3)), [COLUMNS]),
        ((of(COLUMNS, 99, "id"), of(PARTITIONS, 3)), [COLUMNS]),
        ((of(COLUMNS, 3, "id"), of(PARTITIONS, 1)), [PARTITIONS]),
    ],
    ids=[
        "of the newest snapshot",
        "none",
        "none of partitions",
        "the table has changed a minute ago",
        "the table has changed 20 minutes ago",
        "the newest ones count",
        "a declared column is missing",
        "of a snapshot that is not on main",
        "those of partitions are outdated",
    ],
)
def test_statistics_are_computed_once_the_table_has_changed_for_so_long(
    statistics: Sequence[StatisticsObservation], kinds: Sequence[StatisticsKind]
) -> None:
    decision = decide(seen(*statistics))

    assert decision.action is (StepAction.RUN if kinds else StepAction.SKIP)
    assert decision.options.get("kinds", []) == kinds
    assert decision.is_for_spark is bool(kinds)


def test_the_time_counts_from_the_change_and_not_from_the_snapshot_of_the_statistics() -> None:
    """Snapshot 2 is 20 minutes old, and was replaced a minute ago: until then its statistics were true."""
    statistics = (of(COLUMNS, 2, "id"), of(PARTITIONS, 2))
    late = StatisticsDeclaration(columns=("id",), older_than=timedelta(minutes=1))

    assert decide(seen(*statistics)).action is StepAction.SKIP
    assert decide(seen(*statistics), policy=late).action is StepAction.RUN
    assert "outdated since 2026-11-20 11:59 UTC" in decide(seen(*statistics)).explanation


@pytest.mark.parametrize(
    ("policy", "found", "reason"),
    [
        (None, seen(), "not_declared"),
        (POLICY, table(ages=()), "no_snapshot"),
        (StatisticsDeclaration(columns=()), seen(is_partitioned=False), "statistics_current"),
        (POLICY, seen(*CURRENT), "statistics_current"),
    ],
)
def test_nothing_is_computed_where_nothing_is_declared_or_there(
    policy: StatisticsDeclaration | None, found: TableObservation, reason: str
) -> None:
    decision = decide(found, policy=policy)

    assert (decision.action, decision.reason) == (StepAction.SKIP, reason)
    assert decision.explanation


def test_a_column_that_the_newest_snapshot_does_not_have_yet_waits_for_the_next_one() -> None:
    policy = StatisticsDeclaration(columns=("id", "added"))

    assert decide(seen(*CURRENT), policy=policy).action is StepAction.SKIP
    assert decide(seen(), policy=policy).options["columns"] == ["id"]
    assert decide(seen(), policy=StatisticsDeclaration(columns=("added",))).options["kinds"] == [PARTITIONS]


def test_a_table_without_partitions_has_statistics_of_columns_alone() -> None:
    assert decide(seen(is_partitioned=False)).options["kinds"] == [COLUMNS]
    assert decide(seen(), policy=StatisticsDeclaration(columns=())).options["kinds"] == [PARTITIONS]
    assert decide(seen(), policy=StatisticsDeclaration()).options["columns"] is None


def refused(decision: StepDecision, *kinds: StatisticsKind) -> tuple[NewRefusalsError, StepObservation]:
    """What the step ends with where the store refuses some statistics, and what the ledger has of it."""
    with pytest.raises(NewRefusalsError) as found:
        compute_statistics(FakeProcedures(refused_statistics=kinds), decision)
    return found.value, observed(decision, StepOutcome.REFUSED, found.value.result)


def observed(decision: StepDecision, outcome: StepOutcome, result: Mapping[str, Any]) -> StepObservation:
    """The step as the ledger has it."""
    return StepObservation(step=decision.step, outcome=outcome, reason="r", explanation="e", result=result)


def test_what_the_store_refuses_is_said_once_and_not_tried_again() -> None:
    error, tried = refused(decide(seen()), COLUMNS, PARTITIONS)

    assert "the store takes no statistics of columns: 403, access denied;" in str(error)
    again = decide(seen(), tried=tried)
    assert (again.action, again.reason) == (StepAction.SKIP, "store_refuses")
    assert "403, access denied" in again.explanation


def test_what_the_store_takes_is_computed_beside_what_it_refuses_and_later_too() -> None:
    error, tried = refused(decide(seen()), COLUMNS)

    assert error.result["partitions"] == "partitions.stats"
    later = decide(seen(of(PARTITIONS, 1)), tried=tried)
    assert later.options["kinds"] == [PARTITIONS]
    result = compute_statistics(FakeProcedures(), later)
    assert result["partitions"] == "partitions.stats"
    much_later = decide(seen(of(PARTITIONS, 1)), tried=observed(later, StepOutcome.DONE, result))
    assert much_later.options["kinds"] == [PARTITIONS], "the refusal is remembered by every later step"


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        (POLICY, seen(location="s3://b")),
        (StatisticsDeclaration(columns=("id", "other")), seen()),
        (StatisticsDeclaration(), seen()),
    ],
    ids=["another folder", "other columns", "every column"],
)
def test_a_refusal_counts_for_the_same_folder_and_columns_alone(
    policy: StatisticsDeclaration, found: TableObservation
) -> None:
    _, tried = refused(decide(seen()), COLUMNS, PARTITIONS)

    assert decide(found, policy=policy, tried=tried).options["kinds"] == [COLUMNS, PARTITIONS]


def test_statistics_are_the_last_step_and_wait_for_the_window() -> None:
    policy = MaintenanceDeclaration(statistics=POLICY, expiry=None)
    late = policy.model_copy(update={"window": MaintenanceWindow(start="20:00", end="21:00")})

    planned = plan_maintenance(policy=policy, seen=seen(), pins=NO_PINS, now=NOON)
    assert planned.steps[-1].step is MaintenanceStep.COMPUTE_STATISTICS
    assert planned.needs_spark
    assert not plan_maintenance(policy=late, seen=seen(), pins=NO_PINS, now=NOON).has_work
