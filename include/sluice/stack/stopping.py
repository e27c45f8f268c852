"""`down`: end a stack, or a part of it."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sluice.errors import StackError
from sluice.processes.deadline import wait_until
from sluice.processes.living_processes import LivingProcess, observe_processes, with_descendants
from sluice.stack.environment import START_MARK
from sluice.stack.exclusive_change import exclusive, interruptible
from sluice.stack.folder import StackFolder, stack_folder
from sluice.stack.membership import service_members, stack_members
from sluice.stack.port_choice import read_ports
from sluice.stack.process_records import ProcessRecord, read_records, remove_record
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
    """How many processes a `down` has ended."""

    ended_processes: int


def down() -> DownReport:
    """End every process of the stack and check that its ports are free.

    Raises
    ------
    StackError: when a process cannot be ended or a port stays taken.
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
        _check_ports(listened)
    return DownReport(ended_processes=ended)


def plan_down() -> tuple[LivingProcess, ...]:
    """The processes that `down` would end now, in no particular order."""
    folder = stack_folder()
    members = stack_members(folder, everything=observe_processes(), services=all_services().values())
    return tuple(members.values())


def _check_ports(listened: Collection[int]) -> None:
    """Raise when a port that the stack listened on is still taken. Other ports do not concern it."""

    def look() -> list[int]:
        return [port for port in sorted(listened) if not is_free(port)]

    taken_ports = wait_until(look, lambda ports: not ports, seconds=_RELEASE_SECONDS)
    if taken_ports:
        taken = [f"{port} by {holder_of(port)}" for port in taken_ports]
        raise StackError(f"Every process of the stack has ended, but these ports are still taken: {', '.join(taken)}.")


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

    def foundation(found: Mapping[int, LivingProcess]) -> set[int]:
        return {
            pid
            for service in services.values()
            if service.is_foundation
            for pid in service_members(service, records.get(service.name), folder=folder, members=found)
        }

    def users() -> Collection[LivingProcess]:
        found = members()
        base = foundation(found)
        return [process for process in found.values() if process.pid not in base]

    rules = _stop_rules(services, records)
    ended = end_processes(users, rules=rules, otherwise=_OTHERS)
    ended += end_processes(lambda: members().values(), rules=rules, otherwise=_OTHERS)
    return ended


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
