"""Decide which of the observed processes belong to a stack, and to which of its services. Nothing is looked up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.processes.living_processes import LivingProcess, own_lineage, with_descendants
from sluice.stack.environment import STACK_MARK
from sluice.stack.folder import StackFolder
from sluice.stack.process_records import ProcessRecord
from sluice.stack.stack_plan import Service


def stack_members(
    folder: StackFolder, *, everything: Mapping[int, LivingProcess], services: Iterable[Service]
) -> dict[int, LivingProcess]:
    """Every process of a stack: those with its mark in their environment, their descendants, strays of its services.

    The calling process and its ancestors are left out, whatever their environment holds.

    Parameters
    ----------
    folder: the stack.
    everything: the machine's processes, by process id.
    services: the services whose stray children are looked for.
    """
    strays = [(service.stray_name, str(folder.data / service.name)) for service in services if service.stray_name]
    roots = [
        process
        for process in everything.values()
        if process.variable(STACK_MARK) == str(folder.data) or (process.name, process.working_folder) in strays
    ]
    members = with_descendants(roots, everything)
    return {pid: process for pid, process in members.items() if pid not in own_lineage(everything)}


def service_members(
    service: Service, record: ProcessRecord | None, *, folder: StackFolder, members: Mapping[int, LivingProcess]
) -> dict[int, LivingProcess]:
    """The processes of one service, also when its first process has ended: those of its session, and its strays.

    A driver that the service has started lives in a session of its own. It is not a part of the service and outlives
    it.

    Parameters
    ----------
    service: the service.
    record: the process that was started for it last.
    folder: the stack.
    members: the processes of the whole stack.
    """
    place = str(folder.data / service.name)
    return {
        pid: process
        for pid, process in members.items()
        if (record is not None and process.session_id == record.pid)
        or (service.stray_name and (process.name, process.working_folder) == (service.stray_name, place))
    }
