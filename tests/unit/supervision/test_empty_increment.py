"""Whether an increment would find nothing to do; what is not known is never taken for nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.ledger.progress_samples import LagObservation
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.supervision.source_watch import IncrementObservation, has_nothing_to_do

NOW = datetime(2026, 11, 23, tzinfo=UTC)
RUN = RunObservation(
    token=1,
    run_id="run-1",
    stream="flights",
    generation=2,
    mode="incremental",
    state=RunState.FINISHED,
    desired_state=DesiredState.RUNNING,
    launched_at=NOW,
    launched_by="a test",
    declaration_digest="d",
)
BATCH = BatchObservation(
    key=PublicationKey(stream="flights", generation=2, batch=7),
    run_id="run-1",
    started_at=NOW,
    duration_ms=1,
    input_rows=1,
    published_rows={},
)
READ = IncrementObservation(
    generation=2, newest_run=RUN, newest_batch=BATCH, digest="d", lag=LagObservation(rows=0, undone=0)
)


def test_an_increment_that_has_read_everything_has_nothing_to_do() -> None:
    assert has_nothing_to_do(READ)


@pytest.mark.parametrize(
    "change",
    [
        {"newest_run": None},
        {"newest_batch": None},
        {"newest_run": replace(RUN, state=RunState.FAILED)},
        {"newest_run": replace(RUN, state=RunState.RUNNING)},
        {"newest_run": replace(RUN, state=RunState.LOST)},
        {"digest": "another"},
        {"generation": 3},
        {"newest_batch": replace(BATCH, key=PublicationKey(stream="flights", generation=1, batch=7))},
        {"newest_run": replace(RUN, generation=1)},
        {"has_decision": True},
        {"lag": LagObservation(rows=1, undone=1)},
        {"lag": LagObservation(rows=None, files=1, undone=1)},
        {"lag": LagObservation(rows=None, undone=0, problem="the broker did not answer")},
        {"lag": LagObservation(rows=None)},
        {"must_report": True},
    ],
    ids=[
        "no run",
        "no batch",
        "a failed run",
        "a live run",
        "a lost run",
        "a changed declaration",
        "a new generation",
        "a batch of another generation",
        "a run of another generation",
        "a decision about a held batch",
        "unread rows",
        "unread files",
        "a source that did not answer",
        "an unknown lag",
        "changed rows or lost records",
    ],
)
def test_everything_else_starts_spark(change: dict[str, Any]) -> None:
    assert not has_nothing_to_do(replace(READ, **change))
