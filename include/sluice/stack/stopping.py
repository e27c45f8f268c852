"""`down`: end a stack, or a part of it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sluice.processes.deadline import wait_until
from sluice.processes.living_processes import LivingProcess, observe_processes, with_descendants
from sluice.stack.environment import START_MARK
from sluice.stack.folder import StackFolder, exclusive, interruptible, stack_folder
from sluice.stack.port_choice import read_ports
from sluice.stack.process_records import ProcessRecord, read_records, remove_record, service_members, stack_members
from sluice.stack.service_processes import StopRule, end_processes
from sluice.stack.services import all_services
from sluice.stack.stack_plan import Service
from sluice.stack.tcp_ports import holder_of, is_free, listened_by

_OTHERS = StopRule(patience_seconds=10.0)
"""For drivers and workers: a driver may finish its batch."""


_RELEASE_SECONDS = 5.0
"""How long the kernel may take to free the ports of processes that have ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownReport:
    """How many processes a `down` has ended, and which of their ports other programs have taken meanwhile."""

    ended_processes: int
    taken_ports: tuple[str, ...] = ()


def down() -> DownReport:
    """End every process of the stack, and see whether its ports are free.

    Raises
    ------
    StackError: when a process cannot be ended.
    """
    folder = stack_folder()
    if not folder.data.is_dir():  # deleted while the stack ran, or never made: there may still be processes
        return DownReport(ended_processes=end_stack(folder))
    folder.create()
    with interruptible(), exclusive(folder):
        listened = listened_by({process.pid for process in plan_down()})
        ended = end_stack(folder)
        for service in all_services().values():
            forget_service(service, folder)
        shutil.rmtree(folder.scratch, ignore_errors=True)  # what killed drivers have left there
        taken = _taken_ports(listened)
    return DownReport(ended_processes=ended, taken_ports=taken)


def plan_down() -> tuple[LivingProcess, ...]:
    """The processes that `down` would end now, in no particular order."""
    folder = stack_folder()
    members = stack_members(folder, everything=observe_processes(), services=all_services().values())
    return tuple(members.values())


def _taken_ports(listened: Collection[int]) -> tuple[str, ...]:
    """The ports that the stack listened on and that are taken although all its processes have ended, each with who has
    it: another program was quicker than the next `up`, which chooses another port then."""

    def look() -> list[int]:
        return [port for port in sorted(listened) if not is_free(port)]

    taken = wait_until(look, lambda ports: not ports, seconds=_RELEASE_SECONDS)
    return tuple(f"{port} by {holder_of(port)}" for port in taken)


def forget_service(service: Service, folder: StackFolder) -> None:
    """Remove the record of a service that has ended, and the files that it left outside the stack's folder."""
    remove_record(folder, service.name)
    ports = read_ports(folder.ports)
    if all(port.name in ports for port in service.ports):
        for path in service.outside_files(ports):
            path.unlink(missing_ok=True)


def end_stack(folder: StackFolder, *, start: str = "") -> int:
    """End the processes of a stack: first those that use the foundation (Airflow, drivers), then the foundation.

    Parameters
    ----------
    folder: the stack.
    start: end only what the `up` with this id has started; everything when empty.

    Returns
    -------
    How many processes were ended.
    """
    services = all_services()
    records = read_records(folder)

    def members() -> dict[int, LivingProcess]:
        found = stack_members(folder, everything=observe_processes(), services=services.values())
        return found if not start else _started_by(start, found)

    rules = _stop_rules(services, records)
    ended = end_processes(lambda: _users_among(members(), folder=folder), rules=rules, otherwise=_OTHERS)
    ended += end_processes(lambda: members().values(), rules=rules, otherwise=_OTHERS)
    return ended


def users_of_declarations(folder: StackFolder) -> tuple[LivingProcess, ...]:
    """The living processes of a stack that work with its declarations: all but the databases and stores below them."""
    found = stack_members(folder, everything=observe_processes(), services=all_services().values())
    return tuple(_users_among(found, folder=folder))


def _users_among(members: Mapping[int, LivingProcess], *, folder: StackFolder) -> list[LivingProcess]:
    records = read_records(folder)
    foundation = {
        pid
        for service in all_services().values()
        if service.is_foundation
        for pid in service_members(service, records.get(service.name), folder=folder, members=members)
    }
    return [process for process in members.values() if process.pid not in foundation]


def _started_by(start: str, members: Mapping[int, LivingProcess]) -> dict[int, LivingProcess]:
    return with_descendants([process for process in members.values() if process.variable(START_MARK) == start], members)


def _stop_rules(services: Mapping[str, Service], records: Mapping[str, ProcessRecord]) -> dict[int, StopRule]:
    return {record.pid: _stop_rule(services[name]) for name, record in records.items() if name in services}


def _stop_rule(service: Service) -> StopRule:
    return StopRule(signal=service.stop_signal, patience_seconds=service.stop_seconds)


def end_service(service: Service, folder: StackFolder, record: ProcessRecord | None) -> int:
    """End what is left of one service. The drivers that it started continue.

    Parameters
    ----------
    service: the service.
    folder: the stack.
    record: the process that was started for it last.

    Returns
    -------
    How many processes were ended.
    """

    def find() -> Collection[LivingProcess]:
        members = stack_members(folder, everything=observe_processes(), services=(service,))
        return service_members(service, record, folder=folder, members=members).values()

    rule = _stop_rule(service)
    return end_processes(find, rules={record.pid: rule} if record else {}, otherwise=rule)
