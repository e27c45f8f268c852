"""The steps of one `up`: leave a healthy service as it is, start the others, and wait until they give a real answer.

Their processes are started detached, so that they outlive the command.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sluice.errors import StackError
from sluice.processes.deadline import wait_until
from sluice.processes.host_processes import find_process
from sluice.stack.environment import process_environment
from sluice.stack.services import needs_of
from sluice.stack.stack_plan import Command, Health, HeldPorts, Service, StackPlan, Step, holder_of, is_free
from sluice.stack.stack_records import ProcessRecord, fingerprint, read_records, write_record
from sluice.stack.stack_status import Display, last_line
from sluice.stack.stopping import end_service, forget_service

_TOOL_SECONDS = 300.0
"""How long a preparation's command may take. The longest, Airflow's first migration, takes 10 seconds on two cores."""

_RELEASE_SECONDS = 2.0

_POLL_SECONDS = 0.1

_LONGEST_LOG_BYTES = 16 * 1024**2
"""A log that has grown beyond this is renamed once when its service starts again."""

_PRIVATE_FILES = 0o077
"""Whatever a service or a driver that it starts creates, only its user can read: logs, shuffles, sockets in /tmp."""

_children: dict[int, subprocess.Popen[bytes]] = {}
"""The children of this very process: only a parent can collect the exit code of its child."""


class PortTakenError(StackError):
    """Another process has taken a port of a service between the choice of the port and the service's start."""


class CancelledStepError(Exception):
    """The step stops because its `up` stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStart:
    """What `up` did about one service: `started`, or `already running`."""

    name: str
    outcome: str
    pid: int


@dataclass(slots=True, kw_only=True)
class StepRunner:
    """Carries out the steps of one `up`, each in a thread of its own.

    Parameters
    ----------
    plan: the stack.
    held: the ports that are held until their service starts.
    display: shows the progress.
    start_id: which `up` this is; every process that it starts carries it.
    done: for each step, set when the step is done.
    cancelled: set when the `up` stops.
    started: for each service that was started, when.
    outcomes: for each service that is done, what was done about it.
    """

    plan: StackPlan
    held: HeldPorts
    display: Display
    start_id: str
    done: Mapping[str, threading.Event]
    cancelled: threading.Event = field(default_factory=threading.Event)
    started: dict[str, datetime] = field(default_factory=dict)
    outcomes: dict[str, ServiceStart] = field(default_factory=dict)

    def step(self, step: Step) -> None:
        """Wait for the steps that a step needs, then carry it out.

        Raises
        ------
        StackError: when it fails.
        CancelledStepError: when the `up` stops meanwhile.
        """
        for need in step.needs:
            self._wait_for(self.done[need])
        self.display.begin(step.name, step.title)
        try:
            outcome = self._do(step)
        except OSError as error:  # a full disk, a folder that may not be written, an answer that was cut off
            raise StackError(f"{step.title} failed: {error}.") from error
        self.display.finish(step.name, outcome)
        self.done[step.name].set()

    def _do(self, step: Step) -> str:
        if isinstance(step, Service):
            return self._ensure_service(step)
        step.run(self.plan, self._run_tool)
        return "done"

    def _wait_for(self, event: threading.Event) -> None:
        while not event.wait(_POLL_SECONDS):
            self._check_cancelled()

    def _check_cancelled(self) -> None:
        if self.cancelled.is_set():
            raise CancelledStepError

    def _pause(self, seconds: float) -> None:
        """Pause between two looks; ends the waiting when the `up` stops."""
        self.cancelled.wait(seconds)
        self._check_cancelled()

    def _ensure_service(self, service: Service) -> str:
        """Leave a healthy service as it is, or end what is left of it and start it."""
        record = read_records(self.plan.folder).get(service.name)
        if record is not None and self._may_stay(service, record):
            self.outcomes[service.name] = ServiceStart(name=service.name, outcome="already running", pid=record.pid)
            return "already running"
        end_service(service, self.plan.folder, record)
        forget_service(service, self.plan.folder)
        record = self._start_service(service)
        self._await_healthy(service, record)
        self.outcomes[service.name] = ServiceStart(name=service.name, outcome="started", pid=record.pid)
        return "started"

    def _may_stay(self, service: Service, record: ProcessRecord) -> bool:
        """Whether the recorded process lives, has the plan's settings, and is healthy or becomes healthy in time."""
        if record.fingerprint != fingerprint(service.command(self.plan)):
            return False
        since = max([record.since, *(self.started[need] for need in needs_of(service) if need in self.started)])

        def look() -> Health | None:
            """Its health; None when it does not live."""
            return service.probe(self.plan, since) if record.is_of(find_process(record.pid)) else None

        health = wait_until(
            look, lambda seen: seen is None or seen.is_healthy, seconds=service.recovery_seconds, pause=self._pause
        )
        return health is not None and health.is_healthy

    def _start_service(self, service: Service) -> ProcessRecord:
        for port in service.ports:
            for number in port.numbers(self.plan.ports[port.name]):
                self._free_port(number, service)
        service.prepare(self.plan)
        command = service.command(self.plan)
        self._check_cancelled()
        now = datetime.now(UTC)
        self.started[service.name] = now
        pid = self._start(command, log_name=service.name)
        seen = find_process(pid)
        record = ProcessRecord(
            service=service.name,
            pid=pid,
            start_ticks=seen.start_ticks if seen is not None else 0,  # 0: it has ended already
            started_at=now.isoformat(),
            fingerprint=fingerprint(command),
        )
        write_record(self.plan.folder, record)
        return record

    def _free_port(self, number: int, service: Service) -> None:
        self.held.release(number)
        # A process that another thread is just starting may hold a copy of the socket until it executes its program.
        if not wait_until(lambda: is_free(number), bool, seconds=_RELEASE_SECONDS):
            raise _port_taken(service, number)

    def _start(self, command: Command, *, log_name: str) -> int:
        environment = process_environment(command, folder=self.plan.folder, start_id=self.start_id, caller=os.environ)
        return start_process(
            command.argv,
            environment=environment,
            working_folder=command.working_folder,
            log=self.plan.folder.log(log_name),
        )

    def _await_healthy(self, service: Service, record: ProcessRecord) -> None:
        log = self.plan.folder.log(service.name)

        def look() -> Health:
            health = service.probe(self.plan, record.since)
            if not health.is_healthy and not record.is_of(find_process(record.pid)):
                numbers = (n for port in service.ports for n in port.numbers(self.plan.ports[port.name]))
                if (taken := next((number for number in numbers if not is_free(number)), None)) is not None:
                    raise _port_taken(service, taken)
                raise StackError(
                    f"{service.title} ended while it was starting (exit code {exit_code(record.pid)}): "
                    f"{last_line(log)}",
                    next_step=f"Look at {log}.",
                )
            return health

        health = wait_until(look, lambda seen: seen.is_healthy, seconds=service.start_seconds, pause=self._pause)
        if not health.is_healthy:
            raise StackError(
                f"{service.title} is not healthy after {service.start_seconds:.0f} seconds: {health.detail}.",
                next_step=f"Look at {log}.",
            )

    def _run_tool(self, log_name: str, command: Command) -> None:
        """See `sluice.stack.stack_plan.RunTool`."""
        log = self.plan.folder.log(log_name)
        pid = self._start(command, log_name=log_name)
        code = wait_until(
            lambda: exit_code(pid), lambda seen: seen is not None, seconds=_TOOL_SECONDS, pause=self._pause
        )
        if code is None:
            raise StackError(
                f"{command.argv[0]} did not end within {_TOOL_SECONDS:.0f} seconds.", next_step=f"Look at {log}."
            )
        if code != 0:
            raise StackError(
                f"{' '.join(command.argv[:3])} … failed (exit code {code}): {last_line(log)}",
                next_step=f"Look at {log}.",
            )


def _port_taken(service: Service, number: int) -> PortTakenError:
    return PortTakenError(
        f"{service.title} cannot start: port {number} is taken by {holder_of(number)}.",
        next_step="Stop that process and run `sluice stack up` again.",
    )


def start_process(argv: Sequence[str], *, environment: Mapping[str, str], working_folder: Path, log: Path) -> int:
    """Start a process in a session of its own, so that the terminal's Ctrl-C and hang-up do not reach it.

    Parameters
    ----------
    argv: the command line.
    environment: its whole environment.
    working_folder: where it runs.
    log: the file that its output is appended to.

    Returns
    -------
    Its process id.

    Raises
    ------
    StackError: when the program cannot be executed.
    """
    if log.exists() and log.stat().st_size > _LONGEST_LOG_BYTES:
        log.replace(log.with_suffix(".log.1"))
    try:
        with log.open("ab") as output:
            child = subprocess.Popen(  # noqa: S603  # the command lines are this package's own
                argv,
                env=dict(environment),
                cwd=working_folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                umask=_PRIVATE_FILES,
            )
    except OSError as error:
        raise StackError(f"{argv[0]} cannot be executed: {error}.") from error
    _children[child.pid] = child
    return child.pid


def exit_code(pid: int) -> int | None:
    """The exit code of a child of this very process; None while it runs, and for any other process."""
    child = _children.get(pid)
    return child.poll() if child else None
