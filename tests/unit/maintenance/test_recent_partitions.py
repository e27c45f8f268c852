"""Partitions that were written recently are left alone, and after a run nothing is planned again."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from pydantic import ByteSize
from tests.unit.maintenance.test_file_rewrite import DAYS, NAME, SMALL, Place, place
from tests.unit.maintenance.test_maintenance_plan import MIB, NO_PINS, NOON, decide, partition
from tests.unit.maintenance.test_maintenance_plan import table as seen_table

from sluice.declarations.maintenance_declaration import CompactionDeclaration, MaintenanceDeclaration
from sluice.ledger.maintenance_runs import MaintenanceStep, StepObservation, StepOutcome
from sluice.maintenance.file_rewrite import rewrite_small_files
from sluice.maintenance.maintained_tables import with_basis
from sluice.maintenance.maintenance_plan import MaintenancePlan, plan_maintenance
from sluice.maintenance.maintenance_records import maintenance_record
from sluice.maintenance.step_decision import StepAction, StepReason
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.tables.inspection import observe_table

__all__ = ["place"]

HOUR = timedelta(hours=1)
SPARES = MaintenanceDeclaration(
    compaction=CompactionDeclaration(leave_recent=HOUR, strategy="sort"),
    manifest_rewrite=None,
    expiry=None,
    orphan_removal=None,
)


def planned(place: Place, now: datetime) -> MaintenancePlan:
    """The plan of the table at a time."""
    seen = observe_table(place.table(), name=NAME, small_file_bytes=SMALL, now=now)
    return plan_maintenance(policy=SPARES, seen=seen, pins=NO_PINS, now=now)


def carried_out(place: Place, plan: MaintenancePlan) -> int:
    """Rewrite what is planned; how many files were replaced."""
    done = rewrite_small_files(
        PyIcebergCommitter(place.catalog),
        NAME,
        partitions=plan.steps[1].partitions,
        small_file_bytes=SMALL,
        compared_bytes=10**9,
        now=plan.seen.observed_at,
        identity="a1",
    )
    return int(done["rewritten_data_files_count"])


def test_a_recent_partition_is_left_until_it_rests_and_then_nothing_is_due(place: Place) -> None:
    place.append(100)  # the first day is written once more, after everything else
    day_1, day_2 = (one.written_at for one in planned(place, NOON).seen.partitions)
    assert day_1 is not None
    assert day_2 is not None
    assert day_2 < day_1
    assert planned(place, day_2 + HOUR - timedelta(milliseconds=1)).steps[1].reason is StepReason.RECENTLY_WRITTEN

    first = planned(place, day_2 + HOUR)
    assert first.steps[1].partitions == DAYS[1:]
    assert "1 more are left alone as recently written" in first.steps[1].explanation
    before = place.rows()
    assert carried_out(place, first) == 6
    assert planned(place, day_2 + HOUR).due == (), "right after a run nothing is due"

    later = planned(place, day_1 + HOUR)
    assert later.steps[1].partitions == DAYS[:1]
    assert carried_out(place, later) == 7
    assert planned(place, day_1 + HOUR).due == ()
    assert planned(place, day_1 + 100 * HOUR).due == (), "a rewrite is no write"
    assert place.rows() == before


def test_uneven_files_are_sorted_once(place: Place) -> None:
    for count in (1, 40, 3, 500):
        place.append(*range(1000, 1000 + count))
    written = max(one.written_at for one in planned(place, NOON).seen.partitions if one.written_at is not None)
    plan = planned(place, written + HOUR)
    assert carried_out(place, plan) == plan.seen.data_files
    assert planned(place, written + HOUR).due == ()
    place.append(2000, 2001)
    assert planned(place, written + 9 * HOUR).due == (), "two files are few"


def _basis(policy: MaintenanceDeclaration) -> str:
    hot = replace(partition(9), written_at=NOON - HOUR / 2)
    plan = plan_maintenance(policy=policy, seen=seen_table(hot), pins=NO_PINS, now=NOON)
    done = StepObservation(
        step=MaintenanceStep.REWRITE_DATA_FILES, outcome=StepOutcome.SKIPPED, reason="", explanation=""
    )
    run = maintenance_record(plan, plan.seen, [done], launched_by="a test", ended_at=NOON)
    return with_basis(run, plan, policy)[0].basis


def test_a_partition_that_is_left_alone_is_counted_again() -> None:
    """No commit makes it due, but time."""
    assert _basis(SPARES) == ""
    assert _basis(MaintenanceDeclaration(compaction=CompactionDeclaration(min_input_files=10))) != ""


@pytest.mark.parametrize(
    ("hot", "reason", "partitions"),
    [
        (9, StepReason.PARTITIONS_UNNAMED, ()),
        (2, StepReason.SMALL_FILES, ("day=2",)),
    ],
    ids=["spark would rewrite it, too", "spark leaves few files alone"],
)
def test_what_needs_spark_waits_for_recent_partitions(
    hot: int, reason: StepReason, partitions: tuple[str, ...]
) -> None:
    policy = SPARES.model_copy(
        update={"compaction": CompactionDeclaration(leave_recent=HOUR, target_file_bytes=ByteSize(64 * MIB))}
    )
    seen = replace(
        seen_table(replace(partition(hot), written_at=NOON), replace(partition(9, name="day=2"), written_at=None)),
        rewrite_limits=("a bloom filter",),
        has_earlier_spec=True,
    )
    decision = decide(MaintenanceStep.REWRITE_DATA_FILES, seen, policy=policy)
    assert (decision.reason, decision.partitions) == (reason, partitions)
    assert decision.action is (StepAction.RUN if partitions else StepAction.SKIP)
