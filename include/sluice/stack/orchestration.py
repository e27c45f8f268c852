"""`up`: decide everything, then start in parallel what is not running and healthy. After a failure nothing of it stays.

Each step runs in a thread of its own, which waits for the steps that it needs. Only the main thread is interrupted by
Ctrl-C. It then cancels the others, waits for them, and ends every process that this `up` has started: each of them has
the id of this `up` in its environment, so a process whose start is not recorded yet is found too.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Collection, Mapping
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from sluice.errors import StackError
from sluice.processes.host_processes import observe_processes
from sluice.settings import project_root
from sluice.stack.credentials import ensure_credentials
from sluice.stack.environment import build_environment, load_environment, write_environment
from sluice.stack.folder import (
    StackFolder,
    check_disk,
    exclusive,
    interruptible,
    stack_folder,
    uninterruptible,
    write_private,
)
from sluice.stack.services import all_services, select_steps
from sluice.stack.stack_plan import HeldPorts, Service, StackPlan, Step, Tools, find_tools, holder_of
from sluice.stack.stack_records import (
    choose_stack_ports,
    port_requests,
    read_ports,
    read_records,
    write_ports,
    write_selection,
)
from sluice.stack.stack_status import Display
from sluice.stack.starting import PortTakenError, ServiceStart, StepRunner
from sluice.stack.stopping import end_stack, forget_service, users_of_declarations
from sluice.stack.surroundings import (
    Surroundings,
    SurroundingsDecision,
    decide_surroundings,
    demo_pipelines,
    remembered_in,
    surroundings_of,
)

_PORT_CHOICES = 3
"""How often ports are chosen: a port is held until its service starts, and another program may take it before the
service listens, most of all where several stacks start at the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpReport:
    """The result of an `up`, how long it took, and how its declarations and variables differ from the previous ones."""

    services: tuple[ServiceStart, ...]
    airflow_url: str
    seconds: float
    declarations: str
    differences: tuple[str, ...]


class PlannedAction(StrEnum):
    """What `up` would do in a step."""

    START = "start"
    CHECK = "leave as it is when it is healthy and its settings have not changed, otherwise restart"
    PREPARE = "make what is missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStart:
    """One step of a planned `up`."""

    name: str
    title: str
    action: PlannedAction


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUp:
    """What `up` would do: its steps in their order, and how declarations and variables would differ from before."""

    steps: tuple[PlannedStart, ...]
    declarations: str
    differences: tuple[str, ...]


def up(
    *,
    services: Collection[str] | None = None,
    here: Surroundings | None = None,
    replaces: bool = False,
    display: Display,
) -> UpReport:
    """Start the services that are not running and healthy.

    Parameters
    ----------
    services: the services, to which those that they need are added; all when None.
    here: the declarations and variables of the caller; those of this process and its working folder when None.
    replaces: whether they replace those that the stack remembers, also while it runs.
    display: shows the progress.

    Raises
    ------
    UsageError: when there is no service of a given name.
    SettingsError: when the file of the caller's project is wrong.
    StackError: when a service cannot be started, or the stack runs with other declarations or variables than the
        caller's. Nothing that this call has started is running then.
    KeyboardInterrupt: when it was interrupted; again nothing that it has started is running.
    """
    begun = time.monotonic()
    steps = select_steps(services)
    folder = stack_folder()
    check_disk(folder.data)
    tools = find_tools(stack_home())
    here = here or _own_surroundings()
    folder.create()
    with interruptible(), exclusive(folder):
        _end_interrupted_start(folder)
        decision = _decide_surroundings(folder, here=here, replaces=replaces)
        for sentence in decision.sentences:
            display.note(sentence)
        for choices_left in reversed(range(_PORT_CHOICES)):
            try:
                plan, started = _start(folder, steps, tools=tools, surroundings=decision.chosen, display=display)
                break
            except PortTakenError as error:
                if not choices_left:
                    raise
                display.note(f"{error} Trying another port …")
    url = plan.url("airflow") if "airflow-api-server" in steps else ""
    return UpReport(
        services=tuple(started),
        airflow_url=url,
        seconds=time.monotonic() - begun,
        declarations=plan.environment["SLUICE_PIPELINES"],
        differences=decision.sentences,
    )


def _start(
    folder: StackFolder, steps: Mapping[str, Step], *, tools: Tools, surroundings: Surroundings, display: Display
) -> tuple[StackPlan, list[ServiceStart]]:
    ports = _decide_ports(steps, folder, display=display)
    with HeldPorts(n for request in port_requests(steps) for n in request.numbers(ports[request.name])) as held:
        plan = _decide_plan(folder, tools=tools, ports=ports, surroundings=surroundings)
        write_environment(folder.environment, plan.environment)
        # The services of an earlier `up` stay selected until `down`.
        write_selection(folder, sorted({*all_services()} & {*steps, *read_records(folder)}))
        return plan, _run_steps(plan, steps, held=held, display=display)


def plan_up(*, services: Collection[str] | None = None, replaces: bool = False) -> PlannedUp:
    """What an `up` would do now, after the same checks. Nothing is written or started.

    Parameters
    ----------
    services, replaces: see `up`.

    Raises
    ------
    UsageError, SettingsError, PrerequisiteError, StackError: as `up`, for everything that can be checked before a
        start.
    """
    steps = select_steps(services)
    folder = stack_folder()
    check_disk(folder.data)
    find_tools(stack_home())
    decision = _decide_surroundings(folder, here=_own_surroundings(), replaces=replaces)
    choose_stack_ports(steps, folder)
    everything = observe_processes()
    records = read_records(folder)

    def action(step: Step) -> PlannedAction:
        if not isinstance(step, Service):
            return PlannedAction.PREPARE
        record = records.get(step.name)
        return PlannedAction.CHECK if record is not None and record.is_alive(everything) else PlannedAction.START

    return PlannedUp(
        steps=tuple(PlannedStart(name=step.name, title=step.title, action=action(step)) for step in steps.values()),
        declarations=str(decision.chosen.pipelines or demo_pipelines(stack_home())),
        differences=decision.sentences,
    )


def _own_surroundings() -> Surroundings:
    return surroundings_of(os.environ, working_folder=Path.cwd())


def _decide_surroundings(folder: StackFolder, *, here: Surroundings, replaces: bool) -> SurroundingsDecision:
    remembered = None
    if folder.environment.exists():
        try:
            remembered = remembered_in(load_environment(folder.data))
        except StackError:
            if not replaces:
                raise
    is_in_use = bool(users_of_declarations(folder))
    return decide_surroundings(
        here=here,
        remembered=remembered,
        demo=demo_pipelines(stack_home()),
        is_in_use=is_in_use,
        replaces=replaces,
    )


def stack_home() -> Path:
    """The root of the product that a stack runs."""
    return Path(os.environ.get("SLUICE_HOME") or project_root()).resolve()


def _decide_plan(
    folder: StackFolder, *, tools: Tools, ports: Mapping[str, int], surroundings: Surroundings
) -> StackPlan:
    credentials = ensure_credentials(folder, is_new=not (folder.data / "postgres").exists())
    plan = StackPlan(
        home=stack_home(), folder=folder, ports=ports, credentials=credentials, tools=tools, environment={}
    )
    return replace(plan, environment=build_environment(plan, surroundings=surroundings))


def _start_note(folder: StackFolder) -> Path:
    return folder.data / "starting"


def _end_interrupted_start(folder: StackFolder) -> None:
    """End the processes of an `up` that was killed before it could clean up. Some of them may not be recorded."""
    note = _start_note(folder)
    if note.exists():
        end_stack(folder, start=note.read_text().strip())
        note.unlink()


def _decide_ports(steps: Mapping[str, Step], folder: StackFolder, *, display: Display) -> Mapping[str, int]:
    """Choose ports, record those of the selected services, and show which services had to move."""
    chosen = choose_stack_ports(steps, folder)
    for name, port in chosen.given_up.items():
        display.note(
            f"Port {port}, recorded for {name}, was taken by {holder_of(port)}: {name} moves to {chosen.ports[name]}."
        )
    selected = {request.name: chosen.ports[request.name] for request in port_requests(steps)}
    write_ports(folder.ports, {**read_ports(folder.ports), **selected})
    return chosen.ports


def _run_steps(plan: StackPlan, steps: Mapping[str, Step], *, held: HeldPorts, display: Display) -> list[ServiceStart]:
    done = {name: threading.Event() for name in steps}
    run = StepRunner(plan=plan, held=held, display=display, start_id=secrets.token_hex(8), done=done)
    write_private(_start_note(plan.folder), run.start_id)
    try:
        _await_all(run, steps)
        _start_note(plan.folder).unlink()
    except BaseException:  # Ctrl-C too: however this `up` ends early, nothing that it started may stay
        with uninterruptible():
            display.note("Stopping the processes that this `up` has started …")
            end_stack(plan.folder, start=run.start_id)
            for name in run.started:
                forget_service(all_services()[name], plan.folder)
            _start_note(plan.folder).unlink(missing_ok=True)
        raise
    return [run.outcomes[name] for name in steps if name in run.outcomes]


def _await_all(run: StepRunner, steps: Mapping[str, Step]) -> None:
    with ThreadPoolExecutor(max_workers=len(steps), thread_name_prefix="stack") as pool:
        try:
            futures: list[Future[None]] = [pool.submit(run.step, step) for step in steps.values()]
            pending = set(futures)
            failure: BaseException | None = None
            while pending and failure is None:
                # With a timeout: a wait without one would delay Ctrl-C on some platforms.
                finished, pending = wait(pending, timeout=1.0, return_when=FIRST_EXCEPTION)
                failure = next((error for f in finished if (error := f.exception()) is not None), None)
            if failure is not None:
                raise failure
        except BaseException:
            with uninterruptible():
                run.cancelled.set()  # the threads see it at their next poll, and the pool waits for them
                pool.shutdown(wait=True)
            raise
