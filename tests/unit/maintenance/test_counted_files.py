"""The counts of an earlier look are taken only where they must be the same."""

from __future__ import annotations

from dataclasses import replace

import pytest
from pydantic import ByteSize
from tests.unit.maintenance.test_maintenance_plan import NO_PINS, NOON, POLICY, partition, table

from sluice.declarations.maintenance_declaration import CompactionDeclaration, MaintenanceDeclaration
from sluice.ledger.maintenance_runs import MaintenanceObservation, MaintenanceStep, StepObservation, StepOutcome
from sluice.maintenance import maintained_tables as module
from sluice.maintenance.maintained_tables import basis_of, counted_files, with_basis
from sluice.maintenance.maintenance_plan import MaintenancePlan, plan_maintenance
from sluice.maintenance.maintenance_records import maintenance_record
from sluice.tables.table_observation import TableObservation

SEEN = replace(table(partition(3, large_files=1)), table_uuid="u", file_sizes=(0, 3, 0, 0, 0, 1, 0))
BASIS = basis_of(POLICY, table_uuid="u", snapshot_id=SEEN.snapshot_id)


def planned(seen: TableObservation) -> MaintenancePlan:
    """The plan of a table at noon."""
    return plan_maintenance(policy=POLICY, seen=seen, pins=NO_PINS, now=NOON)


def recorded(
    seen: TableObservation, after: TableObservation | None = None, *, outcome: StepOutcome = StepOutcome.SKIPPED
) -> MaintenanceObservation:
    """The record of a run that changed nothing."""
    plan = planned(seen)
    ended = [
        StepObservation(step=one.step, outcome=outcome, reason=one.reason, explanation=one.explanation)
        for one in plan.steps
    ]
    run = maintenance_record(plan, after or seen, ended, launched_by="a test", ended_at=NOON)
    return replace(run, operations=with_basis(run, plan, POLICY))


def test_by_the_counts_of_an_earlier_look_the_same_is_decided() -> None:
    counted = counted_files(recorded(SEEN), basis=BASIS)

    assert counted is not None
    again = replace(SEEN, partitions=(), rows=counted.rows, manifests=counted.manifests, counted=counted)
    assert planned(again).steps == planned(SEEN).steps
    assert (again.data_files, again.data_bytes, again.small_files) == (
        SEEN.data_files,
        SEEN.data_bytes,
        SEEN.small_files,
    )
    assert recorded(again) == recorded(SEEN), "so that the look after it can take them, too"


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"table_uuid": "of another table"}, id="another table of the name"),
        pytest.param({"snapshot_id": 2}, id="another snapshot"),
        pytest.param({"policy": POLICY.model_copy(update={"compaction": None})}, id="no policy"),
        pytest.param(
            {"policy": MaintenanceDeclaration(compaction=CompactionDeclaration(target_file_bytes=ByteSize(2**25)))},
            id="another size",
        ),
    ],
)
def test_what_decides_otherwise_takes_no_counts(other: dict[str, object]) -> None:
    given = {"policy": POLICY, "table_uuid": "u", "snapshot_id": SEEN.snapshot_id, **other}
    policy = given.pop("policy")
    assert counted_files(recorded(SEEN), basis=basis_of(policy, **given)) is None  # type: ignore[arg-type]


def test_another_version_counts_again(monkeypatch: pytest.MonkeyPatch) -> None:
    earlier = recorded(SEEN)
    module._version.cache_clear()
    monkeypatch.setattr(module, "version", lambda _: "9.9.9")
    assert counted_files(earlier, basis=basis_of(POLICY, table_uuid="u", snapshot_id=SEEN.snapshot_id)) is None
    monkeypatch.undo()
    module._version.cache_clear()


@pytest.mark.parametrize(
    ("seen", "after"),
    [
        pytest.param(replace(SEEN, partitions=(partition(5),)), None, id="files to rewrite"),
        pytest.param(SEEN, replace(SEEN, snapshot_id=2), id="a commit during the run"),
        pytest.param(replace(table(ages=()), table_uuid="u"), None, id="no snapshot"),
    ],
)
def test_what_cannot_be_taken_has_no_basis(seen: TableObservation, after: TableObservation | None) -> None:
    run = recorded(seen, after)
    assert {one.basis for one in run.operations} == {""}
    assert [one.step for one in run.operations] == list(MaintenanceStep)
    assert counted_files(None, basis="") is None


def test_what_spark_has_tried_in_a_snapshot_is_not_tried_again() -> None:
    """A compaction for which Spark finds no file to rewrite would be due at every look."""
    due = replace(SEEN, partitions=(replace(partition(1, large_files=1), rows=10, deleted_rows=9),))
    assert planned(due).needs_spark

    assert counted_files(recorded(due, outcome=StepOutcome.DONE), basis=BASIS) is not None
    assert counted_files(recorded(due, outcome=StepOutcome.YIELDED), basis=BASIS) is None
    small = replace(SEEN, partitions=(partition(5),))
    assert counted_files(recorded(small, outcome=StepOutcome.DONE), basis=BASIS) is None, "without Spark"
    plan = planned(due)
    rewrite = MaintenanceStep.REWRITE_DATA_FILES
    later = replace(plan, steps=tuple(replace(one, left=1) if one.step is rewrite else one for one in plan.steps))
    run = recorded(due, outcome=StepOutcome.DONE)
    bare = replace(run, operations=tuple(replace(one, basis="") for one in run.operations))
    assert {one.basis for one in with_basis(bare, plan, POLICY) if one.step is rewrite} != {""}
    assert {one.basis for one in with_basis(bare, later, POLICY)} == {""}, "time makes due what was left"
