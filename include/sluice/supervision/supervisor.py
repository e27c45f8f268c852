"""Supervises one continuous stream: observe, decide, act. The Airflow task and the command line call `supervise`.

What the caller does with the result:

| decision.action      | what it means now                  | what the caller does                                    |
|----------------------|------------------------------------|---------------------------------------------------------|
| LAUNCH, ADOPT, WAIT  | there is a run: `run`              | watch it (`calls_for_supervisor`), then supervise again |
| RESTART_LATER        | the next start is due in `delay`   | supervise again after `delay`, or at a new request      |
| FINISH               | the stream is stopped as requested | end                                                     |
| GIVE_UP              | a person must look: `explanation`  | fail                                                    |

CLOSE, TAKE_OVER, REVOKE, REPLACE and STOP are carried out in this module and followed by another observation, so no
caller meets them. Concurrent calls, from any host, are safe: the ledger admits one run and binds it to one process.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import partial

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LaunchError, LedgerError, RunAlreadyLiveError, SettingsError, SluiceError
from sluice.failures.classification import classify
from sluice.failures.error_chains import chain_of
from sluice.launching.driver_records import read_exit_note
from sluice.launching.launcher_port import Launcher, LaunchRequest
from sluice.ledger.connection import Ledger
from sluice.ledger.events import record_event
from sluice.ledger.held_batches import rejected_within
from sluice.ledger.run_values import DesiredState, DriverExit, RunObservation, RunState
from sluice.ledger.runs import admit_run, ask_to_end, find_run, record_end, starting_on, take_over
from sluice.ledger.stream_records import StreamRecords, read_streams
from sluice.processes.deadline import wait_until
from sluice.processes.process_identity import ProcessState
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.decide_supervision import decide, with_room
from sluice.supervision.limits import (
    AHEAD_AT_MOST,
    EXIT_RECORD_SECONDS,
    HEARD_AGAIN_SECONDS,
    STARTS_WITHIN,
    STOP_GRACE_SECONDS,
)
from sluice.supervision.restart_policy import BECAUSE_CHANGED, runs_that_count
from sluice.supervision.supervision_values import (
    StreamObservation,
    SupervisionAction,
    SupervisionDecision,
    SupervisionReason,
    decision_event,
)

_log = logging.getLogger(__name__)

MOST_ROUNDS = 6
"""How often one call observes and acts: at the worst a run is stopped, closed, two launches fail (the first restart
comes at once), and the delay is returned. More would mean that runs end faster than they are observed."""

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """The parts that supervision works with, put together by `sluice_airflow.composition` and `sluice.cli`.

    request_for: turns an admitted run of a declared stream into the request that starts its driver, for example
        `functools.partial(driver_request, settings=…, connections=…)` (`sluice.launching.spark_submit`).
    launched_by: the Airflow task or command that supervises, for messages.
    heads: observes the sources of streams; without it their progress is not judged.
    """

    ledger: Ledger
    launcher: Launcher
    request_for: Callable[[LoadedStream, RunObservation], LaunchRequest]
    launched_by: str
    heads: SourceHeads | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisionResult:
    """The state in which supervision left the stream.

    decision: the newest one; its action is none of CLOSE, TAKE_OVER, REVOKE, REPLACE and STOP.
    seen: the observation on which it was decided.
    run: the live run to watch; unset when there is none.
    """

    decision: SupervisionDecision
    seen: StreamObservation
    run: RunObservation | None = None


def supervise(supervisor: Supervisor, wanted: LoadedStream) -> SupervisionResult:
    """Observe, decide and act, until the stream has a run to watch, a delay to wait, or an end.

    Parameters
    ----------
    wanted: the stream as it is declared now.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; calling again is safe.
    LaunchError: when a driver that must be stopped survives SIGKILL.
    """
    for _ in range(MOST_ROUNDS):
        planned = plan_supervision(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher)
        decision = planned.decision
        _log.info(
            "stream=%s action=%s reason=%s %s", wanted.name, decision.action, decision.reason, decision.explanation
        )
        if decision.action is SupervisionAction.LAUNCH:
            if (later := _as_long_as_host_is_busy(supervisor, planned)) is not None:
                return later
            launched = _launch(supervisor, wanted, planned)
            if launched is not None:
                return SupervisionResult(decision=decision, seen=planned.seen, run=launched)
        elif not act_on(supervisor, planned):
            _save_outcome(supervisor, planned)
            return planned
    raise LedgerError(
        f"Stream {wanted.name} was observed {MOST_ROUNDS} times without coming to rest; the last decision was: "
        f"{decision.explanation}",
        next_step=f"See its runs: `sluice stream show {wanted.name}`.",
    )


def act_on(supervisor: Supervisor, planned: SupervisionResult) -> bool:
    """Carry out a decision about a live run.

    Returns
    -------
    Whether there was something to do, so that the stream is to be observed again.

    Raises
    ------
    LaunchError: when a driver that must be stopped survives SIGKILL.
    """
    step = _STEPS.get(planned.decision.action)
    if step is not None:
        step(supervisor, planned)
    return step is not None


def plan_supervision(
    wanted: LoadedStream, *, ledger: Ledger, launcher: Launcher, requested: DesiredState | None = None
) -> SupervisionResult:
    """Observe and decide, without acting: what `--dry-run` shows, and the first half of each round of `supervise`.

    Parameters
    ----------
    requested: decide as if this had been requested just now; unset: what was really requested.
    """
    return plan_from(read_to_judge(ledger, [wanted])[wanted.name], wanted, launcher=launcher, requested=requested)


def plan_from(
    known: StreamRecords,
    wanted: LoadedStream,
    *,
    launcher: Launcher,
    requested: DesiredState | None = None,
) -> SupervisionResult:
    """Observe and decide as `plan_supervision` does, by records that were read a moment ago."""
    seen = observe(known, launcher)
    if requested is not None:
        suspension = None if requested is DesiredState.RUNNING else seen.desired.suspension
        foreseen = replace(seen.desired, desired_state=requested, requested_at=seen.observed_at, suspension=suspension)
        seen = replace(seen, desired=foreseen)
    live = seen.newest_run if seen.newest_run is not None and seen.newest_run.is_live else None
    return SupervisionResult(decision=decide(wanted, seen), seen=seen, run=live)


def read_to_judge(
    ledger: Ledger, declared: Iterable[LoadedStream], *, others: Iterable[str] = (), with_progress: bool = False
) -> Mapping[str, StreamRecords]:
    """Read what the ledger has of streams, with as many runs as a judgement of each needs.

    Parameters
    ----------
    others: streams that are read beside them and are not declared.
    with_progress: see `read_streams`.
    """
    by_name = {wanted.name: wanted for wanted in declared}

    def count(newest: RunObservation, before: RunObservation | None) -> int:
        wanted = by_name.get(newest.stream)
        return 0 if wanted is None else runs_that_count(wanted, newest, before)

    names = list(dict.fromkeys((*by_name, *others)))
    known = read_streams(ledger, names, runs_that_count=count, with_progress=with_progress) if names else {}
    return _with_rejected(ledger, by_name, known)


def _with_rejected(
    ledger: Ledger, declared: Mapping[str, LoadedStream], known: Mapping[str, StreamRecords]
) -> Mapping[str, StreamRecords]:
    """The records, with what streams that have a limit have rejected of late."""
    limits = {name: wanted.declaration.supervision.max_rejected for name, wanted in declared.items()}
    windows = {name: limit.window for name, limit in limits.items() if limit is not None}
    found = rejected_within(ledger, windows)
    return {name: replace(one, rejected=found.get(name)) if name in found else one for name, one in known.items()}


def observe(known: StreamRecords, launcher: Launcher, *, heard_within: timedelta = timedelta(0)) -> StreamObservation:
    """Observe a stream whose records were read a moment ago: only its driver is looked at.

    Parameters
    ----------
    heard_within: a driver that was heard so lately is not looked at and counts as alive. A look takes a millisecond,
        too long for a page of 200 streams; who acts looks at every driver.
    """
    run, process, left = known.newest_run, None, None
    if run is not None and run.is_live:
        age = known.heartbeat_age
        if age is not None and -AHEAD_AT_MOST <= age < heard_within:
            process = ProcessState.ALIVE
        else:
            process = _observe_driver(launcher, run)
            left = _left_exit(launcher, run, process)
    records = {each.name: getattr(known, each.name) for each in fields(StreamRecords)}
    return StreamObservation(**records, process=process, left_exit=left)


def _observe_driver(launcher: Launcher, run: RunObservation) -> ProcessState | None:
    if run.process is not None:
        return launcher.observe(run.process)
    return None if run.heartbeat_at is None else ProcessState.UNKNOWN  # it reported, so it runs somewhere


def _left_exit(launcher: Launcher, run: RunObservation, process: ProcessState | None) -> DriverExit | None:
    """The exit that the driver's parent noted, or that the cluster reports for an application that is gone."""
    noted = read_exit_note(run.log_file) if run.log_file is not None else None
    if noted is not None or run.process is None or process is not ProcessState.GONE:
        return noted
    return launcher.exit_of(run.process)


def _save_outcome(supervisor: Supervisor, planned: SupervisionResult) -> None:
    """Save that the stream is given up, or that its run is adopted by another task than the one that launched it."""
    action, run = planned.decision.action, planned.run
    is_adopted = action is SupervisionAction.ADOPT and run is not None and run.launched_by != supervisor.launched_by
    if is_adopted or action is SupervisionAction.GIVE_UP:
        save_decision(supervisor, planned)


def save_decision(supervisor: Supervisor, planned: SupervisionResult) -> None:
    """Save a decision as an event; one that is saved once on each occasion is not saved again."""
    record_event(supervisor.ledger, decision_event(planned.decision, planned.seen, by=supervisor.launched_by))


def _as_long_as_host_is_busy(supervisor: Supervisor, planned: SupervisionResult) -> SupervisionResult | None:
    """The result when a restart waits because this host starts others now; none when it does not wait."""
    run = planned.seen.newest_run
    if planned.decision.reason is not SupervisionReason.RESTART_DUE or run is None:
        return None
    starting = starting_on(supervisor.ledger, socket.gethostname(), within=STARTS_WITHIN)
    decision = with_room(planned.decision, starting=starting, cores=os.cpu_count() or 1, run_id=run.run_id)
    return None if decision is planned.decision else replace(planned, decision=decision)


def _launch(supervisor: Supervisor, wanted: LoadedStream, planned: SupervisionResult) -> RunObservation | None:
    """Admit a run and start its driver; none when another caller was first, or the driver cannot be started."""
    try:
        run = admit_run(
            supervisor.ledger,
            stream=wanted.name,
            mode=wanted.declaration.mode,
            declaration_digest=wanted.digest,
            launched_by=supervisor.launched_by,
            event=decision_event(planned.decision, planned.seen, by=supervisor.launched_by),
        )
    except RunAlreadyLiveError as error:
        _log.info("stream=%s run=%s was admitted meanwhile and is adopted", wanted.name, error.run_id)
        return None
    try:
        supervisor.launcher.launch(supervisor.request_for(wanted, run))
    except (LaunchError, SettingsError) as error:
        _log.error("stream=%s run=%s %s", wanted.name, run.run_id, error)
        record_end(
            supervisor.ledger,
            run.run_id,
            state=RunState.FAILED,
            exit_code=None,
            reason=_reason(error),
            failure=classify(chain_of(error)),
        )
        return None
    return find_run(supervisor.ledger, run.run_id)


def _close(supervisor: Supervisor, planned: SupervisionResult) -> None:
    """Record the end of a run without a driver; an end that its driver or its parent has recorded stays."""
    run = _live_run(planned)
    left = planned.seen.left_exit
    if left is not None:
        save_decision(supervisor, planned)
        record_end(
            supervisor.ledger,
            run.run_id,
            state=left.state,
            exit_code=left.exit_code,
            reason=left.reason,
            failure=left.failure,
        )
        return
    is_gone = planned.decision.reason is SupervisionReason.DRIVER_GONE
    if is_gone and has_ended_within(supervisor.ledger, run.run_id, EXIT_RECORD_SECONDS):
        return
    save_decision(supervisor, planned)
    record_end(supervisor.ledger, run.run_id, state=RunState.LOST, exit_code=None, reason=planned.decision.explanation)


def _stop(supervisor: Supervisor, planned: SupervisionResult) -> None:
    run = _live_run(planned)
    if planned.decision.reason is SupervisionReason.LEASE_OVER and _is_heard_again(supervisor.ledger, run):
        return
    if run.process is not None:
        save_decision(supervisor, planned)
        supervisor.launcher.stop(run.process, grace_seconds=STOP_GRACE_SECONDS)


def _take_over(supervisor: Supervisor, planned: SupervisionResult) -> None:
    run = _live_run(planned)
    if not _is_heard_again(supervisor.ledger, run):
        event = decision_event(planned.decision, planned.seen, by=supervisor.launched_by)
        take_over(supervisor.ledger, run.run_id, reason=planned.decision.explanation, event=event)


def _revoke(supervisor: Supervisor, planned: SupervisionResult) -> None:
    save_decision(supervisor, planned)
    record_end(
        supervisor.ledger,
        _live_run(planned).run_id,
        state=RunState.LOST,
        exit_code=None,
        reason=planned.decision.explanation,
    )


def _replace(supervisor: Supervisor, planned: SupervisionResult) -> None:
    event = decision_event(planned.decision, planned.seen, by=supervisor.launched_by)
    ask_to_end(supervisor.ledger, _live_run(planned).run_id, because=BECAUSE_CHANGED, event=event)


_STEPS: Mapping[SupervisionAction, Callable[[Supervisor, SupervisionResult], None]] = {
    SupervisionAction.CLOSE: _close,
    SupervisionAction.TAKE_OVER: _take_over,
    SupervisionAction.REVOKE: _revoke,
    SupervisionAction.REPLACE: _replace,
    SupervisionAction.STOP: _stop,
}
"""The actions after which the stream is observed again."""


def _live_run(planned: SupervisionResult) -> RunObservation:
    if planned.run is None:
        raise AssertionError(f"{planned.decision.action} was decided without a live run")  # a defect of the decision
    return planned.run


def _is_heard_again(ledger: Ledger, run: RunObservation) -> bool:
    """Whether a silent driver reports, or ends, before it loses its place."""

    def is_heard(seen: RunObservation) -> bool:
        return not seen.is_live or seen.heartbeat_at != run.heartbeat_at

    seen = wait_until(
        partial(find_run, ledger, run.run_id), is_heard, seconds=HEARD_AGAIN_SECONDS, poll_seconds=_POLL_SECONDS
    )
    return is_heard(seen)


def has_ended_within(ledger: Ledger, run_id: str, seconds: float) -> bool:
    """Wait for the end of a run, at most so long. Returns whether it has ended."""
    seen = wait_until(
        partial(find_run, ledger, run_id), lambda run: not run.is_live, seconds=seconds, poll_seconds=_POLL_SECONDS
    )
    return not seen.is_live


def _reason(error: SluiceError) -> str:
    return f"{type(error).__name__}: {error.message}"
