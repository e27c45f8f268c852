"""Who may still write files that no table refers to yet: live runs and claimed work items; how long a batch takes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select

from sluice.ledger.batches import Batch
from sluice.ledger.connection import Ledger
from sluice.ledger.run_table import Run
from sluice.ledger.run_values import LIVE_STATES
from sluice.ledger.work_tables import WorkRow
from sluice.ledger.work_values import WorkState


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedWrite:
    """Somebody who may commit files that were written since a time. writer: for a person."""

    writer: str
    since: datetime


def unfinished_writes(ledger: Ledger) -> tuple[tuple[str, UnfinishedWrite], ...]:
    """The live runs and the claimed work items, each with its stream or table.

    The batch that a run works on began after the newest one that it has recorded; before its first, with the run.
    """
    begun = select(func.max(Batch.started_at)).where(Batch.run_id == Run.run_id).scalar_subquery()
    runs = select(Run.stream, Run.run_id, func.coalesce(begun, Run.launched_at)).where(
        Run.state.in_(sorted(LIVE_STATES))
    )
    items = select(WorkRow.subject, WorkRow.item, func.coalesce(WorkRow.claimed_at, WorkRow.asked_at)).where(
        WorkRow.state == WorkState.CLAIMED
    )
    with ledger.transaction() as connection:
        of_runs = [
            (stream, UnfinishedWrite(writer=f"run {run} of {stream}", since=since))
            for stream, run, since in connection.execute(runs)
        ]
        of_items = [
            (subject, UnfinishedWrite(writer=f"work item {item} of {subject}", since=since))
            for subject, item, since in connection.execute(items)
        ]
    return (*of_runs, *of_items)


def longest_batch(ledger: Ledger, streams: Collection[str]) -> timedelta:
    """The longest of the batches that the ledger has of some streams; zero without one."""
    longest = select(func.max(Batch.duration_ms)).where(Batch.stream.in_(sorted(streams)))
    with ledger.transaction() as connection:
        return timedelta(milliseconds=connection.execute(longest).scalar_one() or 0)
