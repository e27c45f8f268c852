"""What a person does in Airflow to a stream that runs: clear, mark, trigger twice, pause."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.faults.supervision.measuring import seconds_since
from tests.faults.supervision.orders import (
    await_deferred,
    clear,
    is_paused,
    mark,
    pause,
    remove_dag_run,
    supervising_task,
)
from tests.faults.supervision.report import Recovery
from tests.faults.supervision.scene import NotRecoveredError, Scene

from sluice.ledger.airflow_owner import find_dag_pause
from sluice.ledger.desired_states import find_desired_state
from sluice.ledger.run_values import RunObservation

_SECOND_RUN_WATCHED_SECONDS = 10.0
"""How long a second DAG run is watched: five looks of the supervisor."""


def clear_task(scene: Scene, stream: str) -> Recovery:
    """The next attempt adopts the driver that lives."""
    run, task = scene.run(stream), await_deferred(scene, stream)
    cleared_at = time.time()
    clear(scene, stream, task.dag_run)
    await_deferred(scene, stream, attempt=task.attempt + 1, dag_run=task.dag_run)
    recovered = seconds_since(cleared_at)
    _require_same_driver(scene, run)
    return Recovery(detected_seconds=None, recovered_seconds=recovered, is_untouched=True)


def mark_failed(scene: Scene, stream: str) -> Recovery:
    """The stream stops after its batch, and its DAG is paused; unpaused, it goes on.

    Airflow pauses a DAG only when the failed run is the newest. Where another one was in the queue already, as clearing
    a task leaves it there, that one waits for a person as after `mark_success`, and is cleared here.
    """
    run, task = scene.run(stream), await_deferred(scene, stream)
    marked_at = time.time()
    mark(scene, stream, task.dag_run, "failed")
    _require_requested_end(scene.await_end(run))
    detected = seconds_since(marked_at)

    def go_on() -> Callable[[], None] | None:
        if is_paused(scene, stream):
            return lambda: pause(scene, stream, is_paused=False)
        waiting = supervising_task(scene, stream)
        if waiting is None or waiting.dag_run == task.dag_run or waiting.state != "deferred":
            return None
        return lambda: clear(scene, stream, waiting.dag_run)

    by = scene.wait_for(go_on, f"the DAG {stream} is paused, or its next run waits")
    return _gone_on(scene, run, detected_seconds=detected, by=by)


def mark_success(scene: Scene, stream: str) -> Recovery:
    """The stream stops after its batch, the next DAG run waits; cleared, it goes on."""
    run, task = scene.run(stream), await_deferred(scene, stream)
    marked_at = time.time()
    mark(scene, stream, task.dag_run, "success")
    _require_requested_end(scene.await_end(run))
    detected = seconds_since(marked_at)
    waiting = scene.wait_for(
        lambda: next_task if (next_task := await_deferred(scene, stream)).dag_run != task.dag_run else None,
        f"the next DAG run of {stream} waits",
    )
    return _gone_on(scene, run, detected_seconds=detected, by=lambda: clear(scene, stream, waiting.dag_run))


def trigger_twice(scene: Scene, stream: str) -> Recovery:
    """A second DAG run by hand starts no second driver: it waits in the queue."""
    run = scene.run(stream)
    await_deferred(scene, stream)
    triggered_at = time.time()
    second = scene.airflow.trigger(stream, conf={})
    time.sleep(_SECOND_RUN_WATCHED_SECONDS)  # nothing may happen meanwhile, which nothing can announce
    _require_same_driver(scene, run)
    recovered = seconds_since(triggered_at)
    remove_dag_run(scene, stream, second.run_id)
    return Recovery(detected_seconds=None, recovered_seconds=recovered, is_untouched=True)


def pause_dag(scene: Scene, stream: str) -> Recovery:
    """The stream drains within a minute; unpaused, it goes on."""
    _await_look_since_start(scene, stream)
    run = scene.run(stream)
    paused_at = time.time()
    pause(scene, stream, is_paused=True)
    _require_requested_end(scene.await_end(run))
    detected = seconds_since(paused_at)
    return _gone_on(scene, run, detected_seconds=detected, by=lambda: pause(scene, stream, is_paused=False))


def _await_look_since_start(scene: Scene, stream: str) -> None:
    """Wait until the reconciler has seen the unpaused DAG since the stream was requested, which each fault begins with.

    A pause beside a start that no look parts from it counts as the older one.
    """
    ledger = scene.platform.ledger

    def is_known() -> bool:
        known, requested_at = find_dag_pause(ledger, stream), find_desired_state(ledger, stream).requested_at
        if known is None or known.is_paused:
            return False
        return requested_at is None or known.observed_at > requested_at

    scene.wait_for(is_known, f"the reconciler has looked at the DAG {stream}")


def _gone_on(scene: Scene, run: RunObservation, *, detected_seconds: float, by: Callable[[], None]) -> Recovery:
    """Let the stream go on, and wait for what it publishes then."""
    asked_at = time.time()
    by()
    published = scene.await_publication(run.stream, token=run.token + 1, after_seconds=asked_at)
    return Recovery(detected_seconds=detected_seconds, recovered_seconds=published.at_seconds - asked_at)


def _require_same_driver(scene: Scene, run: RunObservation) -> None:
    scene.await_publication(run.stream, token=run.token, after_seconds=time.time())
    after = scene.run(run.stream)
    if (after.run_id, after.process) != (run.run_id, run.process):
        raise NotRecoveredError(f"{run.stream} has another driver: run {after.run_id} after {run.run_id}.")


def _require_requested_end(run: RunObservation) -> None:
    if run.reason != "stopped as requested":
        raise NotRecoveredError(f"Run {run.run_id} of {run.stream} ended otherwise than requested: {run.reason}.")
