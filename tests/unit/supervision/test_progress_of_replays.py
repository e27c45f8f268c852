"""The progress of a run that takes the state of a copy through batches, of which it records none."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.fixtures.streams import continuous_stream
from tests.unit.supervision.test_progress_decision import (
    MINUTE,
    NOW,
    RESTARTED,
    RESTARTED_WHEN_LATE,
    a_run,
    look,
    waiting,
)

from sluice.supervision.progress_decision import judge_progress


@pytest.mark.parametrize(("supervision", "ago"), [(RESTARTED, 16 * MINUTE), (RESTARTED_WHEN_LATE, 14 * MINUTE)])
def test_a_run_that_takes_its_state_through_batches_is_not_restarted(
    supervision: dict[str, Any], ago: timedelta
) -> None:
    """It records no batch meanwhile, and has taken an hour so far."""
    wanted = continuous_stream(supervision=supervision).declaration
    looks = (*waiting(60, unread=200, batch=None), look(61, 0, batch=None))
    run = replace(a_run(), replayed_at=NOW - MINUTE)

    assert not judge_progress(wanted, run, batches=(), samples=looks, now=NOW).restarts
    run = replace(run, replayed_at=NOW - ago)
    assert judge_progress(wanted, run, batches=(), samples=looks, now=NOW).restarts
