"""The states of a stream, and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sluice.failure_reasons import Failure


class StreamState(StrEnum):
    """The state of a stream, for a person. FINISHED and FAILED apply to incremental streams only. ALL_REJECTED: it does
    well, but no row of its newest batch with rows was good, or none of a file. MANY_REJECTED: it
    does well, and has rejected more than its limit. HELD: a batch waits for a person, and all behind it.

    UNDECLARED, BROKEN and MODE_CHANGED are those of a run that fits no declaration (`find_orphaned_runs`).
    PAUSE_UNCLEAR: it runs although its DAG is paused, and no person is known to have paused that.
    NOT_RECONCILED is no look's own: a pass of the reconciler failed for the stream, or had no time for it.
    """

    NEVER_STARTED = "never started"
    TO_BE_STARTED = "to be started"
    STARTING = "starting"
    QUEUED = "queued"
    RUNNING = "running"
    IDLE = "idle"
    LATE = "late"
    STALLED = "stalled"
    SOURCES_UNOBSERVED = "sources unobserved"
    CRASH_LOOPING = "crash looping"
    SILENT = "silent"
    UNKNOWN = "unknown"
    CHANGE_REFUSED = "change refused"
    FILES_DIFFER = "files differ"
    STOPPING = "stopping"
    STOPPED = "stopped"
    RESTARTING = "restarting"
    GIVEN_UP = "given up"
    DRIVER_GONE = "driver gone"
    FINISHED = "finished"
    FAILED = "failed"
    ALL_REJECTED = "all rejected"
    MANY_REJECTED = "many rejected"
    HELD = "held"
    UNDECLARED = "undeclared"
    BROKEN = "declaration broken"
    MODE_CHANGED = "mode changed"
    PAUSE_UNCLEAR = "pause unclear"
    NOT_RECONCILED = "not reconciled"


DOES_WELL = frozenset({StreamState.RUNNING, StreamState.IDLE, StreamState.FINISHED})
"""The states of a stream that does well. What becomes of its rows may still be wrong."""

SETTLED_BY_START = frozenset({StreamState.ALL_REJECTED, StreamState.MANY_REJECTED})
"""What a person settles by asking for a start, also of a stream that runs or waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamVerdict:
    """The state of a stream. It is healthy when it has its desired state, or is on the way there.

    explanation: the sentence for a person.
    failure: the newest one that still counts; unset without one. next_step: what to do about it; empty without one.
    occasion: what it is about, where the same state may come again for another cause (`StreamTrouble`).
    """

    state: StreamState
    is_healthy: bool
    explanation: str
    failure: Failure | None = None
    next_step: str = ""
    occasion: str = ""
