"""Partitions of which delete files hide much are written again, whatever the size of their files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.maintenance.test_maintenance_plan import MIB, POLICY, decide, partition, table

from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.step_decision import StepAction, StepDecision, StepReason
from sluice.tables.delete_files import SharedDeletes

STEP = MaintenanceStep.REWRITE_DATA_FILES


def hiding(deleted_rows: int, *, shared: int = 0, name: str = "day=1") -> Any:
    """A partition with a large file of a hundred rows. shared: its delete files that are of several data files."""
    large = partition(0, small_bytes=0, large_files=1, name=name)
    return replace(large, rows=100, deleted_rows=deleted_rows, shared_delete_files=shared)


def decided(*partitions: Any, share: float = 0.3) -> StepDecision:
    """What is decided about the files of a table."""
    assert POLICY.compaction is not None
    compaction = POLICY.compaction.model_copy(update={"max_deleted_share": share})
    return decide(STEP, table(*partitions), policy=POLICY.model_copy(update={"compaction": compaction}))


@pytest.mark.parametrize(
    ("deleted_rows", "share", "action"),
    [
        (29, 0.3, StepAction.SKIP),
        (30, 0.3, StepAction.RUN),
        (1, 0, StepAction.RUN),
        (0, 0, StepAction.SKIP),
        (99, 1, StepAction.SKIP),
        (140, 1, StepAction.RUN),  # two delete files may list one row
    ],
)
def test_a_partition_is_due_once_so_large_a_share_of_its_rows_is_hidden(
    deleted_rows: int, share: float, action: StepAction
) -> None:
    decision = decided(hiding(deleted_rows), share=share)

    assert decision.action is action
    assert decision.is_for_spark is (action is StepAction.RUN)


def test_spark_is_asked_for_the_files_that_are_due() -> None:
    decision = decided(hiding(40), hiding(1, shared=1, name="day=2"))

    assert (decision.reason, decision.gain, decision.cost_bytes) == (StepReason.DELETED_ROWS, 1, 64 * MIB)
    assert decision.options["delete-ratio-threshold"] == "0.3"
    assert decision.options["remove-dangling-deletes"] == "true"
    assert "delete-file-threshold" not in decision.options, "what is not due has shared delete files"
    assert "and what delete files hide, 40 of 100 rows (" in decision.explanation
    assert "in 1 of 2 partitions" in decision.explanation
    assert decided(hiding(40, shared=2)).options["delete-file-threshold"] == "1"
    assert float(decided(hiding(1), share=0).options["delete-ratio-threshold"]) > 0, "Iceberg allows no 0"


def test_what_is_left_alone_says_how_much_is_hidden() -> None:
    decision = decided(hiding(29), partition(2, name="day=2"))

    assert decision.reason is StepReason.FEW_SMALL_FILES
    assert "delete files hide 29 of 100 rows" in decision.explanation
    assert "hide" not in decided(partition(2)).explanation


@pytest.mark.parametrize(
    ("sequence_number", "oldest", "applies"), [(3, 3, True), (3, 4, False), (3, None, True), (None, 9, True)]
)
def test_a_delete_file_of_several_data_files_hides_nothing_of_later_ones(
    sequence_number: int | None, oldest: int | None, *, applies: bool
) -> None:
    assert SharedDeletes(sequence_number=sequence_number, rows=1).may_apply(oldest) is applies
