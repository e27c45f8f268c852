"""Doing the steps of one `up`: leave what is healthy, start what is not, and wait until it gives a real answer."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sluice.errors import StackError
from sluice.stack.display import Display
from sluice.stack.environment import process_environment
from sluice.stack.logs import last_line
from sluice.stack.process_records import ProcessRecord, fingerprint, read_records, write_record
from sluice.stack.service_processes import exit_code, observe_process, observe_processes, start_process
from sluice.stack.services import needs_of
from sluice.stack.stack_plan import StackPlan
from sluice.stack.step import Command, Service, Step
from sluice.stack.stopping import end_service, forget_service
from sluice.stack.tcp_ports import HeldPorts, holder_of, is_free
from sluice.stack.waiting import wait_until

_TOOL_SECONDS = 300.0
"""Bounds a preparation's command; the longest, Airflow's first migration, takes about 10 seconds on two cores."""

_RELEASE_SECONDS = 2.0

_POLL_SECONDS = 0.1


class CancelledStepError(Exception):
    """This step stops because the `up` stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStart:
    """What `up` did about one service: `started`, or `already running`."""

    name: str
    outcome: str
    pid: int


@dataclass(slots=True, kw_only=True)
class StepRunner:
    """One `up` at work."""

    plan: StackPlan
    held: HeldPorts
    display: Display
    start_id: str
    done: Mapping[str, threading.Event]
    cancelled: threading.Event = field(default_factory=threading.Event)
    started: dict[str, datetime] = field(default_factory=dict)
    outcomes: dict[str, ServiceStart] = field(default_factory=dict)

    def step(self, step: Step) -> None:
        """Do one step when the steps that it needs are done."""
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

    def _ensure_service(self, service: Service) -> str:
        """Leave a healthy service as it is; else end what is left of it and start it."""
        record = read_records(self.plan.folder).get(service.name)
        if record is not None and self._is_as_wanted(service, record):
            self.outcomes[service.name] = ServiceStart(name=service.name, outcome="already running", pid=record.pid)
            return "already running"
        end_service(service, self.plan.folder, record)
        forget_service(service, self.plan.folder)
        record = self._start_service(service)
        self._await_healthy(service, record)
        self.outcomes[service.name] = ServiceStart(name=service.name, outcome="started", pid=record.pid)
        return "started"

    def _is_as_wanted(self, service: Service, record: ProcessRecord) -> bool:
        """Whether the recorded process lives, was started with today's settings, and is healthy or gets so in time."""
        if not record.is_alive(observe_processes()) or record.fingerprint != fingerprint(service.command(self.plan)):
            return False
        since = max([record.since, *(self.started[need] for need in needs_of(service) if need in self.started)])
        deadline = time.monotonic() + service.recovery_seconds
        while not service.probe(self.plan, since).is_healthy:
            self._check_cancelled()
            if time.monotonic() > deadline or not record.is_alive(observe_processes()):
                return False
            self.cancelled.wait(_POLL_SECONDS)
        return True

    def _start_service(self, service: Service) -> ProcessRecord:
        for port in service.ports:
            for number in port.numbers(self.plan.ports[port.name]):
                self._free_port(number, service)
        service.prepare(self.plan)
        command = service.command(self.plan)
        self._check_cancelled()
        now = datetime.now(UTC)
        self.started[service.name] = now
        identity = start_process(
            command.argv,
            environment=self._environment(command),
            working_folder=command.working_folder,
            log=self.plan.folder.log(service.name),
        )
        record = ProcessRecord(
            service=service.name,
            pid=identity.pid,
            start_ticks=identity.start_ticks,
            started_at=now.isoformat(),
            fingerprint=fingerprint(command),
        )
        write_record(self.plan.folder, record)
        return record

    def _free_port(self, number: int, service: Service) -> None:
        self.held.release(number)
        # A process that another thread is starting this very moment may hold a copy of the socket until it executes.
        if not wait_until(lambda: is_free(number), bool, seconds=_RELEASE_SECONDS):
            raise StackError(
                f"{service.title} cannot start: port {number} is taken by {holder_of(number)}.",
                next_step="Stop that process and run `sluice stack up` again.",
            )

    def _environment(self, command: Command) -> dict[str, str]:
        return process_environment(command, folder=self.plan.folder, start_id=self.start_id, caller=os.environ)

    def _await_healthy(self, service: Service, record: ProcessRecord) -> None:
        deadline = time.monotonic() + service.start_seconds
        log = self.plan.folder.log(service.name)
        while not (health := service.probe(self.plan, record.since)).is_healthy:
            self._check_cancelled()
            seen = observe_process(record.pid)
            if seen is None or seen.identity != record.identity:
                code = exit_code(record.pid)
                raise StackError(
                    f"{service.title} ended while it was starting (exit code {code}): {last_line(log)}",
                    next_step=f"Look at {log}.",
                )
            if time.monotonic() > deadline:
                raise StackError(
                    f"{service.title} is not healthy after {service.start_seconds:.0f} seconds: {health.detail}.",
                    next_step=f"Look at {log}.",
                )
            self.cancelled.wait(_POLL_SECONDS)

    def _run_tool(self, log_name: str, command: Command) -> None:
        """See `sluice.stack.step.RunTool`."""
        log = self.plan.folder.log(log_name)
        identity = start_process(
            command.argv, environment=self._environment(command), working_folder=command.working_folder, log=log
        )
        deadline = time.monotonic() + _TOOL_SECONDS
        while (code := exit_code(identity.pid)) is None:
            self._check_cancelled()
            if time.monotonic() > deadline:
                raise StackError(
                    f"{command.argv[0]} did not end within {_TOOL_SECONDS:.0f} seconds.", next_step=f"Look at {log}."
                )
            self.cancelled.wait(_POLL_SECONDS)
        if code != 0:
            raise StackError(
                f"{' '.join(command.argv[:3])} … failed (exit code {code}): {last_line(log)}",
                next_step=f"Look at {log}.",
            )
