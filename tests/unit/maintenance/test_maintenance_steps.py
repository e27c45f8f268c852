"""The due steps of a plan, carried out with procedures that answer as an engine does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from tests.fakes.table_procedures import FakeProcedures

from sluice.errors import LakehouseError, SluiceError, UncertainError, UnpublishableError
from sluice.ledger.maintenance_runs import MaintenanceStep, StepObservation, StepOutcome
from sluice.maintenance import maintenance_steps
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.maintenance_steps import TableMaintainer, unbroken
from sluice.maintenance.pin_plan import Pin, PinKind, PinPlan
from sluice.maintenance.step_decision import RewriteCall, StepAction, StepDecision, StepReason
from sluice.tables.inspection import observe_table
from sluice.tables.table_observation import ReferenceKind, ReferenceObservation, StatisticsKind

NOW = datetime(2026, 11, 26, tzinfo=UTC)
NAME = "silver.flights"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A table with two snapshots."""
    catalog = SqlCatalog("steps", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri())
    catalog.create_namespace("silver")
    rows = pa.table({"id": pa.array([1], pa.int64())})
    table = catalog.create_table(NAME, schema=rows.schema)
    table.append(rows)
    table.append(rows)
    return table


def due(step: MaintenanceStep, **options: Any) -> StepDecision:
    """A step that is due."""
    reason = StepReason.SMALL_FILES
    return StepDecision(
        step=step, action=StepAction.RUN, reason=reason, explanation="it is due", options=options, is_for_spark=True
    )


REWRITE = due(MaintenanceStep.REWRITE_DATA_FILES, **{"min-input-files": "5"})
HIDING = replace(due(MaintenanceStep.REWRITE_DATA_FILES), reason=StepReason.DELETED_ROWS)
MANIFESTS = due(MaintenanceStep.REWRITE_MANIFESTS)
PINS = due(MaintenanceStep.PIN_SNAPSHOTS)
EXPIRY = due(MaintenanceStep.EXPIRE_SNAPSHOTS, older_than=NOW, retain_last=1)
NO_PINS = PinPlan(pins=(), to_set=(), to_remove=(), holds=(), keep_since=None)
Run = Callable[..., tuple[StepObservation, ...]]


@pytest.fixture
def run(table: Table) -> Run:
    """Carries out steps."""

    def carry_out(
        procedures: FakeProcedures | None,
        *steps: StepDecision,
        pins: PinPlan = NO_PINS,
        before_step: Callable[[StepDecision], None] = lambda _: None,
        between_calls: Callable[[], object] = lambda: None,
    ) -> tuple[StepObservation, ...]:
        seen = observe_table(table.refresh(), name=NAME, small_file_bytes=1, now=NOW)
        plan = MaintenancePlan(seen=seen, pins=pins, steps=steps, content_check_bytes=10**9)
        maintainer = TableMaintainer(
            name=NAME,
            table=table,
            procedures=procedures,
            before_step=before_step,
            between_calls=between_calls,
            identity="a",
        )
        return maintainer.carry_out(plan)

    return carry_out


def test_what_hides_nothing_any_more_goes_behind_a_rewrite_for_it_and_before_the_proof(run: Run) -> None:
    procedures = FakeProcedures()
    (done,) = run(procedures, HIDING)

    assert [one.split()[0] for one in procedures.asked] == [
        "rewrite_data_files",
        "remove_dangling_deletes",
        "changed_content",
    ]
    assert done.result["removed_dangling_delete_files"] == 2
    procedures = FakeProcedures()
    run(procedures, REWRITE)
    assert "remove_dangling_deletes" not in procedures.asked


@pytest.mark.parametrize(("conflicts", "removed", "tries"), [(2, 2, 3), (3, 0, 3)])
def test_writers_go_first_three_times_before_delete_files_go(
    run: Run, conflicts: int, removed: int, tries: int
) -> None:
    procedures = FakeProcedures(kept_deletes=[CommitConflictError("the table has changed")] * conflicts)

    (done,) = run(procedures, HIDING)

    assert (done.outcome, done.result["removed_dangling_delete_files"]) == (StepOutcome.DONE, removed)
    assert procedures.asked.count("remove_dangling_deletes") == tries
    kept = "; delete files that hide nothing stay, because writers committed first: the table has changed"
    assert done.explanation == "it is due" + kept * (removed == 0)


def test_a_rewrite_is_compared_also_where_what_follows_it_fails(run: Run) -> None:
    procedures = FakeProcedures(kept_deletes=[LakehouseError("the store is away")], difference="a row is missing")

    (done,) = run(procedures, HIDING)

    assert (done.outcome, done.explanation) == (StepOutcome.FAILED, "a row is missing")


def test_due_steps_are_done_in_order_after_they_were_saved(run: Run) -> None:
    procedures, saved = FakeProcedures(), list[str]()

    def save(step: StepDecision) -> None:
        saved.append(f"{step.step} after {len(procedures.asked)}")

    done = run(procedures, REWRITE, MANIFESTS, EXPIRY, before_step=save)

    assert [step.outcome for step in done] == [StepOutcome.DONE] * 3
    assert procedures.asked == [
        "rewrite_data_files {'min-input-files': '5'}",
        "changed_content 0 True",
        "rewrite_manifests",
        "changed_content 0 True",
        "expire_snapshots 2026 1",
    ]
    assert saved == ["rewrite_data_files after 0", "rewrite_manifests after 2", "expire_snapshots after 4"]


def test_the_engine_is_asked_to_sort_where_that_is_planned(run: Run) -> None:
    procedures = FakeProcedures()
    run(procedures, replace(REWRITE, is_sorted=True))
    assert procedures.asked[0] == "rewrite_data_files {'min-input-files': '5'} sorted"
    run(procedures, replace(REWRITE, z_order=("id", "at")))
    assert procedures.asked[2] == "rewrite_data_files {'min-input-files': '5'} by id, at"


@pytest.mark.parametrize(("conflicts", "outcome", "attempts"), [(2, "done", 3), (3, "yielded", 3)])
def test_writers_go_first_three_times(run: Run, conflicts: int, outcome: str, attempts: int) -> None:
    (done,) = run(FakeProcedures(conflicts=conflicts), REWRITE)
    assert (done.outcome, done.attempts) == (outcome, attempts)
    if outcome == "yielded":
        assert (done.reason, done.explanation) == (
            "writers_won",
            "writers committed first, 3 times of 3: the table has changed",
        )


def test_files_that_could_not_be_replaced_are_a_conflict(run: Run) -> None:
    (done,) = run(FakeProcedures(failed_files=2), REWRITE)
    assert (done.outcome, done.explanation) == (
        StepOutcome.YIELDED,
        "writers committed first, 3 times of 3: 2 files could not be replaced",
    )


@pytest.mark.parametrize(
    ("procedures", "reason", "said"),
    [
        (FakeProcedures(failure="no space is left"), "procedure_failed", "no space is left"),
        (FakeProcedures(difference="one row more"), "content_changed", "one row more"),
    ],
)
def test_after_a_step_that_failed_nothing_is_expired(
    run: Run, procedures: FakeProcedures, reason: str, said: str
) -> None:
    rewrite, expiry = run(procedures, REWRITE, EXPIRY)
    assert (rewrite.outcome, rewrite.reason, rewrite.explanation) == (StepOutcome.FAILED, reason, said)
    assert (expiry.outcome, expiry.reason, expiry.attempts) == (StepOutcome.REFUSED, "earlier_step_failed", 0)
    assert not any(asked.startswith("expire") for asked in procedures.asked)


def test_what_is_not_due_is_recorded_and_not_done(run: Run) -> None:
    skipped = StepDecision(
        step=MaintenanceStep.REWRITE_DATA_FILES,
        action=StepAction.SKIP,
        reason=StepReason.FEW_SMALL_FILES,
        explanation="few",
    )
    refused = StepDecision(
        step=MaintenanceStep.EXPIRE_SNAPSHOTS,
        action=StepAction.REFUSE,
        reason=StepReason.READER_UNKNOWN,
        explanation="unknown",
    )

    done = run(None, skipped, refused)

    assert [(step.outcome, step.reason, step.explanation) for step in done] == [
        (StepOutcome.SKIPPED, "few_small_files", "few"),
        (StepOutcome.REFUSED, "reader_unknown", "unknown"),
    ]


def test_pins_are_moved_without_procedures(run: Run, table: Table) -> None:
    first, _ = (snapshot.snapshot_id for snapshot in table.snapshots())
    pin = Pin(stream="copies", endpoint="rows", kind=PinKind.POSITION, snapshot_id=first)

    (done,) = run(None, PINS, pins=replace(NO_PINS, pins=(pin,), to_set=(pin,), properties={"a.b": "c"}))

    assert (done.outcome, done.result) == (
        StepOutcome.DONE,
        {"set": [pin.tag], "removed": [], "properties": {"a.b": "c"}},
    )
    assert table.refresh().refs()[pin.tag].snapshot_id == first


def test_a_pin_that_expiry_has_lost_is_a_failure(run: Run) -> None:
    lost = Pin(stream="copies", endpoint="rows", kind=PinKind.POSITION, snapshot_id=7)
    (done,) = run(FakeProcedures(), EXPIRY, pins=replace(NO_PINS, pins=(lost,)))
    assert (done.outcome, done.reason) == (StepOutcome.FAILED, "pin_lost")


def test_a_step_that_needs_an_engine_fails_without_one(run: Run) -> None:
    (done,) = run(None, REWRITE)
    assert (done.outcome, done.reason) == (StepOutcome.FAILED, "procedure_failed")


def in_parts(*names: str) -> StepDecision:
    """A compaction of several parts, each with a filter."""
    return replace(REWRITE, calls=tuple(RewriteCall(where=f" {name}") for name in names))


def test_each_part_is_a_call_and_their_figures_are_added_up(run: Run) -> None:
    procedures = FakeProcedures(rewritten_files=3)
    (done,) = run(procedures, in_parts("one", "two"))

    assert [one.rpartition(" ")[2] for one in procedures.asked[:2]] == ["one", "two"]
    assert (done.outcome, done.result["rewritten_data_files_count"]) == (StepOutcome.DONE, 6)


def test_a_part_that_writers_came_before_keeps_no_other_one_and_is_not_done(run: Run) -> None:
    procedures = FakeProcedures(rewritten_files=3, lost_parts=("two",))
    (done,) = run(procedures, in_parts("one", "two", "three"))

    rewrites = [one.rpartition(" ")[2] for one in procedures.asked if one.startswith("rewrite")]
    assert rewrites == ["one", "two", "three", "two", "two"], "a part that was made is not made again"
    assert (done.outcome, done.reason, done.attempts) == (StepOutcome.YIELDED, "writers_won", 3)
    assert done.explanation.endswith(": part two has changed; 2 of 3 parts were made")
    assert done.result["rewritten_data_files_count"] == 6


def test_a_part_that_writers_came_before_is_made_with_the_number_that_was_read(run: Run) -> None:
    lost = RewriteCall(where=" two", options={"use-starting-sequence-number": "false"})
    procedures = FakeProcedures(conflicts=1)
    (done,) = run(procedures, replace(REWRITE, options={}, calls=(lost,)))

    assert (done.outcome, done.attempts) == (StepOutcome.DONE, 2)
    rewrites = [one for one in procedures.asked if one.startswith("rewrite")]
    assert rewrites == ["rewrite_data_files {'use-starting-sequence-number': 'false'} two", "rewrite_data_files {} two"]


def test_an_unbroken_row_of_rewrites_is_compared_once() -> None:
    """Ten parts would cost ten comparisons, for which the bytes that may be read are too few."""
    assert unbroken([]) == []
    assert unbroken([(1, 2), (2, 3), (3, 4), (5, 6), (6, 7), (9, 10)]) == [(1, 4), (5, 7), (9, 10)]


def test_a_part_that_fails_ends_the_rewrite_and_says_what_was_committed(run: Run) -> None:
    procedures = FakeProcedures(rewritten_files=3, failing_part="two")
    (done,) = run(procedures, in_parts("one", "two", "three"))

    assert (done.outcome, done.reason) == (StepOutcome.FAILED, "procedure_failed")
    assert done.explanation == "the store is away; 1 of 3 parts were made"
    assert done.result["rewritten_data_files_count"] == 3, "what was committed is recorded"
    assert procedures.asked[-1].startswith("changed_content"), "what was committed is compared"


@pytest.mark.parametrize(
    ("error", "outcome", "reason"),
    [
        (UncertainError("the answer was lost"), StepOutcome.FAILED, "procedure_failed"),
        (UnpublishableError("it has format version 3"), StepOutcome.REFUSED, "not_allowed"),
    ],
)
def test_a_commit_that_nothing_is_known_of_or_that_is_refused_is_an_outcome(
    run: Run, error: SluiceError, outcome: StepOutcome, reason: str
) -> None:
    """The one may have landed; both are recorded, and nothing is expired after the first."""
    removal = due(MaintenanceStep.REMOVE_OLD_ROWS, column="at", before=NOW, read_up_to=None, agreed=None)
    removal = replace(removal, options={**removal.options, "arrived_before": None})
    with patch.object(maintenance_steps, "remove_old_files", side_effect=error):
        done, after = run(FakeProcedures(), removal, EXPIRY)
    assert (done.outcome, done.reason, done.explanation) == (outcome, reason, str(error))
    assert (after.outcome is StepOutcome.DONE) is (outcome is StepOutcome.REFUSED)


@pytest.mark.parametrize("procedures", [FakeProcedures(conflicts=1), FakeProcedures(failure="the store is away")])
def test_references_that_are_gone_are_recorded_whatever_comes_of_the_expiry(
    run: Run, table: Table, procedures: FakeProcedures
) -> None:
    first = table.snapshots()[0].snapshot_id
    table.manage_snapshots().create_tag(first, "audit").commit()
    audit = ReferenceObservation(name="audit", kind=ReferenceKind.TAG, snapshot_id=first)

    (done,) = run(procedures, replace(EXPIRY, references=(audit,)))

    assert done.outcome is (StepOutcome.FAILED if procedures.failure else StepOutcome.DONE)
    assert done.result["removed_references"] == ["audit"]
    assert "audit" not in table.refresh().refs()


def test_a_compaction_can_be_ended_between_its_parts(run: Run) -> None:
    parts = replace(REWRITE, calls=tuple(RewriteCall(where=f" {number}") for number in range(3)))
    procedures, asked = FakeProcedures(), []

    def stop() -> None:
        asked.append(len([one for one in procedures.asked if one.startswith("rewrite_data_files")]))
        if len(asked) == 2:
            raise LakehouseError("somebody asks to stop")

    (done,) = run(procedures, parts, between_calls=stop)
    assert asked == [1, 2], "before each but the first"
    assert done.explanation == "somebody asks to stop; 2 of 3 parts were made"
    assert procedures.asked[-1].startswith("changed_content"), "what was made is compared"


STATISTICS = due(
    MaintenanceStep.COMPUTE_STATISTICS,
    kinds=[StatisticsKind.COLUMNS, StatisticsKind.PARTITIONS],
    columns=["id"],
    refused={},
    basis="b",
)


def test_statistics_that_the_store_refuses_end_as_refused_with_what_was_computed(run: Run) -> None:
    procedures = FakeProcedures(refused_statistics=(StatisticsKind.PARTITIONS,))

    (done,) = run(procedures, STATISTICS)

    assert procedures.asked == ["compute_statistics columns ['id']", "compute_statistics partitions ['id']"]
    assert (done.outcome, done.reason) == (StepOutcome.REFUSED, "store_refuses")
    assert done.result == {"columns": "columns.stats", "refused": {"partitions": "403, access denied."}, "basis": "b"}


def test_statistics_that_fail_for_another_reason_end_as_failed(run: Run) -> None:
    (done,) = run(FakeProcedures(failure="the store is away"), STATISTICS)

    assert (done.outcome, done.reason) == (StepOutcome.FAILED, "procedure_failed")
