"""Of days that are computed together, one that was withdrawn is not replaced.

Every run withdraws an item beside another one (`tests/spark/runs/test_work_application.py`).
"""

from __future__ import annotations

import logging

import pytest
from tests.fixtures.backfills import ask_for_day, declare_read_stream, delete_days, ids_by_duckdb
from tests.fixtures.work import serve, states_of
from tests.fixtures.workshop import Workshop
from tests.spark.backfill.test_joint_backfills import AT_ONCE, IDS, at_step

from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.ledger.work_items import withdraw_items
from sluice.ledger.work_values import WorkState
from sluice.processes.deadline import wait_until
from sluice.publication.crash_points import CrashPoint
from sluice_spark.run.stop_request import StopReason

DONE, WITHDRAWN = WorkState.DONE, WorkState.WITHDRAWN


@pytest.mark.full
def test_a_day_that_was_withdrawn_is_not_replaced_with_those_beside_it(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    """The second of three days is withdrawn when the first one is visible."""
    caplog.set_level(logging.INFO)
    stream = declare_read_stream(workshop, partitioned_by="day", at_once=AT_ONCE)
    delete_days(workshop, "target")
    items = [ask_for_day(workshop, stream, day) for day in (5, 6, 7)]

    def withdraw() -> None:
        withdraw_items(workshop.ledger, items[1:2])
        stopping = str(StopReason.STOPPED)
        assert stopping in wait_until(lambda: caplog.text, lambda text: stopping in text, seconds=60)

    serve(workshop, items, reached=at_step(CrashPoint.RECORDED, withdraw))

    assert states_of(workshop, items) == [DONE, WITHDRAWN, DONE]
    assert ids_by_duckdb(workshop) == [number for number in IDS if not 60 <= number < 70]
    published = [
        one for one in recent_attempts(workshop.ledger, stream, limit=9) if one.state is BackfillState.PUBLISHED
    ]
    assert sorted(one.key.interval_start.day for one in published) == [5, 7]
