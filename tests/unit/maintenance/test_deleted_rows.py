"""Partitions of which delete files hide much are written again, whatever the size of their files."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.unit.maintenance.test_maintenance_plan import MIB, NOON, POLICY, decide, partition, table

from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.compaction_plan import after_conflict
from sluice.maintenance.step_decision import StepAction, StepDecision, StepReason

EVERY_DELETE = {"delete-file-threshold": "1"}


def hiding(deleted_rows: int, *, name: str = "day=1", minutes: int = 600) -> Any:
    """A partition with a large file of a hundred rows, and when it was written."""
    large = partition(0, small_bytes=0, large_files=1, name=name)
    return replace(large, rows=100, deleted_rows=deleted_rows, written_at=NOON - timedelta(minutes=minutes))


def small(*, name: str, minutes: int) -> Any:
    """A partition with enough small files, and when it was written."""
    return replace(partition(5, name=name), written_at=NOON - timedelta(minutes=minutes))


def decided(
    *partitions: Any,
    share: float = 0.3,
    leave_recent: timedelta | None = None,
    has_earlier_spec: bool = False,
) -> StepDecision:
    """What is decided about the files of a table. has_earlier_spec: so that Spark rewrites all partitions or none."""
    assert POLICY.compaction is not None
    changed = {"max_deleted_share": share, "leave_recent": leave_recent}
    policy = POLICY.model_copy(update={"compaction": POLICY.compaction.model_copy(update=changed)})
    seen = replace(table(*partitions), has_earlier_spec=has_earlier_spec)
    return decide(MaintenanceStep.REWRITE_DATA_FILES, seen, policy=policy)


@pytest.mark.parametrize(
    ("deleted_rows", "share", "action"),
    [
        (29, 0.3, StepAction.SKIP),
        (30, 0.3, StepAction.RUN),
        (0, 0.001, StepAction.SKIP),
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
    decision = decided(hiding(40), hiding(1, name="day=2"))

    assert (decision.reason, decision.gain, decision.cost_bytes) == (StepReason.DELETED_ROWS, 1, 64 * MIB)
    assert decision.options["delete-ratio-threshold"] == "0.3"
    assert "and what delete files hide, at most 40 of 100 rows (" in decision.explanation
    assert "in 1 of 2 partitions" in decision.explanation
    of_both = decided(hiding(40), small(name="day=2", minutes=600))
    assert (of_both.gain, of_both.cost_bytes, of_both.is_for_spark) == (5, 65 * MIB, True)
    assert "in 2 of 2 partitions" in of_both.explanation


def test_small_files_are_put_together_while_spark_has_to_wait_for_a_recent_partition() -> None:
    """A stream writes today's partition all the time."""
    today, old = small(name="day=3", minutes=1), small(name="day=1", minutes=600)
    decision = decided(hiding(40, name="day=2"), today, old, leave_recent=timedelta(hours=1), has_earlier_spec=True)

    assert (decision.reason, decision.is_for_spark) == (StepReason.SMALL_FILES, False)
    assert decision.partitions == ("day=1",)
    assert decision.calls == ()
    recent = decided(hiding(40, minutes=1), leave_recent=timedelta(hours=1))
    assert recent.reason is StepReason.RECENTLY_WRITTEN, "time changes that, and it is looked at again"


def test_what_is_left_alone_says_how_much_is_hidden() -> None:
    decision = decided(hiding(29), partition(2, name="day=2"))

    assert decision.reason is StepReason.FEW_SMALL_FILES
    assert "delete files hide at most 29 of 100 rows" in decision.explanation
    assert "hide" not in decided(partition(2)).explanation


def sharing(listed: int, **more: Any) -> Any:
    """A partition of a hundred rows whose data files share delete files that list so many."""
    return replace(hiding(0), **{"shared_deletes": listed, "filter": "", **more})


@pytest.mark.parametrize(
    ("seen", "action"),
    [
        (sharing(29), StepAction.SKIP),
        (sharing(30), StepAction.RUN),
        (sharing(500), StepAction.RUN),
        (sharing(20, deleted_rows=10), StepAction.RUN),
        (sharing(1, deleted_rows=30), StepAction.RUN),
    ],
)
def test_every_file_with_deletes_is_written_once_shared_delete_files_list_much(seen: Any, action: StepAction) -> None:
    decision = decided(seen)

    assert decision.action is action
    assert [dict(call.options) for call in decision.calls] == [EVERY_DELETE] * (action is StepAction.RUN)


def test_partitions_with_shared_delete_files_are_calls_of_their_own() -> None:
    days = [replace(sharing(40), partition=f"day={day}", filter='{"type": "eq"}') for day in (1, 2)]
    days.append(replace(hiding(40, name="day=3"), filter='{"type": "eq"}'))
    decision = decided(*days)

    assert [len(call.options) for call in decision.calls] == [0, 1]
    assert [call.where.count('"eq"') for call in decision.calls] == [1, 2]
    assert decision.reason is StepReason.DELETED_ROWS
    assert "what delete files hide, at most 120 of 300 rows" in decision.explanation


def test_deletes_of_the_newest_snapshot_need_a_larger_number_until_a_writer_came() -> None:
    """Such position deletes apply to data files with the number of their own snapshot."""
    (call,) = decided(sharing(40, has_newest_deletes=True)).calls

    assert call.options == {**EVERY_DELETE, "use-starting-sequence-number": "false"}
    assert after_conflict(call) == replace(call, options=EVERY_DELETE)


def test_small_files_are_put_together_before_shared_deletes_are_written_away() -> None:
    """A writer that keeps deletes from being written away would keep the small files from it, too."""
    seen = replace(small(name="", minutes=600), rows=100, data_bytes=100 * MIB, shared_deletes=40, filter="")
    decision = decided(seen)

    assert [dict(call.options) for call in decision.calls] == [{}, EVERY_DELETE]
    assert (decision.cost_bytes, decision.gain) == (100 * MIB, 5)
    assert "in 1 of 1 partitions" in decision.explanation


def test_what_cannot_be_named_keeps_shared_delete_files() -> None:
    """Every file of the table with a delete would be written again."""
    decision = decided(sharing(90), has_earlier_spec=True)
    assert decision.action is StepAction.SKIP
    assert (
        "delete files hide at most 90 of 100 rows, and stay, because the table has files of an" in decision.explanation
    )
