"""Which tags and branches are too old to keep their snapshots."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

import pytest
from tests.unit.maintenance.test_maintenance_plan import NO_PINS, NOON, table

from sluice.declarations.maintenance_declaration import ExpiryDeclaration, MaintenanceDeclaration
from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.maintenance_plan import plan_maintenance
from sluice.maintenance.pin_plan import Hold, HoldReason, PinPlan
from sluice.maintenance.retention_plan import kept_references
from sluice.maintenance.step_decision import StepAction, StepDecision
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation, SnapshotObservation, TableObservation

AGES = (40, 30, 20, 1)
POLICY = ExpiryDeclaration(
    older_than=timedelta(minutes=10), retain_last=1, tags=timedelta(minutes=25), branches=timedelta(minutes=15)
)


def reference(name: str, snapshot_id: int, kind: ReferenceKind = ReferenceKind.TAG) -> ReferenceObservation:
    return ReferenceObservation(name=name, kind=kind, snapshot_id=snapshot_id)


AUDIT, FRESH, BRANCH = reference("audit", 1), reference("fresh", 3), reference("try", 2, ReferenceKind.BRANCH)


def expiry(
    seen: TableObservation,
    *,
    policy: ExpiryDeclaration = POLICY,
    pins: PinPlan = NO_PINS,
    named: Collection[str] | None = (),
) -> StepDecision:
    declared = MaintenanceDeclaration(compaction=None, manifest_rewrite=None, expiry=policy)
    plan = plan_maintenance(policy=declared, seen=seen, pins=pins, now=NOON, named_tags=named)
    return next(one for one in plan.steps if one.step is MaintenanceStep.EXPIRE_SNAPSHOTS)


def test_old_references_go_with_the_snapshots_that_they_kept() -> None:
    decision = expiry(table(ages=AGES, references=(AUDIT, FRESH, BRANCH)))
    assert decision.references == (AUDIT, BRANCH)
    assert decision.gain == 2, "the snapshot of the tag that is not old enough stays, and so does the newest"
    assert "2 of 4 snapshots" in decision.explanation
    assert decision.explanation.endswith(", without the tag audit, branch try")


def test_a_snapshot_that_only_an_old_tag_keeps_is_expired() -> None:
    seen = table(ages=(40, 1), references=(AUDIT,))
    assert expiry(seen, policy=ExpiryDeclaration(older_than=timedelta(minutes=10), retain_last=1)).action is (
        StepAction.SKIP
    )
    assert expiry(seen).references == (AUDIT,)


@pytest.mark.parametrize(
    "name", ["main", "sluice_pin__s__i__position", "sluice_before_refresh_1", "sluice_before_adoption_1", "named"]
)
def test_these_stay_however_old_they_are(name: str) -> None:
    kind = ReferenceKind.BRANCH if name == "main" else ReferenceKind.TAG
    seen = table(ages=AGES)
    others = [one for one in seen.references if one.name != name]
    held = replace(seen, references=(*others, reference(name, 1, kind)))
    assert expiry(held, named=["named"]).references == ()


def test_while_a_declaration_cannot_be_read_all_stay() -> None:
    decision = expiry(table(ages=AGES, references=(AUDIT,)), named=None)
    assert decision.references == ()
    assert decision.action is StepAction.RUN, "what no reference keeps is expired all the same"


def test_without_the_keys_all_stay() -> None:
    policy = ExpiryDeclaration(older_than=timedelta(minutes=10), retain_last=1)
    assert expiry(table(ages=AGES, references=(AUDIT, BRANCH)), policy=policy).references == ()


def test_one_kind_is_judged_without_the_other() -> None:
    seen = table(ages=AGES, references=(AUDIT, BRANCH))
    assert expiry(seen, policy=POLICY.model_copy(update={"tags": None})).references == (BRANCH,)
    assert expiry(seen, policy=POLICY.model_copy(update={"branches": None})).references == (AUDIT,)


def test_a_snapshot_of_a_branch_counts_by_its_own_age() -> None:
    seen = table(ages=AGES)
    aside = SnapshotObservation(
        snapshot_id=9, parent_id=1, committed_at=NOON - timedelta(minutes=14), operation="append"
    )
    branch = reference("try", 9, ReferenceKind.BRANCH)
    held = replace(seen, snapshots=(*seen.snapshots, aside), references=(*seen.references, branch))
    assert expiry(held).references == ()


def test_a_reader_of_unknown_position_keeps_the_references_too() -> None:
    hold = Hold(stream="s", input="i", reason=HoldReason.READER_UNKNOWN, explanation="unknown")
    decision = expiry(table(ages=AGES, references=(AUDIT,)), pins=replace(NO_PINS, holds=(hold,)))
    assert decision.action is StepAction.REFUSE
    assert decision.references == ()


def test_what_stays_because_of_streams_that_may_read_any_tag_is_named() -> None:
    seen = table(ages=AGES, references=(AUDIT, FRESH, BRANCH))
    (said,) = kept_references(POLICY, seen, unknown=("gone", "silver"), now=NOON)
    assert said.startswith("audit, try: old enough to go, but kept, because gone and silver may read any tag")
    assert list(kept_references(POLICY, seen, unknown=(), now=NOON)) == []
    assert list(kept_references(POLICY, table(ages=AGES, references=(FRESH,)), unknown=("gone",), now=NOON)) == []
