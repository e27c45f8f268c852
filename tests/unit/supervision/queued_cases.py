"""The rows of the table of supervision that only a driver on a cluster can come to."""

from __future__ import annotations

from tests.unit.supervision.supervision_cases import (
    MUTE,
    SECOND,
    SILENT,
    STARTING,
    Action,
    Reason,
    asked_to_stop,
    case,
    seen,
)

from sluice.processes.process_identity import ProcessState
from sluice.supervision.limits import LOOK_AGAIN_AFTER, STOPPED_WITHIN

QUEUED = ProcessState.QUEUED

QUEUED_BY_ITS_CLUSTER = (
    case("queued a moment ago", seen(STARTING, process=QUEUED), Action.ADOPT, Reason.STARTING, delay=LOOK_AGAIN_AFTER),
    case(
        "queued for long, its lease over",
        seen(MUTE, process=QUEUED, lease_over=SECOND),
        Action.WAIT,
        Reason.AWAITS_CLUSTER,
        delay=LOOK_AGAIN_AFTER,
    ),
    case("heard, then hung", seen(SILENT, process=QUEUED, lease_over=SECOND), Action.STOP, Reason.LEASE_OVER),
    case(
        "queued, asked to stop long ago",
        asked_to_stop(MUTE, QUEUED, ago=STOPPED_WITHIN + SECOND),
        Action.STOP,
        Reason.STOP_OVERDUE,
    ),
)
