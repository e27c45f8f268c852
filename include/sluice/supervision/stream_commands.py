"""A person's commands over a stream: start, stop, restart, reset the breaker. `control_plans` shows them beforehand.

    request_start, request_stop, request_restart ──► ledger ──► the stream's task, or the reconciler within a minute

The commands of the command line and of the DAG `stream_control` ask and then supervise themselves, so that a person at
a terminal sees the end. A page only asks: a web server starts and ends no drivers, and an answer waits for none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UnhealthyError, UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import (
    DesiredStateObservation,
    find_desired_state,
    reset_failure_count,
    set_desired_state,
)
from sluice.ledger.events import EventAction, record_event
from sluice.ledger.run_values import DesiredState, RunObservation, version_numbers
from sluice.ledger.runs import ask_to_end, find_run, newest_run
from sluice.processes.deadline import Deadline, run_each
from sluice.supervision.limits import STOPPED_WITHIN
from sluice.supervision.supervision_values import SupervisionAction, SupervisionReason, command_event
from sluice.supervision.supervisor import SupervisionResult, Supervisor, has_ended_within, supervise

_LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartRequest:
    """A restart that was asked for. ending: the live run, which ends after its batch; unset when there was none."""

    desired: DesiredStateObservation
    ending: RunObservation | None


def request_start(ledger: Ledger, stream: str, *, requested_by: str) -> DesiredStateObservation:
    """Ask that a stream runs. This resets its failure count."""
    event = command_event(EventAction.START, stream, by=requested_by)
    return set_desired_state(ledger, stream, DesiredState.RUNNING, requested_by=requested_by, event=event)


def request_stop(ledger: Ledger, stream: str, *, requested_by: str) -> DesiredStateObservation:
    """Ask that a stream stops after its batch; it stays stopped until it is started again."""
    event = command_event(EventAction.STOP, stream, by=requested_by)
    return set_desired_state(ledger, stream, DesiredState.STOPPED, requested_by=requested_by, event=event)


def request_restart(ledger: Ledger, stream: str, *, requested_by: str) -> RestartRequest:
    """Ask that the live run ends after its batch and another one takes its place.

    The desired state is `running` before the run is asked to end: a person who stops the stream meanwhile has the last
    word, and the stream is started again even if this process dies in between.
    """
    run = newest_run(ledger, stream)
    live = run if run is not None and run.is_live else None
    run_id = None if live is None else live.run_id
    record_event(ledger, command_event(EventAction.RESTART, stream, by=requested_by, run_id=run_id))
    desired = set_desired_state(ledger, stream, DesiredState.RUNNING, requested_by=requested_by, event=None)
    if live is not None:
        ask_to_end(ledger, live.run_id, because=f"restarted by {requested_by}", event=None)
    return RestartRequest(desired=desired, ending=live)


def start_stream(supervisor: Supervisor, wanted: LoadedStream, *, requested_by: str) -> SupervisionResult | None:
    """Request that a stream runs, and start a continuous one when it has no driver.

    A paused DAG stays paused: the stream runs all the same, restarted by the reconciler, until the DAG is unpaused and
    paused again.

    Returns
    -------
    The result of its supervision; none for an incremental one, which its DAG runs.

    Raises
    ------
    UnhealthyError: when no driver could be started.
    """
    request_start(supervisor.ledger, wanted.name, requested_by=requested_by)
    return _start_requested(supervisor, wanted)


def _start_requested(supervisor: Supervisor, wanted: LoadedStream) -> SupervisionResult | None:
    """Start the driver of a continuous stream that was asked to run."""
    if wanted.declaration.mode == "incremental":
        return None
    result = supervise(supervisor, wanted)
    if result.run is None:
        raise UnhealthyError(result.decision.explanation)
    return result


def restart_stream(
    supervisor: Supervisor, wanted: LoadedStream, *, requested_by: str, on_look: Callable[[str], None]
) -> SupervisionResult | None:
    """End the live run between two batches and start the stream again, with its declaration as it is now.

    The desired state stays `running`, so the stream is started again even if this process dies in between. The run
    of an incremental stream is only ended; its DAG starts the next.

    Returns
    -------
    The result of its supervision; none for an incremental one.

    Raises
    ------
    UnhealthyError: as `start_stream` and `stop_stream` raise it, and when the stream was stopped meanwhile.
    """
    request = request_restart(supervisor.ledger, wanted.name, requested_by=requested_by)
    if request.ending is not None:
        if wanted.declaration.mode == "incremental":
            _await_increment(supervisor, wanted, on_look=on_look)
        else:
            _await_end_of(supervisor, wanted, request.ending, on_look=on_look)
        _require_unchanged(supervisor, wanted.name, request.desired)
    return _start_requested(supervisor, wanted)


def reset_breaker(supervisor: Supervisor, wanted: LoadedStream, *, requested_by: str) -> DesiredStateObservation:
    """Reset the failure count of a stream. Its desired state and its suspension stay."""
    event = command_event(EventAction.RESET_BREAKER, wanted.name, by=requested_by)
    return reset_failure_count(supervisor.ledger, wanted.name, requested_by=requested_by, event=event)


def stop_stream(
    supervisor: Supervisor, wanted: LoadedStream, *, requested_by: str, on_look: Callable[[str], None]
) -> RunObservation | None:
    """Request that a stream stops, and wait until its run has ended; a driver that does not obey in time is ended.

    The run of an incremental stream is only waited for: it belongs to the Airflow task that started it.

    Parameters
    ----------
    on_look: called now and then with a sentence that says what is waited for.

    Returns
    -------
    The newest run, ended; none when the stream never ran.

    Raises
    ------
    UnhealthyError: when the run does not end, or whether its driver is alive is unknown.
    """
    request_stop(supervisor.ledger, wanted.name, requested_by=requested_by)
    if wanted.declaration.mode == "incremental":
        _await_increment(supervisor, wanted, on_look=on_look)
    else:
        _await_driver(supervisor, wanted, on_look=on_look)
    return newest_run(supervisor.ledger, wanted.name)


def _require_unchanged(supervisor: Supervisor, name: str, requested: DesiredStateObservation) -> None:
    """Refuse to start a stream again that was stopped while its run was awaited."""
    desired = find_desired_state(supervisor.ledger, name)
    if desired.changed_at != requested.changed_at and desired.effective_state is DesiredState.STOPPED:
        raise UnhealthyError(
            f"Stream {name} was asked to stop{desired.why_stopped} while it was restarted; it stays stopped.",
            next_step=f"`sluice stream start {name}` starts it.",
        )


def _await_driver(supervisor: Supervisor, wanted: LoadedStream, *, on_look: Callable[[str], None]) -> None:
    while True:
        result = supervise(supervisor, wanted)
        if result.decision.action is SupervisionAction.FINISH:
            return
        if result.decision.reason is SupervisionReason.DRIVER_UNKNOWN or result.run is None:
            raise UnhealthyError(result.decision.explanation)
        on_look(result.decision.explanation)
        _await_end(supervisor, result.run, result.decision.delay)


def _await_end_of(
    supervisor: Supervisor, wanted: LoadedStream, run: RunObservation, *, on_look: Callable[[str], None]
) -> None:
    """Wait until a run that was asked to end has ended; the next one may have been started by then."""
    while find_run(supervisor.ledger, run.run_id).is_live:
        result = supervise(supervisor, wanted)
        if result.decision.reason is SupervisionReason.DRIVER_UNKNOWN:
            raise UnhealthyError(result.decision.explanation)
        on_look(result.decision.explanation)
        _await_end(supervisor, run, result.decision.delay)


def _await_end(supervisor: Supervisor, run: RunObservation, patience: timedelta | None) -> None:
    """Wait for the end of a run until the next look at it is due."""
    has_ended_within(supervisor.ledger, run.run_id, (patience or timedelta(seconds=_LOOK_SECONDS)).total_seconds())


def _await_increment(supervisor: Supervisor, wanted: LoadedStream, *, on_look: Callable[[str], None]) -> None:
    run = newest_run(supervisor.ledger, wanted.name)
    if run is None or not run.is_live:
        return
    on_look(f"Run {run.run_id} was asked to stop and finishes its batch.")
    if not has_ended_within(supervisor.ledger, run.run_id, STOPPED_WITHIN.total_seconds()):
        raise UnhealthyError(
            f"Run {run.run_id} of {wanted.name} was asked to stop and has not ended; launched by {run.launched_by}.",
            next_step="See its task in Airflow.",
        )


_A_VERSION = re.compile(r"\d+(\.\d+)*")

_WITHIN = timedelta(days=1)
"""How long all of them may take together: each waits for the end of a batch."""


def started_before(
    version: str, declared: Iterable[LoadedStream], newest: Iterable[RunObservation]
) -> tuple[LoadedStream, ...]:
    """The continuous streams whose live run was started by an older version, by name. Pure.

    Parameters
    ----------
    version: the first version that is not older. newest: the newest run of each stream.

    Raises
    ------
    UsageError: when that is no version.
    """
    if _A_VERSION.fullmatch(version) is None:
        raise UsageError(f"{version} is no version; write it as numbers with dots, for example 0.3.0.")
    runs = {run.stream: run for run in newest}
    return tuple(
        stream
        for stream in sorted(declared, key=lambda one: one.name)
        if stream.declaration.mode == "continuous"
        and (run := runs.get(stream.name)) is not None
        and run.is_live
        and version_numbers(run.version) < version_numbers(version)
    )


def restart_each(
    supervisor: Supervisor,
    streams: Sequence[LoadedStream],
    *,
    at_once: int,
    requested_by: str,
    on_look: Callable[[str], None],
) -> Mapping[str, SupervisionResult | Exception | None]:
    """Restart streams, at most so many at a time. Returns the result of each, or what it raised: one that fails keeps
    no other one from being restarted."""
    steps = {
        stream.name: partial(restart_stream, supervisor, stream, requested_by=requested_by, on_look=on_look)
        for stream in streams
    }
    return run_each(steps, at_once=at_once, deadline=Deadline.after(_WITHIN.total_seconds()))
