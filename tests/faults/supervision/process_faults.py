"""Faults that befall processes: a driver is killed or frozen, a component of Airflow or a worker of it dies."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress

import psutil
from sqlalchemy import func, update
from tests.faults.supervision.measuring import seconds_since
from tests.faults.supervision.orders import await_deferred, clear, task_instance_id
from tests.faults.supervision.report import Recovery
from tests.faults.supervision.scene import NotRecoveredError, Scene

from sluice.demo.report import STREAMS
from sluice.ledger.batches import recent_batches
from sluice.ledger.run_leases import Lease, Run
from sluice.ledger.run_values import RunObservation
from sluice.processes.host_processes import observe_process
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.stack.folder import stack_folder
from sluice.stack.orchestration import up
from sluice.stack.stack_records import read_records
from sluice.stack.stack_status import SilentDisplay, observe_stack

LONGEST_MOMENT_SECONDS = 8.0
"""A kill comes at a random moment within so long: some batches of any of the demo's streams."""

GRANTED_SECONDS = 20.0
"""What a recovery may take beyond the driver's own start and two triggers."""

_SHOWN_AT_LEAST = 24
"""This many characters of a task's id distinguish it from others. A worker shows as many as the command line of the
scheduler leaves room for, which depends on the length of the project's path."""

ANOTHER_HOST = "a-host-that-is-cut-off"
_TAKEN_UP_WITHIN_SECONDS = 60.0
"""How long a cleared task is looked for in a worker before it is cleared again."""


def kill_driver(scene: Scene, stream: str, *, moment_seconds: float, is_whole_group: bool) -> Recovery:
    """SIGKILL after a moment: of the driver's first process, or of all of them at once."""
    time.sleep(moment_seconds)  # the random moment is what is tested
    run = scene.run(stream)
    pid = process_of(run).pid
    killed_at = time.time()
    if is_whole_group:
        os.killpg(pid, signal.SIGKILL)
    else:
        os.kill(pid, signal.SIGKILL)
    ended = scene.await_end(run)
    published = scene.await_publication(stream, token=run.token + 1, after_seconds=killed_at)
    start_seconds = seconds_of_start(scene, stream, run_id=published.run_id)
    return Recovery(
        detected_seconds=_ended_seconds(ended) - killed_at,
        recovered_seconds=published.at_seconds - killed_at,
        start_seconds=start_seconds,
        bound_seconds=start_seconds + 2 * scene.trigger_seconds(stream) + GRANTED_SECONDS,
    )


def freeze_driver(scene: Scene, stream: str) -> Recovery:
    """SIGSTOP until the lease runs out: the platform ends the frozen driver itself; SIGCONT then finds no process."""
    run = scene.run(stream)
    process = process_of(run)
    stopped_at = time.time()
    os.killpg(process.pid, signal.SIGSTOP)
    ended = scene.await_end(run)
    published = scene.await_publication(stream, token=run.token + 1, after_seconds=stopped_at)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGCONT)
    if observe_process(process) is not ProcessState.GONE:
        raise NotRecoveredError(f"The frozen driver {process.pid} of {stream} outlived its replacement.")
    return Recovery(
        detected_seconds=_ended_seconds(ended) - stopped_at, recovered_seconds=published.at_seconds - stopped_at
    )


def wake_zombie(scene: Scene, stream: str) -> Recovery:
    """SIGSTOP within a batch, take-over by another run while the driver cannot be seen, SIGCONT of the zombie.

    The drill records in the ledger that the driver's host is out of reach and that its lease has expired: so the
    zombie wakes with a lease that is good by its own clock, and only the fence on the table stands against it.
    """
    time.sleep(scene.lots.uniform(0, LONGEST_MOMENT_SECONDS))  # the random moment is what is tested
    run = scene.run(stream)
    process = process_of(run)
    stopped_at = time.time()
    os.killpg(process.pid, signal.SIGSTOP)
    with scene.platform.ledger.transaction() as connection:
        connection.execute(update(Run).where(Run.run_id == run.run_id).values({Run.process_host: ANOTHER_HOST}))
        connection.execute(update(Lease).where(Lease.run_id == run.run_id).values(expires_at=func.now()))
    ended = scene.await_end(run)
    published = scene.await_publication(stream, token=run.token + 1, after_seconds=stopped_at)
    os.killpg(process.pid, signal.SIGCONT)
    scene.wait_for(
        lambda: observe_process(process) is ProcessState.GONE,
        f"the zombie of {stream} ends by itself",
    )
    scene.await_publication(stream, token=run.token + 1, after_seconds=time.time())
    return Recovery(
        detected_seconds=_ended_seconds(ended) - stopped_at,
        recovered_seconds=published.at_seconds - stopped_at,
        zombies=1,
    )


def kill_component(scene: Scene, service: str) -> Recovery:
    """Kill -9 of an Airflow component with all its children; it is started again, as an init would. Drivers live on."""
    before = {stream: scene.run(stream) for stream in STREAMS}
    leader = read_records(stack_folder())[service].pid
    killed_at = time.time()
    for process in _session(leader):
        with suppress(psutil.NoSuchProcess):
            process.kill()
    scene.wait_for(lambda: not _is_healthy(service), f"the stack misses {service}")
    detected = seconds_since(killed_at)
    up(services=None, display=SilentDisplay())
    _require_untouched(scene, before)
    return Recovery(detected_seconds=detected, recovered_seconds=seconds_since(killed_at), is_untouched=True)


def kill_worker(scene: Scene, stream: str) -> Recovery:
    """Kill -9 of the worker that runs a stream's task; the stream lives on, the other workers take tasks, and the task
    itself comes back."""
    before = {one: scene.run(one) for one in STREAMS}
    worker = scene.wait_for(lambda: _caught_worker(scene, stream), f"a worker runs the task of {stream}")
    killed_at = time.time()
    for process in [*worker.children(recursive=True), worker]:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    scene.wait_for(lambda: not _lives(worker), "the worker is dead")
    detected = seconds_since(killed_at)
    other = next(one for one in STREAMS if one != stream)
    task = await_deferred(scene, other)
    clear(scene, other, task.dag_run)
    await_deferred(scene, other, attempt=task.attempt + 1)
    await_deferred(scene, stream)
    _require_untouched(scene, before)
    return Recovery(detected_seconds=detected, recovered_seconds=seconds_since(killed_at), is_untouched=True)


def _require_untouched(scene: Scene, before: dict[str, RunObservation]) -> None:
    """Every driver is still the same one and publishes."""
    for stream, run in before.items():
        scene.await_publication(stream, token=run.token, after_seconds=time.time())
        after = scene.run(stream)
        if (after.run_id, after.process) != (run.run_id, run.process):
            raise NotRecoveredError(f"{stream} has another driver: run {after.run_id} after {run.run_id}.")


def _is_healthy(service: str) -> bool:
    return next(one.is_healthy for one in observe_stack().services if one.name == service)


def _session(leader: int) -> list[psutil.Process]:
    """The processes of a session; a driver that was started from it has one of its own."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == leader:
                found.append(process)
    return found


def _caught_worker(scene: Scene, stream: str) -> psutil.Process | None:
    """The worker that runs the task of a stream, which is cleared for that; none when it was too quick to be seen."""
    scheduler = read_records(stack_folder())["airflow-scheduler"].pid
    task = await_deferred(scene, stream)
    clear(scene, stream, task.dag_run)
    instance = task_instance_id(scene, stream, task.dag_run)
    deadline = time.monotonic() + _TAKEN_UP_WITHIN_SECONDS
    while time.monotonic() < deadline:
        if (worker := _busy_worker(scheduler, instance)) is not None:
            return worker
        time.sleep(0.05)
    return None


def _busy_worker(scheduler: int, instance: str) -> psutil.Process | None:
    for process in _session(scheduler):
        with suppress(psutil.NoSuchProcess):
            shown = " ".join(process.cmdline()).partition("airflow worker -- LocalExecutor: ")[2].strip()
            if len(shown) >= _SHOWN_AT_LEAST and instance.startswith(shown):
                return process
    return None


def _lives(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def process_of(run: RunObservation) -> ProcessIdentity:
    """The process of a run's driver."""
    if run.process is None:
        raise NotRecoveredError(f"Run {run.run_id} of {run.stream} has no process.")
    return run.process


def _ended_seconds(run: RunObservation) -> float:
    """When the ledger recorded the end, since the epoch: its clock is this host's."""
    if run.ended_at is None:
        raise AssertionError(f"{run.run_id} has not ended")
    return run.ended_at.timestamp()


def seconds_of_start(scene: Scene, stream: str, *, run_id: str) -> float:
    """From the admission of a run to the trigger of its first batch, as the ledger has both."""

    def first_trigger() -> float | None:
        run = scene.run(stream)
        batches = [one for one in recent_batches(scene.platform.ledger, stream, limit=1_000) if one.run_id == run_id]
        if run.run_id != run_id:
            raise NotRecoveredError(f"Run {run_id} of {stream} was replaced by {run.run_id} while it was measured.")
        return min((one.started_at - run.launched_at).total_seconds() for one in batches) if batches else None

    return scene.wait_for(first_trigger, f"the first batch of run {run_id} of {stream} is recorded")
