"""Supervise one continuous stream: observe, decide, act. The Airflow task and the command line both call `supervise`.

    deployment parts ──► Supervisor(ledger, launcher, request_for, launched_by)
    supervise(supervisor, wanted) ──► Supervised(decision, seen, run)

What the caller does with the answer:

| decision.action      | what it means now                  | what the caller does                                    |
|----------------------|------------------------------------|---------------------------------------------------------|
| LAUNCH, ADOPT, WAIT  | there is a run: `run`              | watch it (`calls_for_supervisor`), then supervise again |
| RESTART_LATER        | the next start is due in `delay`   | supervise again after `delay`, or at a new request      |
| FINISH               | the stream is stopped, as asked    | be done                                                 |
| GIVE_UP              | a person must look: `explanation`  | fail                                                    |

CLOSE, TAKE_OVER, REPLACE and STOP are carried out here and followed by another look, so no caller meets them. Calling
it twice at once, from anywhere, is safe: the ledger admits one run and binds it to one process.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LaunchError, LedgerError, RunAlreadyLiveError, SettingsError, SluiceError
from sluice.failures.classification import classify
from sluice.failures.error_chains import chain_of
from sluice.launching.launcher_port import Launcher, LaunchRequest
from sluice.ledger.connection import Ledger
from sluice.ledger.records.run import DesiredState, RunObservation, RunState
from sluice.ledger.runs import admit_run, ask_to_end, find_run, recent_runs, record_end, take_over
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.restart_history import RestartHistory, restart_history
from sluice.supervision.restart_policy import runs_to_look_at
from sluice.supervision.stream_observation import StreamObservation
from sluice.supervision.stream_observer import observe_stream
from sluice.supervision.supervision_decision import (
    SupervisionAction,
    SupervisionDecision,
    SupervisionReason,
    decide_supervision,
)

_log = logging.getLogger(__name__)

MOST_LOOKS = 6
"""How often one call looks: at the worst a run is stopped, closed, two launches fail, the second of them because the
first restart comes at once, and the delay is told. More would mean that runs end faster than they are looked at."""

EXIT_AWAITED_SECONDS = 10.0
"""How long the parent of a vanished driver may take to record its exit, before the run is closed without a reason."""

HEARD_AGAIN_WITHIN_SECONDS = 10.0
"""How long a silent driver is given to be heard after all before it loses its place: five heartbeats. A database whose
clock was set forward, or that was away for long, tells every lease as over until then."""

STOP_GRACE_SECONDS = 20.0
"""Between SIGTERM and SIGKILL, for a driver that did not obey the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """What supervision works with, put together by whoever composes: `sluice_airflow.composition`, `sluice.cli`.

    request_for: turns an admitted run of the wanted stream into the request that starts its driver, for example
        `functools.partial(driver_request, settings=…, connections=…)` (`sluice.launching.spark_submit`).
    launched_by: who supervises, for a person: the Airflow task, the command.
    heads: looks at the sources of streams; without it nobody judges their progress.
    """

    ledger: Ledger
    launcher: Launcher
    request_for: Callable[[LoadedStream, RunObservation], LaunchRequest]
    launched_by: str
    heads: SourceHeads | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervised:
    """Where supervision left the stream.

    decision: the newest one; its action is none of CLOSE, TAKE_OVER, REPLACE and STOP.
    seen: what it was decided on.
    run: the live run to watch; unset when there is none.
    """

    decision: SupervisionDecision
    seen: StreamObservation
    run: RunObservation | None = None


def judge(wanted: LoadedStream, *, ledger: Ledger, launcher: Launcher, asked: DesiredState | None = None) -> Supervised:
    """Look and decide, and do nothing: what `--dry-run` shows, and the first half of `supervise`.

    Parameters
    ----------
    asked: judge as if this had been asked just now; unset: what was really asked.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    seen = observe_stream(ledger, launcher, wanted.name)
    if asked is not None:
        desired = replace(seen.desired, desired_state=asked, requested_at=seen.observed_at)
        seen = replace(seen, desired=desired)
    history = _history(ledger, wanted, seen)
    decision = decide_supervision(
        wanted=wanted.declaration, digest=wanted.digest, seen=seen, history=history, now=seen.observed_at
    )
    live = seen.newest_run if seen.newest_run is not None and seen.newest_run.is_live else None
    return Supervised(decision=decision, seen=seen, run=live)


def supervise(supervisor: Supervisor, wanted: LoadedStream) -> Supervised:
    """Look, decide and act, until the stream is left with a run to watch, a delay to wait, or an end.

    Parameters
    ----------
    wanted: the stream as it is declared now.

    Raises
    ------
    LedgerError: when the ledger cannot be reached; nothing is lost by calling again.
    LaunchError: when a driver that must be stopped survives SIGKILL.
    """
    for _ in range(MOST_LOOKS):
        judged = judge(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher)
        decision = judged.decision
        _log.info(
            "stream=%s action=%s reason=%s %s", wanted.name, decision.action, decision.reason, decision.explanation
        )
        if decision.action is SupervisionAction.LAUNCH:
            launched = _launch(supervisor, wanted)
            if launched is not None:
                return Supervised(decision=decision, seen=judged.seen, run=launched)
        elif decision.action in _STEPS:
            _STEPS[decision.action](supervisor, judged)
        else:
            return judged
    raise LedgerError(
        f"Stream {wanted.name} was looked at {MOST_LOOKS} times and never came to rest; the last word was: "
        f"{decision.explanation}",
        next_step=f"See its runs: `sluice stream show {wanted.name}`.",
    )


def _history(ledger: Ledger, wanted: LoadedStream, seen: StreamObservation) -> RestartHistory:
    restart = wanted.declaration.supervision.restart
    return restart_history(
        recent_runs(ledger, wanted.name, limit=runs_to_look_at(restart, wanted.declaration.supervision.breaker)),
        digest=wanted.digest,
        stable_after=restart.stable_after,
        forgiven_at=seen.desired.changed_at,
    )


def _launch(supervisor: Supervisor, wanted: LoadedStream) -> RunObservation | None:
    """Admit a run and start its driver; none when somebody else was first, or when the driver cannot be started."""
    try:
        run = admit_run(
            supervisor.ledger,
            stream=wanted.name,
            mode=wanted.declaration.mode,
            declaration_digest=wanted.digest,
            launched_by=supervisor.launched_by,
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


def _close(supervisor: Supervisor, judged: Supervised) -> None:
    """Record the end of a run that has no driver any more; what its driver or its parent said first stays."""
    run = _live_run(judged)
    left = judged.seen.left_exit
    if left is not None:
        record_end(
            supervisor.ledger,
            run.run_id,
            state=left.state,
            exit_code=left.exit_code,
            reason=left.reason,
            failure=left.failure,
        )
        return
    is_vanished = judged.decision.reason is SupervisionReason.DRIVER_GONE
    if is_vanished and _has_ended_within(supervisor.ledger, run.run_id, EXIT_AWAITED_SECONDS):
        return
    record_end(supervisor.ledger, run.run_id, state=RunState.LOST, exit_code=None, reason=judged.decision.explanation)


def _stop(supervisor: Supervisor, judged: Supervised) -> None:
    run = _live_run(judged)
    if judged.decision.reason is SupervisionReason.LEASE_OVER and _is_heard_again(supervisor.ledger, run):
        return
    if run.process is not None:
        supervisor.launcher.stop(run.process, grace_seconds=STOP_GRACE_SECONDS)


def _take_over(supervisor: Supervisor, judged: Supervised) -> None:
    run = _live_run(judged)
    if not _is_heard_again(supervisor.ledger, run):
        take_over(supervisor.ledger, run.run_id, reason=judged.decision.explanation)


def _replace(supervisor: Supervisor, judged: Supervised) -> None:
    ask_to_end(supervisor.ledger, _live_run(judged).run_id, because="its declaration has changed")


_STEPS: Mapping[SupervisionAction, Callable[[Supervisor, Supervised], None]] = {
    SupervisionAction.CLOSE: _close,
    SupervisionAction.TAKE_OVER: _take_over,
    SupervisionAction.REPLACE: _replace,
    SupervisionAction.STOP: _stop,
}
"""What is done and then looked at again."""


def _live_run(judged: Supervised) -> RunObservation:
    if judged.run is None:
        raise AssertionError(f"{judged.decision.action} was decided without a live run")  # a defect of the decision
    return judged.run


def _is_heard_again(ledger: Ledger, run: RunObservation) -> bool:
    """Whether a silent driver is heard, or has ended, before it loses its place."""
    deadline = time.monotonic() + HEARD_AGAIN_WITHIN_SECONDS
    while (seen := find_run(ledger, run.run_id)).is_live and seen.heartbeat_at == run.heartbeat_at:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _has_ended_within(ledger: Ledger, run_id: str, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while find_run(ledger, run_id).is_live:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _reason(error: SluiceError) -> str:
    return f"{type(error).__name__}: {error.message}"
