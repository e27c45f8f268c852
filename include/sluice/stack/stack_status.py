"""`status`: the services as they are now."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime

from sluice.processes.deadline import wait_until
from sluice.processes.living_processes import LivingProcess, observe_processes
from sluice.stack.credentials import read_credentials
from sluice.stack.environment import load_environment
from sluice.stack.folder import stack_folder
from sluice.stack.membership import stack_members
from sluice.stack.port_choice import read_ports
from sluice.stack.process_records import ProcessRecord, read_records, read_selection
from sluice.stack.services import all_services
from sluice.stack.stack_plan import Health, Service, StackPlan
from sluice.stack.tools import tools_of

_ANSWER_SECONDS = 5.0
"""How long a living process may take to give a healthy answer. On a busy machine the first one may come late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One service as it is now.

    Parameters
    ----------
    name: the service.
    is_running: whether the process that `up` started lives.
    is_healthy: whether it also gives a real answer.
    pid: its process id while it runs.
    port: the port that people connect to; None when it listens on none.
    since: when it was started, while it runs.
    detail: why it is not healthy.
    """

    name: str
    is_running: bool
    is_healthy: bool
    pid: int | None
    port: int | None
    since: datetime | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """The stack as it is now: the services that `up` was asked for, and the number of processes, drivers included."""

    services: tuple[ServiceStatus, ...]
    processes: int

    @property
    def is_healthy(self) -> bool:
        """Whether there is a stack and all its services are healthy."""
        return bool(self.services) and all(service.is_healthy for service in self.services)


def observe_stack() -> StackStatus:
    """Ask every service that `up` was asked for, and wait a few seconds for a healthy answer.

    Raises
    ------
    StackError: when the stack's own files are damaged.
    """
    folder = stack_folder()
    services = all_services()
    everything = observe_processes()
    members = stack_members(folder, everything=everything, services=services.values())
    selection = read_selection(folder)
    selected = [service for name, service in services.items() if name in selection]
    records = read_records(folder)
    if not records:
        return StackStatus(services=tuple(_stopped(s, "was stopped") for s in selected), processes=len(members))
    plan = _recorded_plan()
    with ThreadPoolExecutor(max_workers=max(1, len(selected))) as pool:
        seen = pool.map(lambda s: _observe(s, records.get(s.name), plan=plan, everything=everything), selected)
        return StackStatus(services=tuple(seen), processes=len(members))


def _recorded_plan() -> StackPlan:
    folder = stack_folder()
    environment = load_environment(folder.data)
    return StackPlan(
        home=folder.data.parent,
        folder=folder,
        ports=read_ports(folder.ports),
        credentials=read_credentials(folder.credentials),
        tools=tools_of(environment),
        environment=environment,
    )


def _stopped(service: Service, detail: str) -> ServiceStatus:
    return ServiceStatus(
        name=service.name, is_running=False, is_healthy=False, pid=None, port=None, since=None, detail=detail
    )


def _observe(
    service: Service, record: ProcessRecord | None, *, plan: StackPlan, everything: Mapping[int, LivingProcess]
) -> ServiceStatus:
    if record is None:
        return _stopped(service, "was never started")
    if not record.is_alive(everything):
        return _stopped(service, f"its process {record.pid} is gone")
    health: Health = wait_until(
        lambda: service.probe(plan, record.since), lambda seen: seen.is_healthy, seconds=_ANSWER_SECONDS
    )
    return ServiceStatus(
        name=service.name,
        is_running=True,
        is_healthy=health.is_healthy,
        pid=record.pid,
        port=plan.ports[service.ports[0].name] if service.ports else None,
        since=record.since,
        detail=health.detail,
    )
