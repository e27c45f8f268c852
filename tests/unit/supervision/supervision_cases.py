"""The rule of supervision as a table: what was seen, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.failure_reasons import Failure, FailureReason
from sluice.ledger.desired_states import DesiredStateObservation, SuspensionCause
from sluice.ledger.run_leases import LeaseObservation
from sluice.ledger.run_values import DesiredState, DriverExit, RunObservation, RunState
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.supervision.limits import HEARD_WITHIN, LAUNCHED_WITHIN, LOOK_AGAIN_AFTER, STOPPED_WITHIN
from sluice.supervision.restart_policy import RestartHistory
from sluice.supervision.supervision_values import StreamObservation, SupervisionAction, SupervisionReason

NOW = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
WANTED = StreamDeclaration.model_validate(
    {
        "stream": "flights",
        "description": "Flights",
        "owner": "team",
        "mode": "continuous",
        "trigger": {"processing_time": "2 seconds"},
        "inputs": {"records": {"stream": {"rate": {}}}},
        "transformation": {"python": "transformations.py:flights"},
        "outputs": {"rows": {"console": {}}},
        "supervision": {
            "restart": {"attempts": 3, "first_delay": "10 seconds", "longest_delay": "1 minute"},
            "breaker": {"failures": 5, "window": "1 hour"},
        },
    }
)
SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
OTHER_SOURCE = {"input records": "kafka connection=flights_kafka topics=flights", "state provider": "rocksdb"}
"""The fingerprint of a checkpoint that another source has made."""

SAME_SOURCE = {"input records": "rate", "state provider": "hdfs"}
"""One that the declaration can go on with: without state, its store means nothing."""

PROCESS = ProcessIdentity(host="a-host", pid=4711, started_at_seconds=1.0)


def a_run(
    *,
    state: RunState = RunState.RUNNING,
    age: timedelta = timedelta(hours=1),
    heard: timedelta | None = SECOND,
    process: ProcessIdentity | None = PROCESS,
    desired_state: DesiredState = DesiredState.RUNNING,
    ended: timedelta | None = None,
    digest: str = "d",
    end_asked: timedelta | None = None,
) -> RunObservation:
    """A run; its times are told as ages at NOW."""
    return RunObservation(
        token=1,
        run_id="run-1",
        stream="flights",
        generation=1,
        mode="continuous",
        state=state,
        desired_state=desired_state,
        launched_at=NOW - age,
        launched_by="a test",
        declaration_digest=digest,
        end_asked_at=None if end_asked is None else NOW - end_asked,
        process=process,
        heartbeat_at=None if heard is None else NOW - heard,
        ended_at=None if ended is None else NOW - ended,
        reason=None if ended is None else "broker gone",
        log_file=Path("run.log"),
    )


def seen(
    run: RunObservation | None = None,
    *,
    process: ProcessState | None = None,
    asked: DesiredState = DesiredState.RUNNING,
    asked_ago: timedelta | None = None,
    left_exit: DriverExit | None = None,
    suspension: SuspensionCause | None = None,
    lease_over: timedelta | None = None,
    fingerprint: Mapping[str, str] | None = None,
) -> StreamObservation:
    """A stream as it was seen at NOW. lease_over: how long ago its lease ran out."""
    lease = None
    if lease_over is not None:
        lease = LeaseObservation(
            stream="flights", token=1, run_id="run-1", renewed_at=NOW - DAY, expires_at=NOW - lease_over
        )
    requested_at = None if asked_ago is None else NOW - asked_ago
    return StreamObservation(
        stream="flights",
        observed_at=NOW,
        desired=DesiredStateObservation(
            stream="flights",
            desired_state=asked,
            requested_at=requested_at,
            requested_by="ann",
            suspension=suspension,
            suspended_at=None if suspension is None else NOW - SECOND,
        ),
        lease=lease,
        fingerprint=fingerprint or {},
        runs=() if run is None else (run,),
        process=process,
        left_exit=left_exit,
    )


def failures(number: int, *, ended: timedelta) -> RestartHistory:
    """So many failures in a row, the newest so long ago."""
    return RestartHistory(failures=number, newest_ended_at=NOW - ended, newest_reason="broker gone")


def failed_with(reason: FailureReason, *, ends: int = 1) -> RestartHistory:
    """One failure in a row, for a reason, and how many the breaker sees."""
    return replace(failures(1, ended=SECOND), newest_failure=Failure.of(reason), ends=(NOW - SECOND,) * ends)


NONE = RestartHistory()
STOPPED = DesiredState.STOPPED
ALIVE, GONE, UNKNOWN = ProcessState.ALIVE, ProcessState.GONE, ProcessState.UNKNOWN
FAILED = a_run(state=RunState.FAILED, ended=20 * SECOND)
ADMITTED = a_run(state=RunState.LAUNCHING, process=None, heard=None, age=LAUNCHED_WITHIN)
ADMITTED_LONG_AGO = a_run(state=RunState.LAUNCHING, process=None, heard=None, age=LAUNCHED_WITHIN + SECOND)
STARTING = a_run(state=RunState.LAUNCHING, heard=None, age=30 * SECOND)
MUTE = a_run(state=RunState.LAUNCHING, heard=None, age=LAUNCHED_WITHIN + HEARD_WITHIN + SECOND)
HEARD = a_run(heard=HEARD_WITHIN)
AHEAD = a_run(heard=-DAY)
SILENT = a_run(heard=HEARD_WITHIN + SECOND)
NOTE = DriverExit(state=RunState.FAILED, exit_code=1, reason="broker gone")
Action, Reason = SupervisionAction, SupervisionReason


@dataclass(frozen=True, kw_only=True)
class Case:
    """One row of the table."""

    name: str
    seen: StreamObservation
    history: RestartHistory = NONE
    action: SupervisionAction
    reason: SupervisionReason
    delay: timedelta | None = None


def case(
    name: str,
    stream: StreamObservation,
    action: SupervisionAction,
    reason: SupervisionReason,
    *,
    delay: timedelta | None = None,
    history: RestartHistory = NONE,
) -> Case:
    """A row, written on one line."""
    return Case(name=name, seen=stream, history=history, action=action, reason=reason, delay=delay)


def asked_to_stop(run: RunObservation | None, process: ProcessState | None, *, ago: timedelta) -> StreamObservation:
    """A stream that somebody asked to stop."""
    return seen(run, process=process, asked=STOPPED, asked_ago=ago)


WITHOUT_DRIVER = (
    case(
        "first failure that another start would repeat",
        seen(FAILED),
        Action.GIVE_UP,
        Reason.RESTART_WOULD_NOT_HELP,
        history=failed_with(FailureReason.COLUMN_MISSING),
    ),
    case(
        "first failure in a row, many within the window",
        seen(FAILED),
        Action.GIVE_UP,
        Reason.BREAKER_OPEN,
        history=failed_with(FailureReason.KAFKA_UNREACHABLE, ends=5),
    ),
    case("never ran", seen(), Action.LAUNCH, Reason.NEVER_STARTED, delay=LOOK_AGAIN_AFTER),
    case("ended as requested, asked again", seen(FAILED), Action.LAUNCH, Reason.WANTED_AGAIN, delay=LOOK_AGAIN_AFTER),
    case(
        "first failure waits for nothing",
        seen(FAILED),
        Action.LAUNCH,
        Reason.RESTART_DUE,
        delay=LOOK_AGAIN_AFTER,
        history=failures(1, ended=0 * SECOND),
    ),
    case(
        "second failure, delay not over",
        seen(FAILED),
        Action.RESTART_LATER,
        Reason.BACKING_OFF,
        delay=4 * SECOND,
        history=failures(2, ended=6 * SECOND),
    ),
    case(
        "third failure waits twice as long",
        seen(FAILED),
        Action.RESTART_LATER,
        Reason.BACKING_OFF,
        delay=14 * SECOND,
        history=failures(3, ended=6 * SECOND),
    ),
    case(
        "as many failures as restarts are allowed, delay over",
        seen(FAILED),
        Action.LAUNCH,
        Reason.RESTART_DUE,
        delay=LOOK_AGAIN_AFTER,
        history=failures(3, ended=20 * SECOND),
    ),
    case(
        "one failure more",
        seen(FAILED),
        Action.GIVE_UP,
        Reason.RESTART_BUDGET_SPENT,
        history=failures(4, ended=timedelta(days=1)),
    ),
    case("stopped, never ran", asked_to_stop(None, None, ago=SECOND), Action.FINISH, Reason.STOPPED_AS_REQUESTED),
    case(
        "stopped, whatever failed before",
        asked_to_stop(FAILED, None, ago=SECOND),
        Action.FINISH,
        Reason.STOPPED_AS_REQUESTED,
        history=failures(9, ended=SECOND),
    ),
)
WITHOUT_PROCESS = (
    case("just admitted", seen(ADMITTED), Action.WAIT, Reason.BEING_LAUNCHED, delay=timedelta(0)),
    case("admitted long ago", seen(ADMITTED_LONG_AGO), Action.CLOSE, Reason.NEVER_LAUNCHED),
    case(
        "just admitted, then asked to stop",
        asked_to_stop(ADMITTED, None, ago=SECOND),
        Action.WAIT,
        Reason.BEING_LAUNCHED,
        delay=timedelta(0),
    ),
)
WITH_DRIVER = (
    case("gone", seen(HEARD, process=GONE), Action.CLOSE, Reason.DRIVER_GONE),
    case("gone, asked to stop", asked_to_stop(HEARD, GONE, ago=SECOND), Action.CLOSE, Reason.DRIVER_GONE),
    case("a note", seen(HEARD, process=GONE, left_exit=NOTE), Action.CLOSE, Reason.EXIT_LEFT_BEHIND),
    case("a note of elsewhere", seen(SILENT, process=UNKNOWN, left_exit=NOTE), Action.CLOSE, Reason.EXIT_LEFT_BEHIND),
    case("starting", seen(STARTING, process=ALIVE), Action.ADOPT, Reason.STARTING, delay=LOOK_AGAIN_AFTER),
    case("heard", seen(HEARD, process=ALIVE), Action.ADOPT, Reason.HEARTBEAT_FRESH, delay=LOOK_AGAIN_AFTER),
    case("silent", seen(SILENT, process=ALIVE), Action.ADOPT, Reason.HEARTBEAT_OVERDUE, delay=LOOK_AGAIN_AFTER),
    case("never heard", seen(MUTE, process=ALIVE), Action.ADOPT, Reason.HEARTBEAT_OVERDUE, delay=LOOK_AGAIN_AFTER),
)
WITH_UNKNOWN_DRIVER = (
    case("starting elsewhere", seen(STARTING, process=UNKNOWN), Action.ADOPT, Reason.STARTING, delay=LOOK_AGAIN_AFTER),
    case("heard elsewhere", seen(HEARD, process=UNKNOWN), Action.ADOPT, Reason.HEARTBEAT_FRESH, delay=LOOK_AGAIN_AFTER),
    case("silent elsewhere", seen(SILENT, process=UNKNOWN), Action.WAIT, Reason.DRIVER_UNKNOWN, delay=LOOK_AGAIN_AFTER),
    case(
        "heard in the future", seen(AHEAD, process=UNKNOWN), Action.WAIT, Reason.DRIVER_UNKNOWN, delay=LOOK_AGAIN_AFTER
    ),
    case(
        "never heard elsewhere", seen(MUTE, process=UNKNOWN), Action.WAIT, Reason.DRIVER_UNKNOWN, delay=LOOK_AGAIN_AFTER
    ),
    case(
        "silent elsewhere for a year, every restart spent",
        seen(a_run(heard=timedelta(days=365)), process=UNKNOWN),
        Action.WAIT,
        Reason.DRIVER_UNKNOWN,
        delay=LOOK_AGAIN_AFTER,
        history=failures(9, ended=SECOND),
    ),
)
ASKED_TO_STOP = (
    case(
        "asked a moment ago",
        asked_to_stop(HEARD, ALIVE, ago=50 * SECOND),
        Action.WAIT,
        Reason.STOPPING,
        delay=STOPPED_WITHIN - 50 * SECOND,
    ),
    case(
        "asked a moment ago, elsewhere",
        asked_to_stop(SILENT, UNKNOWN, ago=50 * SECOND),
        Action.WAIT,
        Reason.STOPPING,
        delay=STOPPED_WITHIN - 50 * SECOND,
    ),
    case("asked long ago", asked_to_stop(HEARD, ALIVE, ago=STOPPED_WITHIN + SECOND), Action.STOP, Reason.STOP_OVERDUE),
    case(
        "asked long ago, elsewhere",
        asked_to_stop(HEARD, UNKNOWN, ago=STOPPED_WITHIN + SECOND),
        Action.REVOKE,
        Reason.STOP_OVERDUE,
    ),
)
LEASE_OVER = (
    case("hung, its lease over", seen(SILENT, process=ALIVE, lease_over=SECOND), Action.STOP, Reason.LEASE_OVER),
    case(
        "elsewhere, lease over", seen(SILENT, process=UNKNOWN, lease_over=SECOND), Action.TAKE_OVER, Reason.LEASE_OVER
    ),
    case(
        "heard after all: the database's clock jumped",
        seen(HEARD, process=ALIVE, lease_over=SECOND),
        Action.ADOPT,
        Reason.HEARTBEAT_FRESH,
        delay=LOOK_AGAIN_AFTER,
    ),
    case(
        "silent, and its lease runs",
        seen(SILENT, process=UNKNOWN, lease_over=-SECOND),
        Action.WAIT,
        Reason.DRIVER_UNKNOWN,
        delay=LOOK_AGAIN_AFTER,
    ),
    case("gone, lease over", seen(SILENT, process=GONE, lease_over=SECOND), Action.CLOSE, Reason.DRIVER_GONE),
)
HELD = (
    case(
        "paused, without a driver", seen(suspension=SuspensionCause.PAUSED), Action.FINISH, Reason.STOPPED_AS_REQUESTED
    ),
    case(
        "marked, without a driver",
        seen(FAILED, suspension=SuspensionCause.MARKED),
        Action.FINISH,
        Reason.STOPPED_AS_REQUESTED,
    ),
    case(
        "paused a second ago",
        seen(HEARD, process=ALIVE, suspension=SuspensionCause.PAUSED),
        Action.WAIT,
        Reason.STOPPING,
        delay=STOPPED_WITHIN - SECOND,
    ),
    case(
        "this run only, a second ago",
        seen(a_run(end_asked=SECOND), process=ALIVE),
        Action.WAIT,
        Reason.STOPPING,
        delay=STOPPED_WITHIN - SECOND,
    ),
    case(
        "this run only, long ago",
        seen(a_run(end_asked=STOPPED_WITHIN + SECOND), process=ALIVE),
        Action.STOP,
        Reason.STOP_OVERDUE,
    ),
)
CHANGED = (
    case(
        "changed, can be followed",
        seen(a_run(digest="old"), process=ALIVE, fingerprint=SAME_SOURCE),
        Action.REPLACE,
        Reason.DECLARATION_CHANGED,
    ),
    case(
        "changed, cannot be followed",
        seen(a_run(digest="old"), process=ALIVE, fingerprint=OTHER_SOURCE),
        Action.ADOPT,
        Reason.CHANGE_REFUSED,
        delay=LOOK_AGAIN_AFTER,
    ),
    case(
        "changed back and forth",
        seen(a_run(digest="old"), process=ALIVE, fingerprint=SAME_SOURCE),
        Action.ADOPT,
        Reason.FILES_DIFFER,
        delay=LOOK_AGAIN_AFTER,
        history=replace(NONE, is_back_and_forth=True),
    ),
    case(
        "changed while it starts",
        seen(a_run(digest="old", heard=None, age=SECOND), process=ALIVE),
        Action.ADOPT,
        Reason.STARTING,
        delay=LOOK_AGAIN_AFTER,
    ),
    case(
        "changed, and silent",
        seen(a_run(digest="old", heard=HEARD_WITHIN + SECOND), process=ALIVE),
        Action.ADOPT,
        Reason.HEARTBEAT_OVERDUE,
        delay=LOOK_AGAIN_AFTER,
    ),
    case("cannot be followed, no run", seen(FAILED, fingerprint=OTHER_SOURCE), Action.GIVE_UP, Reason.CHANGE_REFUSED),
)
TABLE = (
    *WITHOUT_DRIVER,
    *WITHOUT_PROCESS,
    *WITH_DRIVER,
    *WITH_UNKNOWN_DRIVER,
    *ASKED_TO_STOP,
    *LEASE_OVER,
    *HELD,
    *CHANGED,
)
